"""events.jsonl: what was done to a run and when, by the clock; never part of an identity."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pretrain import files, reading
from pretrain.errors import IntegrityError, StorageError
from pretrain.evidence import canonical

NAME = "events.jsonl"
_READ_LIMIT = 32 << 20  # bytes
_ROWS_LIMIT = 100_000  # those of some 50,000 checkpoints; a second to read
_ROW_LIMIT = 1 << 16
DEVICE = "device"  # the event of a state that moved to another device: its `reason` says why bits may differ


def read_events(attempt: Path) -> Iterator[dict[str, Any]]:
    """Yield the operations of an attempt as far as they can be read: nothing that is proved rests on them.

    `seconds` are numbers by kind where they are there at all.
    """
    with contextlib.suppress(IntegrityError, StorageError):
        yield from (row for row in read(attempt) if "event" in row and _is_sound(row))


def _is_sound(row: dict[str, Any]) -> bool:
    seconds = row.get("seconds", {"steps": 0.0})
    return (
        type(row.get("step")) is int
        and isinstance(seconds, dict)
        and "steps" in seconds
        and all(isinstance(value, float) for value in seconds.values())
    )


class EventLog:
    """The operations of one attempt, one canonical JSON line each. Raises StorageError."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._appender = files.Appender(path)
        self._clock = clock

    def write(self, event: str, step: int, **fields: Any) -> None:
        """Append one operation: start, signal, saved, pruned, end, ..., at `step`, with fields of its own."""
        row = {**fields, "time": self._clock(), "event": event, "step": step}
        self._appender.append(canonical.encode(row))

    def sync(self) -> None:
        """Make the operations so far durable."""
        self._appender.sync()

    def close(self) -> None:
        """Make the operations durable and close the file, so that a manifest can bind its hash."""
        try:
            self._appender.sync()
        finally:
            self._appender.close()


def is_too_long(attempt: Path) -> bool:
    """Whether the operations of an attempt are more than are read. Raises IntegrityError for no regular file."""
    path = attempt / NAME
    if not path.exists():
        return False
    return path.stat().st_size > _READ_LIMIT or sum(b.count(b"\n") for b in reading.read_blocks(path)) > _ROWS_LIMIT


def read(attempt: Path) -> Iterator[dict[str, Any]]:
    """Yield the operations of an attempt, oldest first; nothing binds them, so that a damaged line is left out.

    Raises IntegrityError for what is no regular file, or too long.
    """
    path = attempt / NAME
    if not path.exists():
        return
    if is_too_long(attempt):
        raise IntegrityError(f"{path}: expected at most {_READ_LIMIT} bytes and {_ROWS_LIMIT} rows, found more")
    for line in _lines(path):
        row = None
        with contextlib.suppress(IntegrityError):
            row = canonical.parse(line, str(path), limit=_ROW_LIMIT)
        if isinstance(row, dict):
            yield row


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a stream, of one that is too long for a row only its begin. Raises IntegrityError."""
    length, rest = 0, b""
    for block in reading.read_blocks(path):
        length += len(block)
        if length > _READ_LIMIT:
            raise IntegrityError(f"{path}: expected at most {_READ_LIMIT} bytes, found more")
        *whole, rest = (rest + block).split(b"\n")
        yield from (line + b"\n" for line in whole)
        rest = rest[: _ROW_LIMIT + 1]
    yield rest
