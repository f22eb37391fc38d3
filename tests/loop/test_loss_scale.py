"""float16: an overflow that is the scale's halves it and counts as nothing else; what is not is the guard's."""

import csv
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pretrain import syscalls
from pretrain.attempt import AttemptResult, start_attempt
from pretrain.loop import LoopParts
from pretrain.loop import train as loop_train
from pretrain.machine.signals import StopRequest
from pretrain.policy.loss_scale import INITIAL, LossScale
from pretrain.telemetry.sink import Event, StepRow
from tests.loop.lineages import end_of
from tests.loop.probes import Unsynced, digest, hook_loss, last_record, newest_attempt, noise, poison
from tests.tiny import go_on, tiny, train

TASKS = pytest.mark.parametrize("task", ["text", "iq"])
FLOAT16 = "training.precision=float16"
SAMPLES = 4  # of one step of the tiny runs
HUGE = 2.0**30  # the gradient of one logit is a thousandth of it, and 65504 the largest number of float16


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "system", Unsynced())


def begin_at(monkeypatch: pytest.MonkeyPatch, scale: float, interval: int = 2000) -> None:
    monkeypatch.setattr("pretrain.build.LossScale", lambda: LossScale(scale))
    monkeypatch.setattr("pretrain.policy.loss_scale.GROWTH_INTERVAL", interval)


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (newest_attempt(run) / "metrics.jsonl").read_text().splitlines()]


def skipped(run: Path) -> list[dict[str, Any]]:
    return [row for row in rows_of(run) if row["event"] == "skipped"]


class States:
    """A sink that keeps (action, digest, retries, scaler) after each step, the begin of the loop being the first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[tuple[str, str, tuple[int, ...], LossScale | None]] = []
        monkeypatch.setattr("pretrain.attempt.run.train", self._train)

    def _train(self, parts: LoopParts) -> None:
        self.parts = parts
        self._take("begin")
        loop_train(parts)

    def _take(self, action: str) -> None:
        state = self.parts.state
        self.found.append((action, digest(state.tensors()), state.ledger.guard.retries, state.scaler))

    def emit(self, event: Event) -> None:
        """Take the state once a step is over: its row is the last that is shown of it."""
        if isinstance(event, StepRow):
            self._take(event.action)

    def close(self) -> None:
        """Nothing is open."""


def watched(monkeypatch: pytest.MonkeyPatch, folder: Path, task: str, *overrides: str) -> tuple[AttemptResult, States]:
    states = States(monkeypatch)
    return start_attempt(tiny(folder, task, FLOAT16, *overrides), StopRequest(), [states]), states


@TASKS
def test_a_scale_that_is_too_large_is_halved_until_it_trains(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More overflows than guard.max_nan_retries; each leaves every tensor and the budget of the guard as they were."""
    hook_loss(monkeypatch, noise)
    begin_at(monkeypatch, HUGE)
    result, states = watched(monkeypatch, tmp_path, task)
    assert (result.verdict, result.step) == ("done", 12)
    rows, found = skipped(tmp_path / "run"), states.found
    overflows = len(rows)
    assert overflows > 4
    assert {(row["reason"], row["retries"], row["incident"]) for row in rows} == {("non_finite_norm", 0, None)}
    assert all(row["gradient_norm"] in ("inf", "nan") for row in rows)
    assert [row["step"] for row in rows] == sorted(row["step"] for row in rows)
    for (_, before, _, scaler), (action, after, retries, now) in pairwise(found):
        assert retries == ()
        assert scaler is not None
        if action == "skip":
            assert (before, now) == (after, LossScale(scaler.scale / 2, 0))
        else:
            assert (action, now) == ("accept", LossScale(scaler.scale, scaler.growth_tracker + 1))
            assert before != after
    scaler = {"scale": HUGE / 2**overflows, "growth_tracker": found[-1][3].growth_tracker}
    assert last_record(tmp_path / "run").scalars["scaler"] == scaler
    manifest = json.loads((newest_attempt(tmp_path / "run") / "manifest.json").read_text())
    assert (manifest["counts"]["skipped"], manifest["counts"]["incidents"]) == (overflows, 0)
    with (newest_attempt(tmp_path / "run") / "telemetry.csv").open() as log:
        scales = [float(row["loss_scale"]) for row in csv.DictReader(log)]
    assert scales == [state[3].scale for state in found[:-1]], "the one that the step was taken with"


