"""The checkpoints of an attempt and of those that it goes on from."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pretrain import reading
from pretrain.errors import IntegrityError, StorageError
from pretrain.evidence import checkpoint, namespace
from pretrain.evidence.checkpoint_record import RECORD_NAME
from pretrain.evidence.namespace import Parent


def checkpoints_of(run_dir: Path, number: int) -> Iterator[tuple[int, Path]]:
    """Yield step and folder of every checkpoint of attempt `number` and its ancestors, the youngest attempt first.

    An ancestor whose folder was removed since holds none, nor does anything before it. What an ancestor saved after the
    checkpoint that its child went on from is no part of the lineage.
    """
    above: int | None = number
    last: float = float("inf")
    while above is not None:
        folder = namespace.attempt_folder(run_dir, above)
        if not folder.is_dir():
            return
        yield from ((step, place) for step, place in checkpoint.list_checkpoints(folder) if step <= last)
        parent = Parent.parse(namespace.read_environment(folder)["parent"], f"{folder / namespace.ENVIRONMENT}: parent")
        above = None if parent is None else parent.attempt
        if parent is not None and parent.kind == "checkpoint":
            last = min(last, _step_of(namespace.attempt_folder(run_dir, parent.attempt), parent.record_sha256))


def _step_of(folder: Path, record_sha256: str) -> int:
    """Return the step of the checkpoint of an attempt that has this record, -1 where it is gone or cannot be read."""
    for step, place in reversed(checkpoint.list_checkpoints(folder)):
        with contextlib.suppress(IntegrityError, StorageError):
            if reading.hash_file(place / RECORD_NAME).sha256 == record_sha256:
                return step
    return -1


def find_record(run_dir: Path, number: int, step: int) -> str | None:
    """Return the record hash of the checkpoint of `step` in attempt `number` or an ancestor; None = in none."""
    for saved, place in checkpoints_of(run_dir, number):
        if saved == step:
            return checkpoint.read_record(place).record_sha256
    return None
