"""Checkpoints: saved whole or not at all, verified, loaded strictly, listed, described and removed."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain import files, reading
from pretrain.errors import ConfigError, IntegrityError, PretrainError, StorageError
from pretrain.evidence.checkpoint_record import (
    RECORD_NAME,
    CheckpointRecord,
    RecordDraft,
    is_shard_name,
    parse_record,
)
from pretrain.evidence.metrics import Cursor
from pretrain.evidence.safetensors_file import ShardFile
from pretrain.evidence.shards import StoredTensor, content_sha256, gather, tensor_sha256

# torch comes in with save and load alone: to list, verify or describe takes a tenth of a second without it.
if TYPE_CHECKING:
    import torch

    from pretrain.evidence.shard_writer import Content

__all__ = [
    "CheckpointRecord",
    "Difference",
    "SavedCheckpoint",
    "check_weights",
    "compare",
    "describe",
    "folder_of",
    "list_checkpoints",
    "load_checkpoint",
    "load_weights",
    "read_record",
    "remove_checkpoint",
    "save_checkpoint",
    "verify_checkpoint",
]

_RECORD_LIMIT = 16 << 20  # bytes
_STEP_FOLDER = re.compile(r"step_([0-9]{8,18})")


@dataclass(frozen=True)
class SavedCheckpoint:
    """A durable checkpoint: its step, the SHA-256 of its record, which is its name, and its bytes on disk."""

    step: int
    record_sha256: str
    bytes: int


@dataclass(frozen=True)
class Difference:
    """The names of the tensors that one checkpoint has beyond another, lacks, or holds with other bytes."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.added + self.removed + self.changed))


# --- saving and loading --------------------------------------------------------------------------------


def save_checkpoint(
    folder: Path,
    tensors: "Mapping[str, torch.Tensor]",
    *,
    step: int,
    batch: int,
    identity_sha256: str,
    layout: Mapping[str, Any],
    metrics: Cursor,
    scalars: Mapping[str, Any],
) -> SavedCheckpoint:
    """Save `tensors` and the record that binds them in `folder`; all ranks of a process group call it.

    The shard files come first, the record last, all of it durable; equal state gives equal bytes. What a
    failed save left in `folder` is cleared first; a complete checkpoint or a strange file there is an
    IntegrityError. Raises DivergedError naming a tensor that is not finite, before anything is written;
    StorageError, and then `folder` is gone again where it could be removed; IntegrityError, TypeError or
    ValueError for what a checkpoint cannot hold.
    """
    from pretrain.evidence import shard_writer

    draft = RecordDraft(step, batch, identity_sha256, layout, metrics, scalars)
    prepared = False

    def check() -> None:
        draft.check()
        if not tensors:
            raise ValueError(f"{folder}: a checkpoint holds one tensor or more")
        shard_writer.check_savable(tensors)

    def prepare() -> None:
        nonlocal prepared
        _clear(folder)
        prepared = True
        files.make_folder(folder)

    def seal(content: "Content") -> SavedCheckpoint:
        published = files.publish(folder / RECORD_NAME, draft.encode(content.files, content.content_sha256))
        total = published.bytes + sum(file.bytes for file in content.files)
        return SavedCheckpoint(step, published.sha256, total)

    try:
        saved = shard_writer.write(folder, tensors, check=check, prepare=prepare, seal=seal)
    except BaseException:  # Whatever cut the save short, half a checkpoint is none; it is raised on.
        if prepared:
            with contextlib.suppress(StorageError):
                remove_checkpoint(folder)
        raise
    assert isinstance(saved, SavedCheckpoint)
    return saved


def _clear(folder: Path) -> None:
    """Removes what a save that failed or was killed left in `folder`, and nothing else."""
    if not os.path.lexists(folder):
        return
    for name, _ in reading.walk(folder):
        if name == RECORD_NAME:
            raise IntegrityError(f"{folder}: a checkpoint is there already; remove it before another is saved")
        if not is_shard_name(name) and not files.TEMPORARY.fullmatch(name):
            raise IntegrityError(f"{folder / name}: no part of a checkpoint; nothing was saved over it")
    files.remove_folder(folder)


