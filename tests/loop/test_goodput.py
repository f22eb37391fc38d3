"""The time of real runs: told in events.jsonl, added up over the run, shown at the end."""

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest

from pretrain import syscalls
from pretrain.attempt import resume_attempt, start_attempt
from pretrain.attempt.goodput import goodput_of
from pretrain.errors import StorageError
from pretrain.evidence.events import read_events
from pretrain.loop import boundary
from pretrain.machine.signals import StopRequest
from pretrain.telemetry.sink import End
from pretrain.telemetry.time_spent import KINDS
from tests.loop.probes import Unsynced, hook_loss, newest_attempt, poison
from tests.tiny import Recorder, go_on, tiny, train


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "system", Unsynced())


def told(attempt: Path) -> list[dict[str, Any]]:
    return [row for row in read_events(attempt) if "seconds" in row]


def test_an_attempt_tells_what_its_time_went_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook_loss(monkeypatch, poison({(0, 8): "loss"}))  # one refused step, with its incident
    sink = Recorder()
    assert start_attempt(tiny(tmp_path, "text"), StopRequest(), [sink]).verdict == "done"
    rows = told(newest_attempt(tmp_path / "run"))
    assert [(row["event"], row["step"]) for row in rows] == [
        *(("saved", 0), ("saved", 4), ("saved", 8), ("saved", 12), ("end", 12)),
    ]
    assert all(tuple(row["seconds"]) == tuple(sorted(KINDS)) for row in rows)
    for kind in KINDS:
        passed = [row["seconds"][kind] for row in rows]
        assert passed == sorted(passed)
        assert (passed[-1] > 0) == (kind not in ("undone", "paused")), kind
    # Two clocks of the same process: what passed between two events is what the kinds grew by.
    between = rows[-1]["time"] - rows[0]["time"]
    grown = sum(rows[-1]["seconds"].values()) - sum(rows[0]["seconds"].values())
    assert grown == pytest.approx(between, abs=0.05)
    assert sum(row.data_seconds or 0 for row in sink.rows) == pytest.approx(rows[-1]["seconds"]["data"], abs=0.05)
    (shown,) = [event for event in sink.events if isinstance(event, End)]
    (line,) = shown.times
    assert line.startswith("time of this attempt ")
    assert "% in steps that count, " in line


def test_a_run_is_added_up_over_its_attempts(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(tmp_path, "text"), stop_after=6)  # saved at 6 for the signal
    go_on(run, stop_after=2)
    assert go_on(run).verdict == "done"
    found = goodput_of(run, 3)
    every = [told(run / f"attempts/000{number}")[-1]["seconds"] for number in (1, 2, 3)]
    assert (found.attempts, found.unended) == (3, 0)
    assert found.total == pytest.approx(sum(sum(seconds.values()) for seconds in every))
    assert found.seconds["undone"] == 0.0
    assert 0 < found.share < 1


def test_killed_torn_removed_or_altered(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(tmp_path, "text"), stop_after=6)
    events = run / "attempts/0001/events.jsonl"
    lines = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(b"".join(lines[:-1]) + lines[-1][:9])  # killed while it wrote its end
    assert go_on(run).verdict == "done"
    found = goodput_of(run, 2)
    assert (found.attempts, found.unended) == (2, 1)
    events.write_bytes(b'{"event":"saved","seconds":3,"step":4}\n[1]\n{"event":"end"}\n')
    assert goodput_of(run, 2).attempts == 1
    events.unlink()
    (run / "attempts/0001/environment.json").write_text("?")
    assert goodput_of(run, 2).attempts == 1
    assert goodput_of(tmp_path, 7).seconds == {}


def test_steps_that_a_rollback_took_back_are_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETRAIN_ALLOW_FAULTS", "1")
    config = tiny(tmp_path, "text", "faults.inject=[nan_weight@6]")
    assert train(config).verdict == "done"
    attempt = newest_attempt(tmp_path / "run")
    assert "rolled_back" in [row["event"] for row in read_events(attempt)]
    last = told(attempt)[-1]
    assert last["seconds"]["undone"] > 0
    found = goodput_of(tmp_path / "run", 1)
    assert found.total == pytest.approx(sum(last["seconds"].values()))
    assert found.seconds["undone"] == pytest.approx(last["seconds"]["undone"])


def fails_at(monkeypatch: pytest.MonkeyPatch, batch: int, error: Exception) -> None:
    """Let the first micro-batch of a global batch end the attempt."""

    def fail(found: Any, loss: Any) -> Any:
        if found.position >= 4 * batch:
            raise error
        return loss

    hook_loss(monkeypatch, fail)


def share_of(sink: Recorder) -> float:
    """The share of the attempt's own line, of a moment after the last row of events.jsonl."""
    (shown,) = [event for event in sink.events if isinstance(event, End)]
    found = re.search(r"s: ([0-9.]+)% in steps that count, ", shown.times[0])
    assert found is not None
    return float(found[1]) / 100


ENDS = [MemoryError(), StorageError("the disk is full"), RuntimeError("a fault of ours")]


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("batch", [2, 6])
def test_steps_that_an_error_took_along_do_not_count(
    tmp_path: Path, batch: int, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Recorder()
    with monkeypatch.context() as patch:
        fails_at(patch, batch, error)
        with contextlib.suppress(RuntimeError):
            start_attempt(tiny(tmp_path, "text"), StopRequest(), [sink])
    (*saved, last) = told(tmp_path / "run/attempts/0001")
    assert (saved[-1]["step"], last["event"], last["step"]) == (batch // 4 * 4, "end", batch)
    assert last["seconds"]["steps"] == saved[-1]["seconds"]["steps"]
    assert last["seconds"]["undone"] > 0
    found = goodput_of(tmp_path / "run", 1)
    assert found.seconds == pytest.approx(last["seconds"])
    assert 0.0 < share_of(sink) <= found.share + 0.001 if batch > 4 else share_of(sink) == found.share == 0.0

    again = Recorder()  # a child that ends before a checkpoint of its own has none of its parent's steps
    with monkeypatch.context() as patch:
        fails_at(patch, 7, error)
        with contextlib.suppress(RuntimeError):
            resume_attempt(tmp_path / "run", [], StopRequest(), [again])
    if batch == 6:
        assert share_of(again) == 0.0
    assert go_on(tmp_path / "run").verdict == "done"


def test_a_checkpoint_without_its_copy_in_memory_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(parts: Any) -> None:
        if parts.state.step == 8:
            raise MemoryError

    monkeypatch.setattr(boundary, "keep_target", exhausted)
    sink = Recorder()
    assert start_attempt(tiny(tmp_path, "text"), StopRequest(), [sink]).verdict == "out_of_memory"
    last = told(tmp_path / "run/attempts/0001")[-1]["seconds"]
    assert (last["undone"], last["steps"] > 0) == (0.0, True)
    assert 0.0 < share_of(sink) <= goodput_of(tmp_path / "run", 1).share + 0.001
