"""A rejected step leaves all of a run as it was, but for where it is in the data and what is on record of it."""

import itertools
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from pretrain import syscalls
from pretrain.attempt import start_attempt
from pretrain.batch import Batch
from pretrain.machine.signals import StopRequest
from pretrain.optimizers import OPTIMIZERS
from pretrain.policy.loss_scale import LossScale
from tests.loop.probes import Hook, Unsynced, hook_loss, noise, poison
from tests.loop.states import States, Whole, changed, leave_out, trajectory
from tests.tiny import tiny

ROWS = 2  # of one micro-batch
PRECISIONS = ("float32", "bfloat16", "float16")
# A short text model, and nothing between two steps that would take time.
QUICK = (
    "model.layers=1",
    f"training.batch_size={ROWS}",
    "data.sequence_length=8",
    "checkpoint.checkpoint_every_n_steps=100",
    "validation.validate_every_n_steps=100",
    "guard.max_nan_retries=9",
)
UNCLIPPED = ("training.grad_clip_max_norm=null", "guard.inf_post_clip_threshold=1.0")
KNOWN = 16  # healthy steps before anything is called a spike
SPIKES = (f"spikes.warmup_steps={KNOWN}", f"spikes.window_steps={KNOWN}", "spikes.loss.action=skip")

# Kind of the poison, overrides, healthy steps before the first of it.
KINDS = [
    ("loss", (), 1),
    ("gradient", (), 1),
    ("huge", UNCLIPPED, 1),
    ("spike", SPIKES, KNOWN),
]
# Dropout draws in the refused step itself, and in the experiments of its incident.
DRAWING = ("model.dropout=0.1", "training.activation_checkpointing=selective", "task.chunk_tokens=5")
# Loads are collected in the refused step itself, and in the experiments of its incident.
EXPERTS = ("model.experts={count: 5, balance: 0.01, auxiliary_weight: 0.01}", "training.activation_checkpointing=full")
FEATURES = {"dropout": DRAWING, "experts": EXPERTS}
CASES = [*KINDS, *(("loss", features, 1) for features in FEATURES.values())]
# GaLore is no row of its own; its refresh falls into the steps before and behind a rejected one.
GALORE = "optimizer.use_galore=true optimizer.galore_rank=2 optimizer.galore_update_interval=2"
OPTIMIZER_ROWS = {
    **{name: (f"optimizer.optimizer_class={name}",) for name in OPTIMIZERS},
    **{
        f"{name}_galore": (f"optimizer.optimizer_class={name}", *GALORE.split())
        for name, entry in OPTIMIZERS.items()
        if hasattr(entry.settings(), "use_galore")
    },
}
# The first optimizer under all conditions, and every other one under one of them: a rejected step reaches none.
CONDITIONS = [
    (optimizer, precision, micro_batches)
    for optimizer, precision, micro_batches in itertools.product(OPTIMIZER_ROWS, PRECISIONS, (1, 4))
    if optimizer == next(iter(OPTIMIZERS)) or (precision, micro_batches) == ("float32", 4)
]
MOVED = {"state.batch", "loader"}
REFUSED = {*MOVED, "ledger.retries", "ledger.incidents"}
CLIMBED = {*MOVED, "ledger.incidents", "ledger.ladder.skips", "ledger.ladder.skips_in_a_row"}


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "system", Unsynced())
    # What is huge fits into float16 with it: an overflow of the scale's own is another matter (test_loss_scale.py).
    monkeypatch.setattr("pretrain.build.LossScale", lambda: LossScale(4.0))


def spoil(places: dict[tuple[int, int], str]) -> Hook:
    """Return the hook of `poison`, with a further kind `spike`: loss and gradients are 20 times larger."""
    hook = poison(places)

    def with_spikes(batch: Batch, loss: torch.Tensor) -> torch.Tensor:
        kind = places.get((batch.epoch, batch.position), "")
        return loss * 20 if kind == "spike" else hook(batch, loss)

    return with_spikes


def run(
    folder: Path, name: str, overrides: tuple[str, ...], places: dict[tuple[int, int], str], skipped: set[int]
) -> States:
    """Run to the end with these micro-batches spoiled; no step that begins at one of `skipped` is handed out."""
    with pytest.MonkeyPatch.context() as patch:
        leave_out(patch, skipped)
        hook_loss(patch, noise)
        hook_loss(patch, spoil(places))
        states = States(patch)
        result = start_attempt(tiny(folder, "text", *overrides, run=name), StopRequest(), [states])
    assert result.verdict == "done", result
    return states


