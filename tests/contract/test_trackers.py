"""What every row of the table of trackers keeps, with the real library where it is installed."""

import importlib.util
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pretrain.telemetry.sink import StepRow, WentBack
from pretrain.telemetry.trackers import TRACKERS, TrackedRun
from pretrain.telemetry.trackers.feed import Feed
from tests.telemetry.tracked import latest, offline_rows, scalars


def run(folder: Path, attempt: int = 1, step: int = 0) -> TrackedRun:
    config = {"run.dir": str(folder), "optimizer.betas": [0.9, 0.95], "training.threads": None}
    return TrackedRun(folder=folder, identity="0" * 64, attempt=attempt, step=step, goes_on=attempt > 1, config=config)


def row(step: int, loss: float) -> StepRow:
    return StepRow(attempt=1, step=step, batch=step, loss=loss, learning_rate=1e-3, action="accept")


def told(folder: Path, name: str) -> dict[int, float]:
    """The loss by step that a tracker's own files end up with."""
    if name == "tensorboard":
        found = scalars(folder / "tensorboard")["train/loss"]
        assert [step for step, _ in found] == sorted({step for step, _ in found}), "a step is there twice"
        return dict(found)
    assert name == "wandb", "say here how the files of a new tracker are read back"
    return latest(offline_rows(folder / "wandb", last=7), "train/loss")


@pytest.mark.parametrize("name", TRACKERS)
def test_it_builds_from_its_defaults_and_ends_with_the_right_steps(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = TRACKERS[name]
    if importlib.util.find_spec(entry.library) is None:
        pytest.skip(f"{entry.library} is not installed; `make develop` does")
    monkeypatch.setattr("pretrain.telemetry.trackers.feed.CLOSE_SECONDS", 60.0)  # for a machine that is busy
    folder, warnings = tmp_path / "run", []
    for attempt, step, rows in (
        (1, 0, [row(1, 0.1), row(2, 0.2), row(3, 9.0), WentBack(step=2, undone_steps=1), row(3, 0.3), row(4, 9.0)]),
        (2, 3, [row(4, math.nan), row(5, math.inf), row(6, 1e300), row(7, 0.7)]),
    ):
        build: Any = partial(entry.build, entry.settings(), run(folder, attempt, step))
        feed = Feed(name, build, warnings.append)
        for each in rows:
            feed.emit(each)
        feed.close()
    assert warnings == []
    found = told(folder, name)
    assert {step: value for step, value in found.items() if step in (1, 2, 3, 7)} == pytest.approx(
        {1: 0.1, 2: 0.2, 3: 0.3, 7: 0.7}, rel=1e-6
    )
    assert sorted(found) == [1, 2, 3, 4, 5, 6, 7]
    assert [path.name for path in folder.iterdir()] == [name], "it writes beside its own folder"