def load_checkpoint(
    folder: Path,
    destination: "Mapping[str, torch.Tensor]",
    generators: "dict[str, torch.Tensor] | None" = None,
) -> CheckpointRecord:
    """Fill the tensors of `destination` in place from the checkpoint in `folder`, and return its record.

    Each file is opened once, its hash compared, and read from the same descriptor; nothing is written into
    `destination` before all files, names, dtypes and shapes were found right. Whatever layout saved it, it
    loads into the layout of `destination`. Raises IntegrityError naming the file, or the tensors that differ; of a file
    that was written to in between only afterwards, and what was filled is of no use then.

    generators: states of generators by name, beside `destination`. Those of a GPU may be other ones than the
    checkpoint has, which a run on another device saved: afterwards `generators` has those of the checkpoint.
    """
    return _load(folder, destination, generators, _all_of)


def load_weights(folder: Path, destination: "Mapping[str, torch.Tensor]") -> CheckpointRecord:
    """Like `load_checkpoint`, of the tensors `model.NAME` alone; ConfigError where the model is another one."""
    return _load(folder, destination, None, _weights_of)


def check_weights(folder: Path, destination: "Mapping[str, torch.Tensor]") -> CheckpointRecord:
    """Raise and return what `load_weights` would, and fill nothing: of `destination` types and shapes are looked at."""
    record = _read_whole_record(folder)
    with _opened(folder, record) as opened:
        _weights_of(destination, opened, folder)
    return record


def _all_of(
    destination: "Mapping[str, torch.Tensor]", opened: dict[str, StoredTensor], folder: Path
) -> dict[str, StoredTensor]:
    from pretrain.evidence import shard_reader

    shard_reader.check_matches(destination, opened, str(folder))
    return opened


def _weights_of(
    destination: "Mapping[str, torch.Tensor]", opened: dict[str, StoredTensor], folder: Path
) -> dict[str, StoredTensor]:
    from pretrain.evidence import shard_reader

    weights = {name: tensor for name, tensor in opened.items() if name.startswith("model.")}
    shard_reader.check_matches(destination, weights, str(folder), ConfigError, of="this model", most=10)
    return weights


def _load(
    folder: Path,
    destination: "Mapping[str, torch.Tensor]",
    generators: "dict[str, torch.Tensor] | None",
    matching: "Callable[[Mapping[str, torch.Tensor], dict[str, StoredTensor], Path], dict[str, StoredTensor]]",
) -> CheckpointRecord:
    from pretrain.evidence import shard_reader

    records: list[CheckpointRecord] = []
    opened: dict[str, StoredTensor] = {}
    faults: list[PretrainError | TypeError] = []
    with contextlib.ExitStack() as stack:
        try:
            records.append(_read_whole_record(folder))
            opened.update(stack.enter_context(_opened(folder, records[0])))
        except (PretrainError, TypeError) as error:  # It is raised below, where every rank comes to hear of it.
            faults.append(error)
        found = {} if generators is None else shard_reader.room_for_generators(generators, opened)
        whole = {**destination, **found}

        def open_tensors() -> dict[str, StoredTensor]:
            if faults:
                raise faults[0]
            return matching(whole, opened, folder)

        shard_reader.read(whole, open_tensors)
    if generators is not None:
        generators.clear()
        generators.update(found)
    return records[0]


@contextlib.contextmanager
def _opened(folder: Path, record: CheckpointRecord) -> Iterator[dict[str, StoredTensor]]:
    """The tensors of the checkpoint, their files open and verified until the end, and then unchanged since."""
    with contextlib.ExitStack() as stack:
        shards = [
            stack.enter_context(ShardFile.open_verified(folder / file.path, file.bytes, file.sha256))
            for file in record.files
        ]
        yield gather(shards)
        for shard in shards:
            shard.check_unchanged()


# --- records and folders -------------------------------------------------------------------------------


def folder_of(attempt: Path, step: int) -> Path:
    """Return the folder of the checkpoint of `step` in an attempt's folder."""
    return attempt / "checkpoints" / f"step_{step:08d}"


def read_record(folder: Path) -> CheckpointRecord:
    """Return the record of the checkpoint in `folder`; the files it binds are not looked at.

    Raises IntegrityError when it is missing or altered, or is not of the step that the folder is named after.
    """
    path = folder / RECORD_NAME
    record = parse_record(reading.read_regular(path, limit=_RECORD_LIMIT), str(path))
    step = _step_of(folder.name)
    if step is not None and step != record.step:
        raise IntegrityError(f"{path}: expected the record of step {step}, found that of step {record.step}")
    return record


