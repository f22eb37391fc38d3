"""events.jsonl: what was done to a run and when, by the clock; never part of an identity."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pretrain import files
from pretrain.evidence import canonical

NAME = "events.jsonl"


class EventLog:
    """The operations of one attempt, one canonical JSON line each. Raises StorageError."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._appender = files.Appender(path)
        self._clock = clock

    def write(self, event: str, step: int, **fields: Any) -> None:
        """Append one operation: start, signal, saved, pruned, end, ..., at `step`, with fields of its own."""
        row = {**fields, "time": self._clock(), "event": event, "step": step}
        self._appender.append(canonical.encode(row))

    def close(self) -> None:
        """Make the operations durable and close the file, so that a manifest can bind its hash."""
        try:
            self._appender.sync()
        finally:
            self._appender.close()
