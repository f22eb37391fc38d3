"""The evidence of one attempt while it runs: rows of the stream, operations, and checkpoints that bind both."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from pretrain import files
from pretrain.errors import IntegrityError
from pretrain.evidence import checkpoint, incident, outcome
from pretrain.evidence.checkpoint import SavedCheckpoint
from pretrain.evidence.events import EventLog
from pretrain.evidence.metrics import Cursor, MetricStream
from pretrain.lock import Lock

T = TypeVar("T")


class Patience(Protocol):
    """How often what writes is tried before a full disk is a StorageError."""

    def __call__(self, work: Callable[[], T], size: int = 0) -> T:
        """Return what `work` returns; it leaves nothing half done when it fails, and needs about `size` bytes."""


def at_once(work: Callable[[], T], size: int = 0) -> T:
    """Try it once."""
    return work()


class AttemptWriter:
    """Writes into one attempt folder.

    saved: the checkpoints of this attempt that are still there, by step. closed: the streams take nothing more.
    patience: how often all that is written here is tried. lock: that of the run, which this process holds.
    """

    def __init__(self, folder: Path, number: int, identity_sha256: str, prefix: Cursor, lock: Lock) -> None:
        self.folder, self.number, self.identity_sha256 = folder, number, identity_sha256
        self._lock = lock
        self._metrics = MetricStream(folder / "metrics.jsonl", prefix)
        self._events = EventLog(folder / "events.jsonl")
        self.saved: dict[int, SavedCheckpoint] = {}
        self.closed = False
        self.patience: Patience = at_once

    @property
    def cursor(self) -> Cursor:
        """Return lines, bytes and SHA-256 of the stream so far."""
        return self._metrics.cursor

    def check_place(self) -> None:
        """Raise DisplacedError where the run is no longer where it was: a path would lead into another one, or none.

        The streams are open and follow the folder; whatever goes by a path asks here before.
        """
        self._lock.check()

    def publish_outcome(self, record: dict[str, Any]) -> None:
        """Put the end of an attempt without a manifest beside its streams."""
        self.check_place()
        outcome.publish_outcome(self.folder, record)

    def row(self, row: Mapping[str, Any]) -> None:
        """Append one row to the metric stream."""
        self.patience(lambda: self._metrics.append(row))

    def event(self, name: str, step: int, **fields: Any) -> None:
        """Append one operation, with the clock, to events.jsonl."""
        self.patience(lambda: self._events.write(name, step, **fields))

    def sync(self) -> None:
        """Make the rows so far durable."""
        self._metrics.sync()

    def sync_events(self) -> None:
        """Make the operations so far durable."""
        self._events.sync()

    def incident(self, number: int, data: bytes) -> None:
        """Publish the file of an incident, before a row names it."""
        path = self.folder / incident.name_of(number)
        if path.parent.is_symlink():
            raise IntegrityError(f"{path.parent}: expected a folder, found a symlink; remove it, and resume")

        def publish() -> None:
            self.check_place()
            files.make_folder(path.parent)
            files.publish(path, data)

        self.patience(publish)

    def save(
        self, tensors: Mapping[str, torch.Tensor], *, step: int, batch: int, scalars: Mapping[str, Any]
    ) -> SavedCheckpoint:
        """Make the rows so far durable, then a checkpoint that binds them; `DivergedError` on a non-finite tensor."""
        self._metrics.sync()

        def save() -> SavedCheckpoint:
            self.check_place()
            return checkpoint.save_checkpoint(
                checkpoint.folder_of(self.folder, step),
                dict(tensors),
                step=step,
                batch=batch,
                identity_sha256=self.identity_sha256,
                layout={},
                metrics=self.cursor,
                scalars=dict(scalars),
            )

        saved = self.patience(save, self.size_of(tensors))
        self.saved[step] = saved
        return saved

    def size_of(self, tensors: Mapping[str, torch.Tensor]) -> int:
        """Return the bytes of the next checkpoint: as many as the newest has, or about those of the tensors."""
        if self.saved:
            return self.saved[max(self.saved)].bytes
        return sum(tensor.nbytes for tensor in tensors.values())

    def prune(self, steps: tuple[int, ...]) -> None:
        """Remove these checkpoints of this attempt, record first; some file systems need space even for that."""
        for step in steps:
            self.check_place()
            self.patience(partial(checkpoint.remove_checkpoint, checkpoint.folder_of(self.folder, step)))
            del self.saved[step]

    def close(self) -> None:
        """Make both streams durable and close them, so that they can be hashed; a second call does nothing."""
        if self.closed:
            return
        self.closed = True
        try:
            try:
                self._metrics.sync()
            finally:
                self._metrics.close()
        finally:
            self._events.close()
