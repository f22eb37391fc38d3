"""Trackers beside a run: the same bytes whatever they do, and the steps they show are those of the run."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pretrain.attempt import start_attempt
from pretrain.errors import ConfigError
from pretrain.machine.signals import StopRequest
from pretrain.telemetry.sink import Note
from pretrain.telemetry.trackers import TRACKERS, TrackerEntry, feed
from pretrain.telemetry.trackers.tensorboard import TensorBoardSettings
from tests.loop.lineages import End, end_of
from tests.telemetry.tracked import as_float32, latest, offline_rows, scalars
from tests.tiny import Recorder, go_on, tiny, train

ROOT = Path(__file__).parents[2]
ON = "telemetry.trackers={tensorboard: {}, wandb: {}}"
BACK = (
    *("training.max_steps=30", "checkpoint.checkpoint_every_n_steps=10", "validation.validate_every_n_steps=5"),
    *("spikes.window_steps=16", "spikes.warmup_steps=16", "faults.inject=[nan_grad@3, nan_weight@28]"),
)


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real libraries, given the time that a busy machine may need."""
    for entry in TRACKERS.values():
        pytest.importorskip(entry.library)
    monkeypatch.setattr(feed, "CLOSE_SECONDS", 60.0)


class Fake:
    """A tracker that does something first in one place; `release` lets go of one that hangs."""

    release = threading.Event()

    def __init__(self, place: str, do: Callable[[], Any]) -> None:
        self._place, self._do = place, do
        self._at("open")

    def _at(self, place: str) -> None:
        if place == self._place:
            self._do()

    def log(self, step: int, values: Any) -> None:
        self._at("log")

    def went_back(self, step: int) -> None:
        self._at("went_back")

    def close(self) -> None:
        self._at("close")


def put(monkeypatch: pytest.MonkeyPatch, place: str, do: Callable[[], Any]) -> None:
    """Let a fake take the place of TensorBoard."""
    entry = TrackerEntry(TensorBoardSettings, lambda settings, run: Fake(place, do), "json")
    monkeypatch.setitem(TRACKERS, "tensorboard", entry)


def fail() -> None:
    raise RuntimeError("the service is away")


def warned(attempt: Path) -> list[str]:
    rows = [json.loads(line) for line in (attempt / "events.jsonl").read_text().splitlines()]
    return [row["text"] for row in rows if row["event"] == "warning" and "trackers" in row["text"]]


def stream(attempt: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (attempt / "metrics.jsonl").read_text().splitlines()]


def losses(attempt: Path) -> dict[int, float]:
    """The loss of every step that counts; a step that was undone is followed by the one that took its place."""
    found: dict[int, float] = {}
    for row in stream(attempt):
        if row["event"] == "rolled_back":
            found = {step: loss for step, loss in found.items() if step <= row["step"]}
        elif row["event"] == "step":
            found[row["step"]] = row["loss"]
    return found


def validations(attempt: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in stream(attempt) if row["event"] == "validation"}


def assert_shown(run: Path, attempt: str) -> None:
    """TensorBoard and W&B have every step that counts once, with the values of metrics.jsonl."""
    expected, validated = losses(run / "attempts" / attempt), validations(run / "attempts" / attempt)
    shown = scalars(run / "tensorboard")
    assert shown["train/loss"] == [(step, as_float32(loss)) for step, loss in sorted(expected.items())]
    (name,) = [name for name in shown if re.fullmatch(r"validation/\w+/loss", name)]
    assert shown[name] == [(step, as_float32(loss)) for step, loss in sorted(validated.items())]
    rows = offline_rows(run / "wandb", last=max(expected))
    assert latest(rows, "train/loss") == expected
    assert latest(rows, name) == validated


def reference(folder: Path, *overrides: str) -> End:
    assert train(tiny(folder, "text", *overrides, run="reference")).verdict == "done"
    return end_of(folder / "reference")


