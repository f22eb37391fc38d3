"""The known ways in which recovery fails (cases S18 and S20 to S22), each shown not to."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain import syscalls
from pretrain.attempt import start_attempt
from pretrain.loop import LoopParts
from pretrain.machine.signals import StopRequest
from pretrain.policy.loss_scale import LossScale
from pretrain.telemetry.sink import StepRow
from tests.loop.lineages import end_of
from tests.loop.probes import Unsynced, hook_loss, newest_attempt, noise
from tests.loop.states import States, changed, leave_out, trajectory
from tests.tiny import go_on, tiny, train

TASKS = pytest.mark.parametrize("task", ["text", "iq"])
SAMPLES = 4  # of one step of the tiny runs


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "system", Unsynced())
    monkeypatch.setenv("PRETRAIN_ALLOW_FAULTS", "1")


def rows_of(run: Path, event: str) -> list[dict[str, Any]]:
    lines = (newest_attempt(run) / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["event"] == event]


def watched(
    folder: Path,
    task: str,
    *overrides: str,
    run: str = "run",
    without: range = range(0),
    then: Callable[[LoopParts, StepRow], None] | None = None,
    begin: Callable[[LoopParts], None] | None = None,
) -> States:
    """Run to the end and return its states; the batches of `without` are not in its data."""
    with pytest.MonkeyPatch.context() as patch:
        leave_out(patch, [SAMPLES * batch for batch in without])
        hook_loss(patch, noise)
        states = States(patch, then, begin)
        result = start_attempt(tiny(folder, task, "model.layers=1", *overrides, run=run), StopRequest(), [states])
    assert result.verdict == "done", result
    return states


# --- S18 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "precision"), [("text", "float32"), ("text", "bfloat16"), ("iq", "float32"), ("iq", "float16")]
)
def test_s18_one_gradient_that_is_not_finite_never_reaches_the_optimizer(
    task: str, precision: str, tmp_path: Path
) -> None:
    """One element of the first, a middle and the last parameter: infinite, negative infinite, NaN."""
    values = [float("inf"), float("-inf"), float("nan")]
    taken: list[int] = []

    def begin(parts: LoopParts) -> None:
        parameters = list(parts.state.model.parameters())
        chosen = (parameters[0], parameters[len(parameters) // 2], parameters[-1])
        plan = {1 + 2 * number: pair for number, pair in enumerate((one, value) for one in chosen for value in values)}

        def spoil(gradient: torch.Tensor, parameter: torch.nn.Parameter) -> torch.Tensor:
            poisoned, value = plan.get(parts.state.batch, (None, 0.0))
            if poisoned is not parameter:
                return gradient
            gradient = gradient.clone()
            gradient.view(-1)[-1] = value
            return gradient

        for parameter in chosen:
            parameter.register_hook(lambda gradient, parameter=parameter: spoil(gradient, parameter))
        parts.state.optimizer.register_step_pre_hook(lambda *_: taken.append(parts.state.batch - 1))

    states = watched(
        tmp_path,
        task,
        "training.max_steps=10",
        "guard.max_nan_retries=9",
        f"training.precision={precision}",
        begin=begin,
    )
    assert taken == list(range(0, 19, 2)), "the batches whose steps the optimizer took"
    for (_, before), (action, after) in zip(states.found, states.found[1:], strict=False):
        weights = {name for name in changed(before, after) if name.startswith(("model", "optimizer"))}
        assert (weights == set()) == (action == "skip")
    assert [row["reason"] for row in rows_of(tmp_path / "run", "skipped")] == ["non_finite_norm"] * 9


# --- S20 -----------------------------------------------------------------------------------------------


@TASKS
def test_s20_damage_in_the_first_step_goes_back_to_step_0(task: str, tmp_path: Path) -> None:
    """Long before another checkpoint, on record with reason, step and counts; the same when stopped inside it."""
    overrides = (
        *("model.layers=1", "training.max_steps=6", "checkpoint.checkpoint_every_n_steps=100"),
        "faults.inject=[nan_grad@0, nan_weight@1, nan_weight@3]",
    )
    assert train(tiny(tmp_path, task, *overrides, run="whole")).verdict == "done"
    skips, backs = (rows_of(tmp_path / "whole", event) for event in ("skipped", "rolled_back"))
    assert [(row["step"], row["batch"], row["reason"], row["retries"], row["incident"]) for row in skips] == [
        (0, 0, "non_finite_norm", 0, 1),
        (1, 2, "non_finite_loss", 1, 2),
        (1, 4, "non_finite_loss", 2, 3),
    ]
    names = ("step", "batch", "undone_steps", "rung", "quarantined", "learning_rate_factor", "incident")
    assert [tuple(row[name] for name in names) for row in backs] == [
        (0, 2, 1, 2, [0, 2], 1.0, 2),
        (0, 4, 1, 3, [0, 4], 0.5, 3),
    ]
    for stop in (1, 2, 3, 5):
        assert train(tiny(tmp_path, task, *overrides, run=f"run-{stop}"), stop).exit_code == 75
        assert go_on(tmp_path / f"run-{stop}").verdict == "done"
        assert end_of(tmp_path / f"run-{stop}") == end_of(tmp_path / "whole"), f"stopped after {stop} batches"


# --- S21 -----------------------------------------------------------------------------------------------

BACK = {
    *("state.batch", "loader", "ledger.retries", "ledger.incidents", "ledger.faults_fired"),
    *("ledger.ladder.rung", "ledger.ladder.rollbacks", "ledger.ladder.quarantined"),
}


@pytest.mark.parametrize(
    ("task", "precision", "in_memory"),
    [("text", "float32", 1), ("text", "float16", 0), ("iq", "bfloat16", 0), ("iq", "float16", 1)],
)
def test_s21_everything_goes_back_together(
    task: str, in_memory: int, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From memory and from the disk; from there on it is the run in whose data the quarantined batches never were."""
    monkeypatch.setattr("pretrain.build.LossScale", lambda: LossScale(4.0))
    overrides = (f"spikes.targets_in_memory={in_memory}", f"training.precision={precision}")
    hurt = watched(tmp_path, task, *overrides, "faults.inject=[nan_weight@6]", run="hurt")
    assert hurt.actions == "begin " + "accept " * 7 + "roll_back" + " accept" * 8
    target, back = hurt.found[4][1], hurt.found[8][1]
    assert changed(target, back) - {"gradients"} == BACK
    assert (back["state.step"], back["state.batch"], back["loader"]) == (4, 8, (0, 8 * SAMPLES))
    assert back["ledger.ladder.quarantined"] == ((4, 7),)
    assert target["spikes.steps"] == back["spikes.steps"] == 4
    clean = watched(tmp_path, task, *overrides, run="clean", without=range(4, 8))
    assert [trajectory(state) for _, state in hurt.found[9:]] == [trajectory(state) for _, state in clean.found[5:]]


