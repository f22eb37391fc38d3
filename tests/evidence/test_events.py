"""events.jsonl: written whole, and read back as far as it is whole."""

import tracemalloc
from pathlib import Path

import pytest

from pretrain.errors import IntegrityError
from pretrain.evidence import events


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    log = events.EventLog(tmp_path / events.NAME, clock=lambda: 1.5)
    log.write("paused", 3, temperature_c=86.0)
    log.write("unpaused", 3, temperature_c=float("nan"), seconds=2.0)
    log.sync()
    log.close()
    first, second = events.read(tmp_path)
    assert first == {"event": "paused", "step": 3, "temperature_c": 86.0, "time": 1.5}
    assert (second["temperature_c"], second["seconds"]) == ("nan", 2.0)


def test_a_damaged_line_is_left_out_and_the_others_are_read(tmp_path: Path) -> None:
    assert [*events.read(tmp_path)] == []
    lines = [b'{"event":"saved","step":1}', b'{"event":"sav\xff', b"[1]", b"", b'{"event":"device","step":2}']
    (tmp_path / events.NAME).write_bytes(b"\n".join(lines) + b'\n{"event":"sa')
    assert [row["event"] for row in events.read(tmp_path)] == ["saved", "device"]


def test_a_line_longer_than_any_row_is_left_out_without_being_held(tmp_path: Path) -> None:
    path = tmp_path / events.NAME
    with path.open("wb") as file:
        file.write(b'{"event":"saved","step":1}\n')
        file.truncate(16 << 20)
        file.seek(0, 2)
        file.write(b'\n{"event":"device","step":2}\n')
    tracemalloc.start()
    assert [row["event"] for row in events.read(tmp_path)] == ["saved", "device"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


def test_many_rows_are_read_one_at_a_time_and_too_many_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / events.NAME
    path.write_bytes(b'{"event":"saved","step":1}\n' * 20_000)
    tracemalloc.start()
    assert sum(1 for _ in events.read_events(tmp_path)) == 20_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20
    assert not events.is_too_long(tmp_path)
    for size, row in (((32 << 20) + 1, b""), (0, b"\n" * 100_001)):
        with path.open("wb") as file:
            file.write(row)
            file.truncate(max(size, len(row)))
        assert events.is_too_long(tmp_path)
        with pytest.raises(IntegrityError, match=r"events\.jsonl: expected at most 33554432 bytes and 100000 rows"):
            next(events.read(tmp_path))
        assert [*events.read_events(tmp_path)] == []