@pytest.mark.parametrize("place", ["open", "log", "close"])
@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_whatever_one_does_the_run_ends_in_the_same_bytes(
    place: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = reference(tmp_path)
    monkeypatch.setattr(feed, "CLOSE_SECONDS", 0.2)
    monkeypatch.setattr(feed, "ROWS_WAITING", 5)
    release = threading.Event()
    put(monkeypatch, place, fail if how == "fails" else release.wait)
    stop = StopRequest()
    recorder = Recorder()
    result = start_attempt(tiny(tmp_path, "text", "telemetry.trackers={tensorboard: {}}"), stop, [recorder])
    release.set()
    assert result.verdict == "done"
    assert end_of(tmp_path / "run") == expected
    told = warned(tmp_path / "run/attempts/0001")
    assert told[-1].startswith("telemetry.trackers.tensorboard: ")
    assert len(told) == 1 if how == "fails" else told[-1].endswith("rows are lost")
    shown = [event.text for event in recorder.events if isinstance(event, Note) and "trackers" in event.text]
    assert shown == told
    assert len(recorder.rows) == 12


def test_it_is_told_where_the_run_went_back_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETRAIN_ALLOW_FAULTS", "1")
    put(monkeypatch, "went_back", fail)
    assert train(tiny(tmp_path, "text", *BACK, "telemetry.trackers={tensorboard: {}}")).verdict == "done"
    assert len(warned(tmp_path / "run/attempts/0001")) == 1
    assert end_of(tmp_path / "run") == reference(tmp_path, *BACK)


def test_one_that_cannot_be_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("letters " * 500)
    folder = "telemetry.trackers.tensorboard.folder="
    put(monkeypatch, "", fail)
    for override, message in (
        (f"{folder}{tmp_path}/run/attempts/0001/x", "lies among the attempts"),
        (f"{folder}{tmp_path}/text/x", "would become data"),
    ):
        data = [f"data.{kind}.letters.path={tmp_path}/text" for kind in ("train", "validation")]
        with pytest.raises(ConfigError, match=message):
            train(tiny(tmp_path, "text", *data, override))
    monkeypatch.setitem(TRACKERS, "tensorboard", TrackerEntry(TensorBoardSettings, Fake, "there_is_no_such_library"))
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[tensorboard\]' in the clone"):
        train(tiny(tmp_path, "text", "telemetry.trackers={tensorboard: {}}"))
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("libraries")
def test_after_a_rollback_and_a_resume_the_steps_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETRAIN_ALLOW_FAULTS", "1")
    expected = reference(tmp_path, *BACK)
    config = tiny(tmp_path, "text", *BACK, ON)
    assert train(config, stop_after=34).verdict == "interrupted"
    assert go_on(tmp_path / "run").verdict == "done"
    assert end_of(tmp_path / "run") == expected
    assert [warned(attempt) for attempt in sorted((tmp_path / "run/attempts").iterdir())] == [[], []]
    events = [row["event"] for row in stream(tmp_path / "run/attempts/0002")]
    assert (events.count("rolled_back"), events.count("skipped")) == (1, 2)
    assert_shown(tmp_path / "run", "0002")
    refused = scalars(tmp_path / "run/tensorboard")["refused/loss"]
    assert refused[0][0] == 4, "a refused step stands at the step that it would have been"
    rows = offline_rows(tmp_path / "run/wandb", last=30)
    assert {(row["attempt"], row["went_back"]) for row in rows} == {(1, 0), (1, 1), (2, 0)}


KILLED = """
import os, signal, sys, time
from pathlib import Path
from pretrain.attempt import run, start_attempt
from pretrain.machine.signals import StopRequest
from tests.telemetry.tracked import scalars
from tests.tiny import Recorder, tiny

opened, real = [], run.open_feeds
run.open_feeds = lambda *parts: opened.extend(real(*parts)) or opened

class Killer(Recorder):
    def emit(self, event):
        super().emit(event)
        if len(self.rows) != 7:
            return
        # What has not been handed over is lost with the process: wait for all before the row that comes now.
        folder = Path(sys.argv[1]) / "run" / "tensorboard"
        while any(feed._shown < feed._given for feed in opened) or not shown(folder):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)

def shown(folder):
    return [step for step, _ in scalars(folder).get("train/loss", [])][-1:] == [6]

start_attempt(tiny(Path(sys.argv[1]), "text", sys.argv[2]), StopRequest(), [Killer()])
"""


@pytest.mark.usefixtures("libraries")
def test_after_a_kill_and_a_resume_the_steps_are_right(tmp_path: Path) -> None:
    expected = reference(tmp_path)
    command = [sys.executable, "-c", KILLED, str(tmp_path), ON]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    killed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert killed.returncode == -9, killed.stderr
    assert [step for step, _ in scalars(tmp_path / "run/tensorboard")["train/loss"]] == [1, 2, 3, 4, 5, 6]
    assert {row["step"] for row in offline_rows(tmp_path / "run/wandb", last=6)} == {1, 2, 3, 4, 5, 6}
    assert go_on(tmp_path / "run").verdict == "done"  # from the checkpoint of step 4
    assert end_of(tmp_path / "run") == expected
    assert_shown(tmp_path / "run", "0002")