@pytest.mark.parametrize(("optimizer", "precision", "micro_batches"), CONDITIONS)
@pytest.mark.parametrize(
    ("kind", "overrides", "healthy"),
    CASES,
    ids=[
        "-".join((kind, *(name for name, features in FEATURES.items() if features[0] in overrides)))
        for kind, overrides, _ in CASES
    ],
)
def test_a_rejected_step_changes_nothing_but_the_position_and_the_record(
    optimizer: str,
    precision: str,
    micro_batches: int,
    kind: str,
    overrides: tuple[str, ...],
    healthy: int,
    tmp_path: Path,
) -> None:
    """One rejected step for each place of the poisoned micro-batch, the first ones in a row, then with a step between.

    What follows is byte for byte the run in whose data the rejected batches never were.
    """
    samples = ROWS * micro_batches
    rejected = [healthy, healthy + 1, healthy + 3, healthy + 5][:micro_batches]
    steps = rejected[-1] + 3 - len(rejected)
    places = {(0, samples * batch + ROWS * place): kind for place, batch in enumerate(rejected)}
    overrides = (
        *QUICK,
        *overrides,
        f"training.max_steps={steps}",
        f"training.precision={precision}",
        f"training.gradient_accumulation_steps={micro_batches}",
        *OPTIMIZER_ROWS[optimizer],
    )
    poisoned = run(tmp_path, "poisoned", overrides, places, set())
    assert [number for number, (action, _) in enumerate(poisoned.found[1:]) if action == "skip"] == rejected
    for (_, before), (action, after) in pairwise(poisoned.found):
        if action == "skip":
            assert_only_the_record(before, after, kind, samples)
        else:
            assert {"state.step", "rng.cpu", "spikes.steps"} <= changed(before, after)
    clean = run(tmp_path, "clean", overrides, {}, {samples * batch for batch in rejected})
    assert [trajectory(after) for _, after in clean.found] == [
        trajectory(after) for action, after in poisoned.found if action != "skip"
    ]


def assert_only_the_record(before: Whole, after: Whole, kind: str, samples: int) -> None:
    """One batch further, one incident more; and a retry of the guard's, or a step up the ladder."""
    left = {"gradients", "ledger.ladder.rung", "ledger.ladder.healthy"}
    assert changed(before, after) - left == (CLIMBED if kind == "spike" else REFUSED)
    assert after["gradients"] == 0
    assert after["state.batch"] == before["state.batch"] + 1
    assert after["loader"] == (0, before["loader"][1] + samples)
    assert after["ledger.incidents"] == before["ledger.incidents"] + 1
    if kind == "spike":
        assert (after["ledger.ladder.rung"], after["ledger.ladder.healthy"]) == (1, 0)
        for count in ("skips", "skips_in_a_row"):
            assert after[f"ledger.ladder.{count}"] == before[f"ledger.ladder.{count}"] + 1
    else:
        assert after["ledger.retries"] == (*before["ledger.retries"], before["state.step"])
        assert {name for name in changed(before, after) if name.startswith("ledger.ladder")} == set()


@pytest.mark.parametrize(
    ("fault", "overrides"),
    [
        ("nan_grad@{}", ()),
        ("inf_loss@{}", ()),
        ("huge_grad@{}x1e+06", UNCLIPPED),
        ("loss_spike@{}x8", SPIKES),
    ],
)
def test_an_injected_fault_changes_nothing_else_but_that_it_has_fired(
    fault: str, overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRETRAIN_ALLOW_FAULTS", "1")
    fault = fault.format(KNOWN)
    inject = f"faults.inject=[{fault}]"
    faulty = run(tmp_path, "faulty", (*QUICK, *overrides, f"training.max_steps={KNOWN + 2}", inject), {}, set())
    (_, before), (action, after), *_ = faulty.found[KNOWN:]
    assert (action, faulty.actions.count("skip")) == ("skip", 1)
    assert after.pop("ledger.faults_fired") == (fault,)
    assert before.pop("ledger.faults_fired") == ()
    assert_only_the_record(before, after, "spike" if overrides == SPIKES else "", ROWS * 2)