@pytest.mark.parametrize("in_memory", [0, 1])
def test_s21_the_second_time_it_goes_back_further_and_the_rate_is_lower(in_memory: int, tmp_path: Path) -> None:
    overrides = (f"spikes.targets_in_memory={in_memory}", "spikes.rewarm_steps=4")
    states = watched(tmp_path, "text", *overrides, "faults.inject=[nan_weight@6, nan_weight@9]")
    numbers = [number for number, (action, _) in enumerate(states.found) if action == "roll_back"]
    assert numbers == [8, 11]
    begin, back = states.found[0][1], states.found[11][1]
    lowered = {"ledger.ladder.learning_rate_factor", "ledger.ladder.rewarm_from", "group.0.lr", "group.1.lr"}
    assert changed(begin, back) - {"gradients", *BACK} == lowered
    assert (back["state.step"], back["state.batch"]) == (0, 11)
    assert back["ledger.ladder.quarantined"] == ((0, 10),)
    rates = [row["learning_rate"] for row in rows_of(tmp_path / "run", "step")]
    first, again = rates[:4], rates[-12:-8]
    assert [rate / plain for rate, plain in zip(again, first, strict=True)] == pytest.approx([0.125, 0.25, 0.375, 0.5])


@pytest.mark.parametrize("at", [3, 7, 11])
def test_damage_by_the_step_that_a_checkpoint_is_due_after_is_undone_too(at: int, tmp_path: Path) -> None:
    """And by the last step of all: what is not finite is never saved, and no reason to end."""
    states = watched(tmp_path, "text", f"faults.inject=[nan_weight@{at}]")
    number = at + 1
    assert states.actions == "begin " + "accept " * at + "roll_back" + " accept" * (12 - at + 3)
    target, back = states.found[number - 4][1], states.found[number][1]
    left = {"gradients", "ledger.best"}
    assert changed(target, back) - left == BACK - {"ledger.retries"}
    (row,) = rows_of(tmp_path / "run", "rolled_back")
    assert (row["step"], row["undone_steps"], row["quarantined"], row["incident"]) == (at - 3, 4, [at - 3, at], 1)
    assert rows_of(tmp_path / "run", "skipped") == []


