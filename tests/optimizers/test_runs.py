"""Whole runs: stopped in mid-interval and resumed, with a step refused at a refresh, and without a basis (case S48)."""

import json
from pathlib import Path

import pytest
import torch

from pretrain.attempt import start_attempt
from pretrain.evidence import inspection
from pretrain.machine.signals import StopRequest
from pretrain.optimizers import OPTIMIZERS
from pretrain.telemetry.sink import Begin
from tests.loop.probes import hook_loss, poison
from tests.tiny import Recorder, go_on, tiny, train

GALORE = ("optimizer.use_galore=true", "optimizer.galore_rank=4", "optimizer.galore_update_interval=4")
RUNS = {
    "adamw-galore": GALORE,
    "adafactor-galore": ("optimizer.optimizer_class=adafactor", *GALORE),
    "apollo": ("optimizer.optimizer_class=apollo", "optimizer.update_interval=4"),
    "apollo_mini": ("optimizer.optimizer_class=apollo_mini", "optimizer.update_interval=4"),
    **{name: (f"optimizer.optimizer_class={name}",) for name in ("sgd", "adafactor", "muon", "lion")},
}


def test_every_row_has_a_run() -> None:
    assert {name.partition("-")[0] for name in RUNS} == set(OPTIMIZERS)


@pytest.mark.parametrize("name", sorted(RUNS))
@pytest.mark.parametrize("stop_after", [1, 6])
def test_s48_stopped_in_mid_interval_and_resumed_it_ends_in_the_same_bytes(
    name: str, stop_after: int, tmp_path: Path
) -> None:
    whole = train(tiny(tmp_path, "text", *RUNS[name], run="whole"))
    stopped = train(tiny(tmp_path, "text", *RUNS[name], run="stopped"), stop_after)
    resumed = go_on(tmp_path / "stopped")
    assert (whole.verdict, stopped.verdict, resumed.verdict) == ("done", "interrupted", "done")
    assert resumed.checkpoint is not None
    assert whole.checkpoint is not None
    assert resumed.checkpoint.record_sha256 == whole.checkpoint.record_sha256
    rows = [(tmp_path / run / "metrics.jsonl").read_bytes() for run in ("whole/attempts/0001", "stopped/attempts/0002")]
    assert rows[0] == rows[1]


def test_a_step_that_is_refused_at_a_refresh_is_explained_and_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gradient has no singular vectors, and neither the step nor the search for its cause asks for them."""
    hook_loss(monkeypatch, poison({(0, 16): "gradient"}))  # the batch of step 4, of 4 samples
    result = train(tiny(tmp_path, "text", *GALORE))
    assert result.verdict == "done"
    (found,) = (tmp_path / "run/attempts/0001/incidents").iterdir()
    incident = json.loads(found.read_text())
    assert (incident["step"], incident["batch"], incident["action"]) == (4, 4, "skip")
    assert incident["moments"]["update_norm"] == "nan"
    assert incident["experiments"]["fresh_moments"]["update_norm"] == "nan"


def test_a_run_whose_gradient_has_no_basis_ends_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    svd, calls = torch.linalg.svd, []

    def fail_later(matrix: torch.Tensor, full_matrices: bool) -> object:
        calls.append(matrix.shape)
        if len(calls) > 20:
            raise torch.linalg.LinAlgError("linalg.svd: the algorithm failed to converge")
        return svd(matrix, full_matrices=full_matrices)

    monkeypatch.setattr(torch.linalg, "svd", fail_later)
    result = train(tiny(tmp_path, "text", *GALORE))
    assert (result.verdict, result.exit_code) == ("diverged", 4)
    outcome = json.loads((tmp_path / "run/attempts/0001/outcome.json").read_text())
    assert outcome["step"] == 4
    # The 21st of 14 matrices at each refresh.
    assert "model.layers.0.mlp.down_proj.weight: GaLore finds no basis for its gradient" in outcome["reason"]
    assert "optimizer.use_galore=false" in outcome["advice"]


@pytest.mark.parametrize("name", ["adamw-galore", "lion"])
def test_the_bytes_of_the_state_are_said_at_the_start_and_of_a_checkpoint(name: str, tmp_path: Path) -> None:
    recorder = Recorder()
    start_attempt(tiny(tmp_path, "text", *RUNS[name], "training.max_steps=1"), StopRequest(), [recorder])
    (begin,) = [event for event in recorder.events if isinstance(event, Begin)]
    held = inspection.inspect(tmp_path / "run/attempts/0001/checkpoints/step_00000001")
    assert dict(begin.details)["model"].endswith(f"optimizer state {held['optimizer_bytes']:,} bytes")
    moments = sum(4 * torch.Size(row["shape"]).numel() for row in held["tensors"] if row["name"].startswith("model."))
    assert held["optimizer_bytes"] == moments if name == "lion" else held["optimizer_bytes"] < 2 * moments