def verify_checkpoint(folder: Path) -> CheckpointRecord:
    """Return the record of the checkpoint in `folder`, after every file it binds was found as recorded.

    Raises IntegrityError naming the file that is extra, missing, changed, not a regular file, or no shard file.
    """
    record = _read_whole_record(folder)
    shards = []
    for file in record.files:
        with ShardFile.open_verified(folder / file.path, file.bytes, file.sha256) as shard:
            shards.append(shard)
    gather(shards)
    return record


def _read_whole_record(folder: Path) -> CheckpointRecord:
    """The record, once the folder holds the files that it names, as regular files, and nothing else."""
    if folder.is_symlink():
        raise IntegrityError(f"{folder}: expected a folder, found a symlink")
    record = read_record(folder)
    bound = {RECORD_NAME, *(file.path for file in record.files)}
    found = dict(reading.walk(folder))
    for name in sorted(bound | set(found)):
        if name not in found:
            raise IntegrityError(f"{folder / name}: missing")
        if name not in bound:
            raise IntegrityError(f"{folder / name}: extra, the checkpoint's record does not name it")
        if found[name] != "file":
            raise IntegrityError(f"{folder / name}: expected a regular file, found a {found[name]}")
    return record


def list_checkpoints(attempt: Path) -> list[tuple[int, Path]]:
    """Return (step, folder) of the checkpoints of an attempt by rising step.

    A folder without a record is none; one with a link in the place of it does not verify. Nothing is opened, and no
    link followed.
    """
    folder = attempt / "checkpoints"
    if folder.is_symlink() or not folder.is_dir():
        return []
    kinds = dict(reading.walk(folder))
    steps = [(_step_of(name), name) for name, kind in kinds.items() if kind == "folder"]
    return sorted(
        (step, folder / name) for step, name in steps if step is not None and f"{name}/{RECORD_NAME}" in kinds
    )


def _step_of(name: str) -> int | None:
    match = _STEP_FOLDER.fullmatch(name)
    step = int(match[1]) if match else None
    return step if step is not None and name == f"step_{step:08d}" else None


def remove_checkpoint(folder: Path) -> None:
    """Remove the checkpoint in `folder`, its record first and durably, so that a half-removed one is none."""
    if folder.is_symlink():
        raise IntegrityError(f"{folder}: expected a folder, found a symlink; nothing was removed")
    if os.path.lexists(folder / RECORD_NAME):
        files.remove_file(folder / RECORD_NAME)
    files.remove_folder(folder)


# --- inspection ----------------------------------------------------------------------------------------


def describe(folder: Path) -> dict[str, Any]:
    """Return what a checkpoint holds, as `inspect-checkpoint --json` prints it.

    step, record_sha256, content_sha256, optimizer_bytes and tensors[{name dtype shape sha256}] by name. Every
    file is read twice, for its own hash and for its tensors', and no tensor is held in memory. Raises
    IntegrityError as `verify_checkpoint` does, and when the tensors are not those of content_sha256.
    """
    record = _read_whole_record(folder)
    with _opened(folder, record) as tensors:
        rows = {name: (one.dtype, one.shape, tensor_sha256(one)) for name, one in tensors.items()}
        optimizer = sum(one.bytes for name, one in tensors.items() if name.startswith("optimizer."))
    if content_sha256(rows) != record.content_sha256:
        raise IntegrityError(f"{folder}: the tensors are not those that the record binds by content_sha256")
    return {
        "step": record.step,
        "record_sha256": record.record_sha256,
        "content_sha256": record.content_sha256,
        "optimizer_bytes": optimizer,
        "tensors": [
            {"name": name, "dtype": dtype, "shape": list(shape), "sha256": sha256}
            for name, (dtype, shape, sha256) in rows.items()
        ],
    }


def compare(folder: Path, other: Path) -> Difference:
    """Return what `other` has added, removed or changed (dtype, shape or any bit) against `folder`."""
    before, after = ({row["name"]: row for row in describe(path)["tensors"]} for path in (folder, other))
    return Difference(
        added=tuple(sorted(set(after) - set(before))),
        removed=tuple(sorted(set(before) - set(after))),
        changed=tuple(sorted(name for name in set(before) & set(after) if before[name] != after[name])),
    )
