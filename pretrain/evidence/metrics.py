"""metrics.jsonl: the rows that a finished run answers for, and how much of them a checkpoint has bound."""

import dataclasses
import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretrain import files, reading
from pretrain.errors import IntegrityError
from pretrain.evidence import canonical
from pretrain.policy.incident import Report

NAME = "metrics.jsonl"
_ROW_LIMIT = 1 << 20


@dataclass(frozen=True)
class Cursor:
    """The first rows of a stream: how many lines and bytes they take, and the SHA-256 of those bytes."""

    lines: int
    bytes: int
    sha256: str

    def record(self) -> dict[str, Any]:
        """The cursor as it stands in checkpoint.json and manifest.json."""
        return dataclasses.asdict(self)

    @classmethod
    def parse(cls, value: Any, where: str) -> "Cursor":
        """Read what `record` made. Raises IntegrityError."""
        found = canonical.fields(value, ("lines", "bytes", "sha256"), where)
        lines = canonical.integer(found["lines"], f"{where}.lines")
        length = canonical.integer(found["bytes"], f"{where}.bytes")
        return cls(lines, length, canonical.digest(found["sha256"], f"{where}.sha256"))


EMPTY = Cursor(0, 0, hashlib.sha256().hexdigest())


class MetricStream:
    """The stream of one attempt, open for appending: one write per row, and the running hash of all rows.

    prefix: the rows to go on from, verified here; what the file holds beyond them is cut off. None = the
    stream must be new or empty. Raises IntegrityError when the file does not begin with the prefix.
    """

    def __init__(self, path: Path, prefix: Cursor | None = None) -> None:
        self._lines, self._hash = 0, hashlib.sha256()
        if prefix is not None:
            self._lines = prefix.lines
            for block in verify_prefix(path, prefix):
                self._hash.update(block)
        self._appender = files.Appender(path, keep=None if prefix is None else prefix.bytes)
        if prefix is None and self._appender.length:
            self._appender.close()
            raise IntegrityError(f"{path}: expected a new stream, found {self._appender.length} bytes of rows")

    @property
    def cursor(self) -> Cursor:
        """All rows so far."""
        return Cursor(self._lines, self._appender.length, self._hash.hexdigest())

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one row, whole or not at all. Raises StorageError."""
        line = canonical.encode(row)
        self._appender.append(line)
        self._hash.update(line)
        self._lines += 1

    def sync(self) -> None:
        """Make all rows durable, before a checkpoint binds them. Raises StorageError."""
        self._appender.sync()

    def close(self) -> None:
        """Give the file back; does not sync."""
        self._appender.close()


# --- reading back --------------------------------------------------------------------------------------


def verify_prefix(path: Path, cursor: Cursor) -> Iterator[bytes]:
    """The bytes that `cursor` binds, in blocks, for `files.publish` to copy.

    They are verified once the last block is taken: IntegrityError then, so that a copy is never published.
    """
    digest, length, lines, last = hashlib.sha256(), 0, 0, b"\n"
    for block in _up_to(path, cursor.bytes):
        digest.update(block)
        length, lines, last = length + len(block), lines + block.count(b"\n"), block[-1:]
        yield block
    if length < cursor.bytes:
        raise IntegrityError(f"{path}: expected {cursor.bytes} bytes or more, found {length}: it was cut short")
    if digest.hexdigest() != cursor.sha256 or lines != cursor.lines or last != b"\n":
        raise IntegrityError(
            f"{path}: expected {cursor.lines} rows in {cursor.bytes} bytes with SHA-256 {cursor.sha256}, "
            f"found {lines} with {digest.hexdigest()}: it was changed"
        )


def broken_prefixes(path: Path, cursors: Iterable[Cursor]) -> list[Cursor]:
    """Those of `cursors` that do not bind the first rows of the stream, found in one pass."""
    broken = []
    digest, at, lines = hashlib.sha256(), 0, 0
    blocks = reading.read_blocks(path)
    block = b""
    for cursor in sorted(cursors, key=lambda cursor: cursor.bytes):
        while at < cursor.bytes and (block or (block := next(blocks, b""))):
            taken, block = block[: cursor.bytes - at], block[cursor.bytes - at :]
            digest.update(taken)
            at, lines = at + len(taken), lines + taken.count(b"\n")
        if Cursor(lines, at, digest.hexdigest()) != cursor:
            broken.append(cursor)
    return broken


def last_row(path: Path, cursor: Cursor, besides: Iterable[str] = ()) -> dict[str, Any] | None:
    """The last row that `cursor` binds, after the whole prefix was verified; None where there is none.

    besides: events whose rows are passed over.
    """
    last, number, passed_over = b"", 0, [f'"event":"{event}"'.encode() for event in besides]
    for at, line in enumerate(_lines(path, verify_prefix(path, cursor)), start=1):
        if not any(event in line for event in passed_over):
            last, number = line, at
    return _row(last, f"{path}: row {number}") if last else None


def validations(path: Path, cursor: Cursor, step: int) -> list[dict[str, Any]]:
    """The `validation` rows of `step`, after the whole prefix was verified."""
    lines = [line for line in _lines(path, verify_prefix(path, cursor)) if b'"event":"validation"' in line]
    rows = [_row(line, f"{path}: a validation row") for line in lines]
    return [row for row in rows if row.get("event") == "validation" and row.get("step") == step]


def history(path: Path, cursor: Cursor, count: int) -> list[Report]:
    """The newest `count` batches that `cursor` binds, oldest first, after the whole prefix was verified."""
    kept: deque[tuple[int, bytes]] = deque(maxlen=count)
    for number, line in enumerate(_lines(path, verify_prefix(path, cursor)), start=1):
        if b'"event":"step"' in line or b'"event":"skipped"' in line:
            kept.append((number, line))
    return [_report(_row(line, f"{path}: row {number}"), f"{path}: row {number}") for number, line in kept]


def rollbacks(path: Path) -> list[tuple[int, int]]:
    """The step that each rollback of a stream leads to, and the batch at which it was decided, in the order of time.

    What is written beyond the last whole row, by a process that goes on writing, is left out.
    """
    found = []
    for number, line in enumerate(_lines(path, _whole(reading.read_blocks(path))), start=1):
        if b'"event":"rolled_back"' in line:
            row, where = _row(line, f"{path}: row {number}"), f"{path}: row {number}"
            step, batch = (canonical.integer(row.get(name), f"{where}: {name}") for name in ("step", "batch"))
            found.append((step, batch))
    return found


def migrations(path: Path) -> list[dict[str, Any]]:
    """The `migrated` rows of a stream in the order of time; what is beyond the last whole row is left out."""
    found = []
    for number, line in enumerate(_lines(path, _whole(reading.read_blocks(path))), start=1):
        if b'"event":"migrated"' in line:
            row, where = _row(line, f"{path}: row {number}"), f"{path}: row {number}"
            canonical.integer(row.get("step"), f"{where}: step")
            if not isinstance(row.get("keys"), dict):
                raise IntegrityError(f"{where}: keys: expected an object, found {row.get('keys')!r}")
            found.append(row)
    return found


def _whole(blocks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        end = (rest + block).rfind(b"\n") + 1
        yield (rest + block)[:end]
        rest = (rest + block)[end:]


def _report(row: dict[str, Any], where: str) -> Report:
    taken = row.get("event") == "step"
    # A refusal that no incident tells of is one of the loss scale alone.
    event = "step" if taken else "overflow" if row.get("incident") is None else "skipped"
    update = row.get("update_norm")
    return Report(
        event=event,
        step=canonical.integer(row.get("step"), f"{where}: step"),
        batch=canonical.integer(row.get("batch"), f"{where}: batch"),
        loss=canonical.number(row.get("loss"), f"{where}: loss"),
        gradient_norm=canonical.number(row.get("gradient_norm"), f"{where}: gradient_norm"),
        learning_rate=canonical.number(row.get("learning_rate"), f"{where}: learning_rate") if taken else None,
        update_norm=None if update is None else canonical.number(update, f"{where}: update_norm"),
    )


@dataclass(frozen=True)
class Counts:
    """What a stream holds besides steps.

    Refused steps, rollbacks, data windows they quarantined, incidents, and alarms raised by name.
    """

    skipped: int
    rolled_back: int
    quarantined: int
    incidents: int
    alarms: dict[str, int]

    def record(self) -> dict[str, Any]:
        """The counts as they stand in manifest.json."""
        return dataclasses.asdict(self)

    @classmethod
    def parse(cls, value: Any, where: str) -> "Counts":
        """Read what `record` made. Raises IntegrityError."""
        found = canonical.fields(value, [field.name for field in dataclasses.fields(cls)], where)
        alarms = found["alarms"]
        if not isinstance(alarms, dict):
            raise IntegrityError(f"{where}.alarms: expected an object, found {alarms!r}")
        numbers = {name: count for name, count in found.items() if name != "alarms"}
        return cls(
            **{name: canonical.integer(count, f"{where}.{name}") for name, count in numbers.items()},
            alarms={name: canonical.integer(n, f"{where}.alarms.{name}", 1) for name, n in alarms.items()},
        )


def counts(path: Path) -> Counts:
    """Count what happened in a whole stream. Raises IntegrityError for a row that is none."""
    rolled_back, skipped_, quarantined = 0, 0, 0
    incidents: set[int] = set()
    alarms: dict[str, int] = {}
    for number, line in enumerate(_lines(path, reading.read_blocks(path)), start=1):
        if b'"event":"step"' in line:
            continue  # nearly all rows are steps, and hold none of what is counted
        row = _row(line, f"{path}: row {number}")
        match row.get("event"):
            case "skipped":
                skipped_ += 1
            case "rolled_back":
                rolled_back += 1
                quarantined += bool(row.get("quarantined"))
            case "alarm" if row.get("state") == "raised":
                alarms[str(row.get("name"))] = alarms.get(str(row.get("name")), 0) + 1
        if row.get("incident") is not None:
            incidents.add(canonical.integer(row.get("incident"), f"{path}: row {number}: incident"))
    return Counts(skipped_, rolled_back, quarantined, len(incidents), alarms)


def _row(line: bytes, where: str) -> dict[str, Any]:
    row = canonical.parse(line, where, limit=_ROW_LIMIT)
    if not isinstance(row, dict):
        raise IntegrityError(f"{where}: expected an object, found {type(row).__name__}")
    return row


def _up_to(path: Path, length: int) -> Iterator[bytes]:
    for block in reading.read_blocks(path):
        if length <= 0:
            return
        yield block[:length]
        length -= len(block)


def _lines(path: Path, blocks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block).split(b"\n")
        yield from (line + b"\n" for line in whole)
        if len(rest) > _ROW_LIMIT:
            raise IntegrityError(f"{path}: a row of more than {_ROW_LIMIT} bytes")
    if rest:
        raise IntegrityError(f"{path}: the last row is cut off")
