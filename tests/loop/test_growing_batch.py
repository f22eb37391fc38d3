"""A run whose batch grows: stopped anywhere, with refused steps and a way back, it ends in the same bytes."""

import json
from pathlib import Path

import pytest

from pretrain.attempt import replay_incident
from tests.loop.lineages import end_of
from tests.loop.probes import newest_attempt
from tests.tiny import go_on, tiny, train

# Steps of 2, 4, 6 and 8 windows; a refused batch in the warmup, and damaged weights that are gone back from.
GROWING = (
    *("training.gradient_accumulation_steps=4", "training.batch_warmup_samples=24", "model.layers=1"),
    *("training.max_steps=10", "checkpoint.checkpoint_every_n_steps=2", "validation.validate_every_n_steps=5"),
    "faults.inject=[nan_grad@2, nan_weight@5]",
)


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETRAIN_ALLOW_FAULTS", "1")


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    assert train(tiny(tmp_path, "text", *GROWING, run="whole")).verdict == "done"
    return tmp_path / "whole"


def test_stopped_anywhere_it_ends_in_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (newest_attempt(whole) / "metrics.jsonl").read_text().splitlines()]
    events = [row["event"] for row in rows]
    assert "rolled_back" in events
    assert "skipped" in events
    supervised = [row["supervised"] for row in rows if row["event"] == "step"]
    assert supervised[0] == 2 * 16
    assert supervised[-1] == 8 * 16
    for stop in (1, 3, 6):
        run = tmp_path / f"stopped-{stop}"
        assert train(tiny(tmp_path, "text", *GROWING, run=run.name), stop).verdict == "interrupted"
        result = go_on(run, stop_after=2)
        if result.verdict == "interrupted":
            result = go_on(run)
        assert result.verdict == "done"
        assert end_of(run) == end_of(whole)


def test_an_incident_of_a_small_batch_is_run_again(whole: Path) -> None:
    incidents = sorted((newest_attempt(whole) / "incidents").iterdir())
    assert len(incidents) == 2
    for path in incidents:  # reads the samples of that batch again, and compares their places
        assert replay_incident(path).experiments


@pytest.mark.parametrize(("schedule", "phase"), [("constant", "peak"), ("inverse_square_root", "decay")])
def test_an_incident_says_in_which_phase_of_the_schedule_it_was(tmp_path: Path, schedule: str, phase: str) -> None:
    short = ("training.max_steps=3", "model.layers=1", "faults.inject=[nan_grad@2]")
    assert train(tiny(tmp_path, "text", *short, f"scheduler.scheduler_type={schedule}")).verdict == "done"
    incident = json.loads((tmp_path / "run/attempts/0001/incidents/incident_0001.json").read_text())
    assert incident["phase"] == phase
    assert incident["context"]["peak_learning_rate"] == 0.01
