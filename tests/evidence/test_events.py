"""events.jsonl: written whole, and read back as far as it is whole."""

import tracemalloc
from pathlib import Path

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
    assert events.read(tmp_path) == []
    lines = [b'{"event":"saved","step":1}', b'{"event":"sav\xff', b"[1]", b"", b'{"event":"device","step":2}']
    (tmp_path / events.NAME).write_bytes(b"\n".join(lines) + b'\n{"event":"sa')
    assert [row["event"] for row in events.read(tmp_path)] == ["saved", "device"]


def test_a_line_longer_than_any_row_is_left_out_without_being_held(tmp_path: Path) -> None:
    path = tmp_path / events.NAME
    with path.open("wb") as file:
        file.write(b'{"event":"saved","step":1}\n')
        file.truncate(64 << 20)
        file.seek(0, 2)
        file.write(b'\n{"event":"device","step":2}\n')
    tracemalloc.start()
    assert [row["event"] for row in events.read(tmp_path)] == ["saved", "device"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20
