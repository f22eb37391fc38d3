"""Alarms in a run: a row when one is raised, one when it is cleared, and the same ones however often it is stopped."""

import json
from pathlib import Path

import pytest

from pretrain.attempt import start_attempt
from pretrain.evidence.metrics import counts
from pretrain.machine.signals import StopRequest
from pretrain.telemetry.sink import Note
from tests.tiny import Recorder, go_on, tiny, train

QUICK = (
    "training.max_steps=90",
    "checkpoint.checkpoint_every_n_steps=10",
    "validation.validate_every_n_steps=90",
    "spikes.window_steps=32",
    "spikes.warmup_steps=16",
    "spikes.loss.action=record",
    "spikes.gradient.action=record",
    "optimizer.lr=1.0e-3",
)


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETRAIN_ALLOW_FAULTS", "1")


def stream(run_dir: Path) -> Path:
    return max((run_dir / "attempts").iterdir()) / "metrics.jsonl"


def alarms(run_dir: Path, name: str = "loss_spike") -> list[tuple[int, str]]:
    """Return step and state of the alarm rows of a name, and every rollback as the step that it leads to."""
    found = []
    for line in stream(run_dir).read_text().splitlines():
        row = json.loads(line)
        if row["event"] == "rolled_back":
            found.append((row["step"], "rolled_back"))
        elif row["event"] == "alarm" and row["name"] == name:
            assert (row["value"] > row["threshold"]) is (row["state"] == "raised")
            assert row["subject"] is None
            found.append((row["step"], row["state"]))
    return found


def standing(found: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """What a reader is left with: a rollback takes back the alarm rows of the steps after its own."""
    kept: list[tuple[int, str]] = []
    for step, what in found:
        kept = [row for row in kept if row[0] <= step] if what == "rolled_back" else [*kept, (step, what)]
    return kept


@pytest.mark.parametrize("task", ["text", "iq"])
@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ((25, 60), [(26, "raised"), (46, "cleared"), (61, "raised"), (81, "cleared")]),
        ((25, 26, 40), [(26, "raised"), (61, "cleared")]),
        ((80,), [(81, "raised")]),
    ],
)
def test_far_apart_they_are_two_alarms_and_close_together_one(
    tmp_path: Path, task: str, batches: tuple[int, ...], expected: list[tuple[int, str]]
):
    faults = ", ".join(f"loss_spike@{batch}" for batch in batches)
    config = tiny(tmp_path, task, *QUICK, f"faults.inject=[{faults}]")
    seen = Recorder()
    assert start_attempt(config, StopRequest(), [seen]).verdict == "done"
    assert alarms(tmp_path / "run") == expected
    raised = sum(what == "raised" for _, what in expected)
    assert counts(stream(tmp_path / "run")).alarms["loss_spike"] == raised
    notes = [event for event in seen.events if isinstance(event, Note) and event.text.startswith("loss_spike ")]
    assert [(note.kind, note.text.split(":")[0]) for note in notes] == [
        ("warning" if what == "raised" else "cleared", f"loss_spike {what} at step {step}") for step, what in expected
    ]


@pytest.mark.parametrize("stop_after", [26, 27, 45, 46])
def test_stopped_between_raised_and_cleared_it_ends_in_the_same_bytes(tmp_path: Path, stop_after: int):
    faults = "faults.inject=[loss_spike@25, loss_spike@60]"
    reference = train(tiny(tmp_path, "text", *QUICK, faults, run="a"))
    assert train(tiny(tmp_path, "text", *QUICK, faults, run="b"), stop_after).verdict == "interrupted"
    result = go_on(tmp_path / "b", stop_after=40)
    assert result.verdict == "interrupted"
    result = go_on(tmp_path / "b")
    assert result.verdict == "done"
    assert result.checkpoint is not None
    assert reference.checkpoint is not None
    assert result.checkpoint.record_sha256 == reference.checkpoint.record_sha256
    assert stream(tmp_path / "b").read_bytes() == stream(tmp_path / "a").read_bytes()


@pytest.mark.parametrize("targets_in_memory", [0, 1])
@pytest.mark.parametrize(
    ("faults", "expected", "left"),
    [
        # Raised in steps that are undone: not raised any more, and raised anew by the next one.
        (
            "loss_spike@33, nan_weight@36, loss_spike@50",
            [(34, "raised"), (30, "rolled_back"), (43, "raised"), (63, "cleared")],
            [(43, "raised"), (63, "cleared")],
        ),
        # Raised before the target: it stays so.
        (
            "loss_spike@28, nan_weight@36",
            [(29, "raised"), (30, "rolled_back"), (49, "cleared")],
            [(29, "raised"), (49, "cleared")],
        ),
        # Cleared in steps that are undone: it is cleared again.
        (
            "loss_spike@22, nan_weight@45",
            [(23, "raised"), (43, "cleared"), (40, "rolled_back"), (43, "cleared")],
            [(23, "raised"), (43, "cleared")],
        ),
    ],
)
def test_a_rollback_takes_the_alarms_of_undone_steps_back(
    tmp_path: Path, faults: str, expected: list, left: list, targets_in_memory: int
):
    memory = f"spikes.targets_in_memory={targets_in_memory}"
    assert train(tiny(tmp_path, "text", *QUICK, memory, f"faults.inject=[{faults}]")).verdict == "done"
    found = alarms(tmp_path / "run")
    assert found == expected
    assert standing(found) == left