def test_an_update_that_stands_out_is_undone_and_is_an_incident(tmp_path: Path) -> None:
    """The second moments vanish after step 223: the update of step 224, the first that is judged, is far out."""

    def then(parts: LoopParts, row: StepRow) -> None:
        if (row.step, row.batch) == (223, 222):
            for name, tensor in parts.state.state_tensors().items():
                if name.endswith(".exp_avg_sq"):
                    tensor.fill_(1e-12)

    overrides = (
        *("training.max_steps=228", "training.gradient_accumulation_steps=1", "model.width=8", "model.heads=1"),
        *("checkpoint.checkpoint_every_n_steps=50", "validation.validate_every_n_steps=999"),
        *("spikes.update.action=roll_back", "spikes.loss.action=record", "spikes.gradient.action=record"),
    )
    states = watched(tmp_path, "text", *overrides, then=then)
    (row,) = rows_of(tmp_path / "run", "rolled_back")
    assert (row["step"], row["batch"], row["undone_steps"]) == (200, 223, 24)
    # What is only recorded may be an incident before it; this one has a number of its own.
    incidents = sorted((newest_attempt(tmp_path / "run") / "incidents").iterdir())
    assert incidents[row["incident"] - 1].name == f"incident_{row['incident']:04d}.json"
    found = json.loads(incidents[row["incident"] - 1].read_text())
    assert (found["trigger"]["name"], found["action"], found["batch"]) == ("update", "roll_back", 223)
    target, back = states.found[200][1], states.found[224][1]
    record = {"ledger.retries", "ledger.faults_fired"}
    assert changed(target, back) - {"gradients"} == BACK - record


# --- S22 -----------------------------------------------------------------------------------------------

SPIKES = (
    *("training.max_steps=24", "spikes.warmup_steps=16", "spikes.window_steps=16"),
    *("checkpoint.checkpoint_every_n_steps=100", "validation.validate_every_n_steps=100"),
)


@pytest.mark.parametrize(
    ("faults", "overrides", "skipped", "remembered"),
    [
        ("loss_spike@0x50, loss_spike@20x3", (), [20], 1),  # a bad first loss hides no later one
        ("loss_spike@17x8, loss_spike@22x8", ("spikes.warmup_steps=20",), [22], 1),  # one within the warm-up
        ("loss_spike@20x8, loss_spike@21x8", (), [20, 21], 0),
        ("loss_spike@20x8, loss_spike@21x8", ("spikes.loss.action=record", "spikes.gradient.action=record"), [], 0),
        ("inf_loss@0, nan_grad@1, inf_loss@20, loss_spike@21x3", (), [0, 1, 20, 21], 0),
    ],
)
def test_s22_bad_values_do_not_become_what_others_are_compared_with(
    faults: str, overrides: tuple[str, ...], skipped: list[int], remembered: int, tmp_path: Path
) -> None:
    """`remembered`: the values of a spike among those known; only a step of the warm-up can bring one in."""
    ever: set[float] = set()

    def then(parts: LoopParts, row: StepRow) -> None:
        ever.update(parts.state.spikes.loss)

    states = watched(tmp_path, "text", *SPIKES, *overrides, f"faults.inject=[{faults}]", then=then)
    assert [row["batch"] for row in rows_of(tmp_path / "run", "skipped")] == skipped
    losses = {row["batch"]: row["loss"] for row in rows_of(tmp_path / "run", "step")}
    spoiled = {int(fault.split("@")[1].split("x")[0]) for fault in faults.split(", ")}
    assert {loss for batch, loss in losses.items() if batch not in spoiled} <= ever
    assert len([loss for loss in ever if loss > 8]) == remembered, "a healthy loss of this model is about 5"
    assert states.found[-1][1]["spikes.steps"] == 24
