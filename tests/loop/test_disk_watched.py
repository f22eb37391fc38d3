"""A disk that is filling up is said once, before it is full."""

from pathlib import Path
from typing import Any

import pytest

from pretrain import syscalls
from pretrain.attempt import start_attempt
from pretrain.evidence.events import read_events
from pretrain.loop import boundary
from pretrain.machine.signals import StopRequest
from pretrain.telemetry.sink import Note
from tests.loop.probes import Unsynced, newest_attempt
from tests.tiny import Recorder, tiny


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: Any) -> tuple[list[str], list[dict[str, Any]]]:
    """The warnings of a run on the screen and in its events, where `free()` bytes are left at each save."""
    monkeypatch.setattr(syscalls, "system", Unsynced())
    monkeypatch.setattr(boundary, "free_bytes", lambda _: free())
    sink = Recorder()
    assert start_attempt(tiny(tmp_path, "text"), StopRequest(), [sink]).verdict == "done"
    events = [*read_events(newest_attempt(tmp_path / "run"))]
    shown = [event.text for event in sink.events if isinstance(event, Note) and event.kind == "warning"]
    return shown, [row for row in events if row["event"] == "warning"]


def test_it_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter([10**12, 10**12, 30_000, 20_000])  # of steps 0, 4, 8 and 12; a checkpoint takes more than half of that
    shown, told = run(tmp_path, monkeypatch, lambda: next(left))
    (text,) = shown
    assert [(row["step"], row["text"]) for row in told] == [(8, text)]
    assert ": 30,000 bytes are free on its file system, less than two checkpoints of " in text


def test_exactly_two_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(tmp_path, monkeypatch, lambda: 10**12) == ([], [])
    folder = newest_attempt(tmp_path / "run") / "checkpoints/step_00000012"
    size = sum(path.stat().st_size for path in folder.iterdir())
    again = tmp_path / "again"
    again.mkdir()
    left = iter([10**12, 2 * size, 2 * size + 1, 2 * size - 1000])
    shown, _ = run(again, monkeypatch, lambda: next(left))
    assert len(shown) == 1


def test_before_the_first_checkpoint_the_state_tells_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter([1000, 0, 0, 0])
    shown, told = run(tmp_path, monkeypatch, lambda: next(left))
    assert (len(shown), told[0]["step"]) == (1, 0)


def test_a_file_system_that_does_not_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(tmp_path, monkeypatch, lambda: None) == ([], [])
