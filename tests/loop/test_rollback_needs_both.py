"""Second moments that are too small: going back without the optimizer meets the same spike again, with it does not."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain import syscalls
from pretrain.attempt import start_attempt
from pretrain.loop import LoopParts
from pretrain.machine.signals import StopRequest
from pretrain.state import RunState, Snapshot
from pretrain.telemetry.sink import StepRow
from tests.loop.probes import Unsynced, newest_attempt
from tests.loop.states import States
from tests.tiny import tiny

HURT = 64  # the step after which the second moments are spoiled; 60 is the newest checkpoint
# A rate that this model bears where all its matrices decay, and second moments that keep what they know, as in a long
# run.
SETTINGS = (
    *("training.max_steps=80", "training.batch_size=4", "model.layers=1", "scheduler={scheduler_type: constant}"),
    *("optimizer.lr=3.0e-2", "optimizer.betas=[0.9, 0.999]", "optimizer.groups.embeddings.weight_decay=0.1"),
    *("checkpoint.checkpoint_every_n_steps=10", "validation.validate_every_n_steps=100"),
    *("spikes.window_steps=16", "spikes.warmup_steps=16", "spikes.healthy_steps=8"),
    *(
        "spikes.loss.action=roll_back",
        "spikes.loss.threshold=12",
        "spikes.update.action=roll_back",
        "spikes.gradient.action=record",
    ),
)


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "system", Unsynced())


def without_the_optimizer(self: RunState, snapshot: Snapshot, real: Any = RunState.go_back) -> None:
    """Go back with everything but the optimizer's tensors, which stay as they are."""
    moments = {name: tensor for name, tensor in self.state_tensors().items() if name.startswith("optimizer.")}
    kept = {name: tensor.clone() for name, tensor in moments.items()}
    real(self, snapshot)
    with torch.no_grad():
        for name, tensor in moments.items():
            tensor.copy_(kept[name])


def run(folder: Path, name: str, seed: int, *, hurt: bool = True, go_back: Any = RunState.go_back) -> list[dict]:
    """Return the rows of a run that is hurt once, from the outside, between two steps."""
    spoiled: list[int] = []

    def spoil(parts: LoopParts, row: StepRow) -> None:
        if hurt and row.step == HURT and not spoiled:
            spoiled.append(row.step)
            for key, tensor in parts.state.state_tensors().items():
                if key.endswith(".exp_avg_sq"):
                    tensor.fill_(1e-12)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunState, "go_back", go_back)
        states = States(patch, spoil)
        config = tiny(folder, "text", *SETTINGS, f"training.seed={seed}", run=name)
        result = start_attempt(config, StopRequest(), [states])
    assert (result.verdict, bool(spoiled)) == ("done", hurt)
    return [json.loads(line) for line in (newest_attempt(folder / name) / "metrics.jsonl").read_text().splitlines()]


def skipped(rows: list[dict]) -> list[int]:
    """Return the steps at which a spike was skipped, in the order of time."""
    return [row["step"] for row in rows if row["event"] == "skipped" and row["reason"] == "spike"]


def last_loss(rows: list[dict]) -> float:
    losses = [row["loss"] for row in rows if row["event"] == "step"]
    return sum(losses[-8:]) / 8


@pytest.mark.parametrize("seed", [1, 4, 8])
def test_going_back_without_the_optimizer_spikes_again_and_with_it_does_not(seed: int, tmp_path: Path) -> None:
    """The third loss in a row that stands out brings the run back; what it comes back with makes the difference."""
    clean, both = run(tmp_path, "clean", seed, hurt=False), run(tmp_path, "both", seed)
    assert skipped(clean) == []
    assert skipped(both) == [HURT + 1] * 3, "one step with the spoiled moments, and no spike after it"
    assert [(row["step"], row["undone_steps"]) for row in both if row["event"] == "rolled_back"] == [(60, 5)]
    assert last_loss(both) < 1.25 * last_loss(clean)
    weights = run(tmp_path, "weights", seed, go_back=without_the_optimizer)
    backs = [number for number, row in enumerate(weights) if row["event"] == "rolled_back"]
    assert weights[: backs[0]] == both[: backs[0]], "the same until then"
    first = next(row["loss"] for row in weights[backs[0] :] if row["event"] == "step")
    again = [row for row in weights[backs[0] :] if row["event"] == "skipped" and row["step"] == 61]
    assert [row["reason"] for row in again] == ["spike"] * 3, "the first step with the moments that did it"
    assert all(row["loss"] > 1.5 * first for row in again)
    assert len(backs) == 2
