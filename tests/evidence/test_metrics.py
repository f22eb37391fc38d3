"""The metric stream: exact rows, a running hash, prefixes that are verified, and counts."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from pretrain import files, reading, syscalls
from pretrain.errors import IntegrityError, StorageError
from pretrain.evidence import canonical, metrics, rows
from pretrain.evidence.metrics import EMPTY, Counts, Cursor, MetricStream

STEP: dict[str, Any] = {
    "step": 1,
    "batch": 0,
    "loss": 5.5,
    "learning_rate": 0.001,
    "gradient_norm": 1.5,
    "clip_ratio": 1.0,
    "supervised": 64,
}
SKIPPED: dict[str, Any] = {
    "step": 1,
    "batch": 1,
    "reason": "post_clip",
    "loss": math.nan,
    "gradient_norm": math.inf,
    "largest": 3.0,
    "retries": 1,
}


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        (rows.begin(task="text", parameters=3), "schema task parameters"),
        (
            rows.step(**STEP),
            "step batch loss learning_rate gradient_norm clip_ratio supervised update_norm",
        ),
        (rows.skipped(**SKIPPED), "step batch reason loss gradient_norm largest retries incident"),
        (
            rows.validation(step=1, domain="prose", samples=4, loss=2.0),
            "step domain samples loss bits_per_byte nmse nmse_zero nmse_linear classes",
        ),
    ],
)
def test_a_row_has_exactly_the_fields_of_the_format(row: dict[str, Any], fields: str) -> None:
    assert set(row) == {"event", *fields.split()}
    assert json.loads(canonical.encode(row))["event"] == row["event"]


def test_a_skipped_row_names_a_known_reason() -> None:
    with pytest.raises(ValueError, match="'bad luck' is none of"):
        rows.skipped(**SKIPPED | {"reason": "bad luck"})


def write(path: Path, count: int, prefix: Cursor | None = None) -> Cursor:
    stream = MetricStream(path, prefix)
    for step in range(count):
        stream.append(rows.step(**STEP | {"step": step}))
    stream.sync()
    stream.close()
    return stream.cursor


def test_the_cursor_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    stream = MetricStream(path)
    assert stream.cursor == EMPTY
    for count in range(1, 6):
        stream.append(rows.step(**STEP))
        content = path.read_bytes()
        assert stream.cursor == Cursor(count, len(content), hashlib.sha256(content).hexdigest())
    stream.close()
    assert Cursor.parse(stream.cursor.record(), "x") == stream.cursor
    for change in ({"lines": True}, {"bytes": -1}, {"sha256": "AB" * 32}, {"more": 1}):
        with pytest.raises(IntegrityError, match="x"):
            Cursor.parse(stream.cursor.record() | change, "x")


def test_each_row_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []

    class Watching(syscalls.System):
        def write(self, fd: int, data: memoryview) -> int:
            writes.append(bytes(data))
            return super().write(fd, data)

    stream = MetricStream(tmp_path / "metrics.jsonl")
    monkeypatch.setattr(syscalls, "system", Watching())
    for _ in range(3):
        stream.append(rows.step(**STEP))
    assert writes == [canonical.encode(rows.step(**STEP))] * 3
    stream.close()


def test_a_row_that_could_not_be_written_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(syscalls.System):
        def write(self, fd: int, data: memoryview) -> int:
            if len(data) < 50:
                raise OSError(28, "No space left on device")
            return super().write(fd, data[:-10])

    path = tmp_path / "metrics.jsonl"
    stream = MetricStream(path)
    stream.append(rows.step(**STEP))
    before = stream.cursor
    with monkeypatch.context() as patch:
        patch.setattr(syscalls, "system", Full())
        with pytest.raises(StorageError, match=r"metrics\.jsonl: appending failed"):
            stream.append(rows.step(**STEP))
    assert stream.cursor == before
    stream.append(rows.step(**STEP))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == stream.cursor.sha256
    stream.close()


def test_a_stream_goes_on_after_its_prefix(tmp_path: Path) -> None:
    path, whole = tmp_path / "metrics.jsonl", tmp_path / "whole"
    bound = write(path, 3)
    write(path, 2, bound)
    with path.open("ab") as stream:
        stream.write(b'{"torn')
    cursor = write(path, 1, bound)
    assert cursor.lines == 4
    write(whole, 3)
    assert path.read_bytes() == whole.read_bytes() + canonical.encode(rows.step(**STEP | {"step": 0}))


def test_a_stream_that_is_not_what_was_bound_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    bound = write(path, 3)
    with pytest.raises(IntegrityError, match="expected a new stream"):
        MetricStream(path)
    content = path.read_bytes()
    for change in (content[:-1], content.replace(b"5.5", b"5.6", 1), b""):
        path.write_bytes(change)
        with pytest.raises(IntegrityError, match=r"metrics\.jsonl: expected"):
            MetricStream(path, bound)
        assert path.read_bytes() == change
    path.unlink()
    with pytest.raises(IntegrityError, match="missing"):
        MetricStream(path, bound)
    path.symlink_to(tmp_path / "whole")
    with pytest.raises(StorageError):
        MetricStream(path)


def test_a_prefix_is_copied_only_when_it_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCK", 100)
    path, copy = tmp_path / "metrics.jsonl", tmp_path / "copy"
    bound = write(path, 3)
    write(path, 2, bound)
    files.publish(copy, metrics.verify_prefix(path, bound))
    assert copy.read_bytes() == path.read_bytes()[: bound.bytes]
    copy.unlink()
    for wrong in (
        Cursor(bound.lines + 1, bound.bytes, bound.sha256),
        Cursor(bound.lines, bound.bytes - 1, hashlib.sha256(path.read_bytes()[: bound.bytes - 1]).hexdigest()),
        Cursor(bound.lines, bound.bytes, "00" * 32),
        Cursor(bound.lines, 10**9, bound.sha256),
    ):
        with pytest.raises(IntegrityError, match=r"metrics\.jsonl: expected"):
            files.publish(copy, metrics.verify_prefix(path, wrong))
        assert reading.walk(tmp_path) == [("metrics.jsonl", "file")]
    files.publish(copy, metrics.verify_prefix(path, EMPTY))
    assert copy.read_bytes() == b""


def test_many_prefixes_are_checked_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCK", 64)
    path = tmp_path / "metrics.jsonl"
    cursors, cursor = [EMPTY], None
    for _ in range(4):
        cursor = write(path, 2, cursor)
        cursors.append(cursor)
    assert metrics.broken_prefixes(path, reversed(cursors * 2)) == []
    wrong = [Cursor(3, cursors[1].bytes, cursors[1].sha256), Cursor(0, 0, "00" * 32), Cursor(9, 10**12, "00" * 32)]
    assert metrics.broken_prefixes(path, cursors + wrong) == [wrong[1], wrong[0], wrong[2]]
    content = bytearray(path.read_bytes())
    content[cursors[2].bytes + 5] ^= 1
    path.write_bytes(content)
    assert metrics.broken_prefixes(path, cursors) == cursors[3:]


def test_the_last_row_that_a_cursor_binds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    bound = write(path, 3)
    write(path, 5, bound)
    for block in (7, 1 << 20):
        monkeypatch.setattr(reading, "BLOCK", block)
        assert metrics.last_row(path, bound) == rows.step(**STEP | {"step": 2})
    assert metrics.last_row(path, EMPTY) is None
    assert metrics.last_row(path, bound, besides=["step"]) is None


def test_counts_are_read_from_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    stream = MetricStream(path)
    rolled_back = {"event": "rolled_back", "step": 2, "batch": 9, "undone_steps": 3, "rung": 1, "incident": 2}
    alarm = {"event": "alarm", "step": 2, "batch": 2, "subject": None, "value": 1.0, "threshold": 2.0}
    for row in (
        rows.begin(task="text", parameters=3),
        rows.step(**STEP),
        rows.skipped(**SKIPPED),
        rows.skipped(**SKIPPED | {"incident": 1}),
        rows.validation(step=1, domain='a"event":"step"', samples=1, loss=1.0),
        rolled_back | {"quarantined": [4, 6]},
        rolled_back | {"quarantined": None, "incident": 3},
        alarm | {"name": "dead_expert", "state": "raised"},
        alarm | {"name": "dead_expert", "state": "cleared"},
        alarm | {"name": "dead_expert", "state": "raised"},
        alarm | {"name": "drift", "state": "raised"},
    ):
        stream.append(row)
    stream.close()
    expected = Counts(skipped=2, rolled_back=2, quarantined=1, incidents=3, alarms={"dead_expert": 2, "drift": 1})
    for block in (13, 1 << 20):
        monkeypatch.setattr(reading, "BLOCK", block)
        assert metrics.counts(path) == expected
    assert Counts.parse(expected.record(), "x") == expected
    changes: list[dict[str, Any]] = [
        {"skipped": -1},
        {"alarms": {"a": 0}},
        {"alarms": []},
        {"incidents": True},
        {"more": 0},
    ]
    for change in changes:
        with pytest.raises(IntegrityError, match="x"):
            Counts.parse(expected.record() | change, "x")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"event":"begin"}\n{"event":"beg', "the last row is cut off"),
        (b'{"event":"begin"}\n\n', "row 2: expected canonical JSON"),
        (b'{"event": "begin"}\n', "row 1: expected canonical JSON"),
        (b'["event"]\n', "row 1: expected an object, found list"),
        (b'{"event":"skipped","incident":true}\n', "row 1: incident: expected an integer"),
        (b"x" * (3 << 20), "a row of more than"),
    ],
)
def test_a_stream_with_a_row_that_is_none(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(content)
    with pytest.raises(IntegrityError, match=r"metrics\.jsonl: ") as caught:
        metrics.counts(tmp_path / "metrics.jsonl")
    assert reason in str(caught.value)
