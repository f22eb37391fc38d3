"""The evidence of one attempt while it runs: rows of the stream, operations, and checkpoints that bind both."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pretrain import files
from pretrain.errors import IntegrityError
from pretrain.evidence import checkpoint, incident
from pretrain.evidence.checkpoint import SavedCheckpoint
from pretrain.evidence.events import EventLog
from pretrain.evidence.metrics import Cursor, MetricStream


class AttemptWriter:
    """Writes into one attempt folder.

    saved: the checkpoints of this attempt that are still there, by step. closed: the streams take nothing more.
    """

    def __init__(self, folder: Path, number: int, identity_sha256: str, prefix: Cursor) -> None:
        self.folder, self.number, self.identity_sha256 = folder, number, identity_sha256
        self._metrics = MetricStream(folder / "metrics.jsonl", prefix)
        self._events = EventLog(folder / "events.jsonl")
        self.saved: dict[int, SavedCheckpoint] = {}
        self.closed = False

    @property
    def cursor(self) -> Cursor:
        """Return lines, bytes and SHA-256 of the stream so far."""
        return self._metrics.cursor

    def row(self, row: Mapping[str, Any]) -> None:
        """Append one row to the metric stream."""
        self._metrics.append(row)

    def event(self, name: str, step: int, **fields: Any) -> None:
        """Append one operation, with the clock, to events.jsonl."""
        self._events.write(name, step, **fields)

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
        files.make_folder(path.parent)
        files.publish(path, data)

    def save(
        self, tensors: Mapping[str, torch.Tensor], *, step: int, batch: int, scalars: Mapping[str, Any]
    ) -> SavedCheckpoint:
        """Make the rows so far durable, then a checkpoint that binds them; `DivergedError` on a non-finite tensor."""
        self._metrics.sync()
        saved = checkpoint.save_checkpoint(
            checkpoint.folder_of(self.folder, step),
            dict(tensors),
            step=step,
            batch=batch,
            identity_sha256=self.identity_sha256,
            layout={},
            metrics=self.cursor,
            scalars=dict(scalars),
        )
        self.saved[step] = saved
        return saved

    def prune(self, steps: tuple[int, ...]) -> None:
        """Remove these checkpoints of this attempt, record first."""
        for step in steps:
            checkpoint.remove_checkpoint(checkpoint.folder_of(self.folder, step))
            del self.saved[step]

    def close(self) -> None:
        """Make both streams durable and close them, so that they can be hashed; a second call does nothing."""
        if self.closed:
            return
        self.closed = True
        self._metrics.sync()
        self._metrics.close()
        self._events.close()