@TASKS
def test_s9_stopped_anywhere_while_the_scale_moves_it_ends_in_the_same_bytes(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down at first, up again, beside refused steps; the loss draws from the generator."""
    hook_loss(monkeypatch, noise)
    hook_loss(monkeypatch, poison({(0, SAMPLES * 9): "gradient", (0, SAMPLES * 11): "loss"}))
    begin_at(monkeypatch, 2.0**26, interval=2)
    overrides = (FLOAT16, "training.max_steps=8", "model.layers=1", "checkpoint.checkpoint_every_n_steps=3")
    assert train(tiny(tmp_path, task, *overrides, run="untouched")).verdict == "done"
    refused = skipped(tmp_path / "untouched")
    assert {row["incident"] for row in refused} == {None, 1, 2}
    for stop in range(1, 8 + len(refused)):
        assert train(tiny(tmp_path, task, *overrides, run=f"run-{stop}"), stop).verdict == "interrupted"
        result = go_on(tmp_path / f"run-{stop}", stop_after=4)
        while result.verdict == "interrupted":
            result = go_on(tmp_path / f"run-{stop}")
        assert end_of(tmp_path / f"run-{stop}") == end_of(tmp_path / "untouched"), f"stopped after {stop} batches"


@TASKS
@pytest.mark.parametrize(
    ("kind", "overrides", "reason"),
    [
        ("loss", (), "non_finite_loss"),
        ("gradient", (), "non_finite_norm"),
        ("huge", ("training.grad_clip_max_norm=null", "guard.inf_post_clip_threshold=1.0"), "post_clip"),
    ],
)
def test_a_refused_step_leaves_the_scaler_as_it_was(
    task: str, kind: str, overrides: tuple[str, ...], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients that are not finite at any scale are the guard's: they count, and the scale is not at fault."""
    hook_loss(monkeypatch, noise)
    hook_loss(monkeypatch, poison({(0, SAMPLES * 2): kind, (0, SAMPLES * 5 + 2): kind}))
    begin_at(monkeypatch, 4.0)  # huge gradients fit into float16 with it
    result, states = watched(monkeypatch, tmp_path, task, "training.max_steps=6", *overrides)
    assert result.verdict == "done"
    found = states.found
    actions = [action for action, *_ in found]
    assert " ".join(actions) == "begin accept accept skip accept accept skip accept accept"
    for (_, before, _, scaler), (action, after, _, now) in pairwise(found):
        assert ((before, scaler) == (after, now)) == (action == "skip")
    assert found[-1][2:] == ((2, 4), LossScale(4.0, 6))
    assert [(row["reason"], row["retries"], row["incident"]) for row in skipped(tmp_path / "run")] == [
        (reason, 0, 1),
        (reason, 1, 2),
    ]


@TASKS
@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_data_that_is_never_finite_ends_with_exit_code_4(
    task: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook_loss(monkeypatch, poison({(0, SAMPLES * batch): kind for batch in range(40)}))
    result, states = watched(monkeypatch, tmp_path, task)
    assert (result.verdict, result.exit_code, result.step) == ("diverged", 4, 0)
    assert [(action, scaler) for action, *_, scaler in states.found[1:]] == [
        *[("skip", LossScale(INITIAL))] * 3,
        ("fail", LossScale(INITIAL)),
    ]


@pytest.mark.parametrize("in_memory", [0, 1])
def test_a_rollback_puts_the_scaler_back(in_memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETRAIN_ALLOW_FAULTS", "1")
    begin_at(monkeypatch, 4.0, interval=3)
    overrides = ("faults.inject=[nan_weight@6]", f"spikes.targets_in_memory={in_memory}")
    result, states = watched(monkeypatch, tmp_path, "text", *overrides)
    assert result.verdict == "done"
    scalers = {action: scaler for action, *_, scaler in states.found if action == "roll_back"}
    assert scalers == {"roll_back": LossScale(8.0, 1)}, "that of step 4"
    assert max(scaler.scale for *_, scaler in states.found[:9] if scaler is not None) == 16.0
    assert last_record(tmp_path / "run").scalars["scaler"] == {"scale": 64.0, "growth_tracker": 0}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_other_precisions_have_no_scaler(precision: str, tmp_path: Path) -> None:
    assert train(tiny(tmp_path, "text", f"training.precision={precision}")).verdict == "done"
    assert last_record(tmp_path / "run").scalars["scaler"] is None
    with (newest_attempt(tmp_path / "run") / "telemetry.csv").open() as log:
        assert {row["loss_scale"] for row in csv.DictReader(log)} == {""}


def test_it_goes_through_a_checkpoint_and_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, states = watched(monkeypatch, tmp_path, "text", "training.max_steps=1")
    state = states.parts.state
    state.scaler = LossScale(2.0, 7)
    scalars, snapshot = state.scalars(), state.snapshot()
    assert scalars["scaler"] == {"scale": 2.0, "growth_tracker": 7}
    state.scaler = LossScale()
    state.go_back(snapshot)
    assert state.scaler == LossScale(2.0, 7)
    state.scaler = LossScale()
    state.restore_scalars(1, 1, scalars)
    assert state.scaler == LossScale(2.0, 7)
