"""What only looks at a run costs time that is of no step, by a clock that moves by hand."""

import csv
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pretrain import files, syscalls
from pretrain.attempt import Words, begin, start_attempt
from pretrain.evidence.events import read_events
from pretrain.loop import steps
from pretrain.machine.signals import StopRequest
from pretrain.telemetry import memory_held, trace
from pretrain.telemetry.throughput import Throughput
from pretrain.telemetry.time_spent import TimeSpent
from pretrain.telemetry.trackers import TRACKERS, TrackerEntry
from pretrain.telemetry.trackers.tensorboard import TensorBoardSettings
from tests.loop.probes import Unsynced, hook_loss
from tests.telemetry.test_throughput import Clock
from tests.tiny import tiny

TRACE, SNAPSHOT, TRACKER = 1000.0, 200.0, 30.0


class Slow:
    """A tracker that takes its time at the end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def log(self, step: int, values: Any) -> None:
        pass

    def close(self) -> None:
        self._clock.now += TRACKER


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """One second for each micro-batch, and what is written by an observer takes long; nothing else takes any time."""
    clock, publish = Clock(), files.publish

    def slow(path: Path, data: Any, **more: Any) -> Any:
        clock.now += {trace.NAME: TRACE, memory_held.NAME: SNAPSHOT}.get(path.name, 0.0)
        return publish(path, data, **more)

    def takes(batch: Any, loss: Any) -> Any:
        clock.now += 1.0
        return loss

    monkeypatch.setattr(syscalls, "system", Unsynced())
    monkeypatch.setattr(files, "publish", slow)
    hook_loss(monkeypatch, takes)
    monkeypatch.setattr(steps, "Throughput", partial(Throughput, clock=clock))
    monkeypatch.setattr(begin, "TimeSpent", partial(TimeSpent, clock))
    entry = TrackerEntry(TensorBoardSettings, lambda settings, run: Slow(clock), "json")
    monkeypatch.setitem(TRACKERS, "tensorboard", entry)
    return clock


def rows_of(attempt: Path) -> list[dict[str, str]]:
    with (attempt / "telemetry.csv").open() as file:
        return list(csv.DictReader(file))


# The last step as well, after which there is only the end.
@pytest.mark.parametrize(("profile", "snapshot"), [((3, 4), 6), ((6, 6), 6), ((1, 12), 1), ((11, 12), 12)])
def test_it_is_of_no_row_and_no_step(tmp_path: Path, clock: Clock, profile: tuple[int, int], snapshot: int) -> None:
    began = clock.now
    config = tiny(tmp_path, "text", "telemetry.trackers={tensorboard: {}}", "validation.validate_every_n_steps=1000")
    words = Words("{}:{}".format(*profile), str(snapshot))
    assert start_attempt(config, StopRequest(), [], words).verdict == "done"
    attempt = tmp_path / "run/attempts/0001"
    assert {"trace.json", "memory.json"} <= {path.name for path in attempt.iterdir()}
    rows = rows_of(attempt)
    assert {row["data_seconds"] for row in rows} == {row["optimizer_seconds"] for row in rows} == {"0.0"}
    assert [float(row["compute_seconds"]) for row in rows] == [2.0] * 12
    assert len({row["tokens_per_second"] for row in rows}) == 1
    end = [*read_events(attempt)][-1]["seconds"]
    assert {kind: seconds for kind, seconds in end.items() if seconds and kind != "validation"} == {
        "steps": 24.0,
        "observing": TRACE + SNAPSHOT + TRACKER,
    }
    assert sum(end.values()) == clock.now - began


def test_without_an_observer_there_is_no_such_time(tmp_path: Path, clock: Clock) -> None:
    assert start_attempt(tiny(tmp_path), StopRequest(), []).verdict == "done"
    assert [*read_events(tmp_path / "run/attempts/0001")][-1]["seconds"]["observing"] == 0.0
