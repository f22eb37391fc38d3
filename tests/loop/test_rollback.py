"""A run that is hurt goes back with all of its trajectory, and ends in the same bytes however often it is stopped."""

import json
from pathlib import Path

import pytest

from pretrain.attempt import AttemptResult
from pretrain.evidence import checkpoint
from tests.tiny import go_on, tiny, train

QUICK = (
    "training.max_steps=60",
    "checkpoint.checkpoint_every_n_steps=10",
    "validation.validate_every_n_steps=10",
    "spikes.window_steps=16",
    "spikes.warmup_steps=16",
    "spikes.healthy_steps=8",
    "optimizer.lr=1.0e-3",
)
FAULTS = "faults.inject=[nan_weight@33]"


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETRAIN_ALLOW_FAULTS", "1")


def newest(run_dir: Path) -> Path:
    return max((run_dir / "attempts").iterdir())


def rows(run_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (newest(run_dir) / "metrics.jsonl").read_text().splitlines()]


def end_of(result: AttemptResult, run_dir: Path) -> tuple[str, bytes]:
    assert result.verdict == "done", result
    assert result.checkpoint is not None
    return result.checkpoint.record_sha256, (newest(run_dir) / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("task", ["text", "iq"])
@pytest.mark.parametrize(
    ("faults", "events"),
    [
        ("[nan_weight@33]", {"skipped": 1, "rolled_back": 1}),
        ("[nan_grad@33, inf_loss@35]", {"skipped": 2, "rolled_back": 0}),
        ("[loss_spike@33x8]", {"skipped": 1, "rolled_back": 0}),
        ("[loss_spike@33x8, loss_spike@34x8, loss_spike@35x8]", {"skipped": 3, "rolled_back": 1}),
    ],
)
def test_it_recovers_and_ends_done(tmp_path: Path, task: str, faults: str, events: dict[str, int]):
    config = tiny(tmp_path, task, *QUICK, f"faults.inject={faults}")
    result = train(config)
    assert result.verdict == "done", result
    found = rows(tmp_path / "run")
    assert {name: sum(row["event"] == name for row in found) for name in events} == events
    assert [row["step"] for row in found if row["event"] == "step"][-1] == 60
    manifest = json.loads((tmp_path / "run/attempts/0001/manifest.json").read_text())
    assert manifest["faults"] == faults.strip("[]").split(", ")


def test_what_was_undone_is_on_record(tmp_path: Path):
    config = tiny(tmp_path, "text", *QUICK, "faults.inject=[nan_weight@33]")
    train(config)
    back = next(row for row in rows(tmp_path / "run") if row["event"] == "rolled_back")
    assert (back["step"], back["undone_steps"], back["quarantined"]) == (30, 4, [30, 34])
    after = [row for row in rows(tmp_path / "run") if row["event"] == "step"][34]
    assert (after["step"], after["batch"]) == (31, 35)


def test_the_bias_of_experts_goes_back_with_the_weights(tmp_path: Path):
    """By the copy in memory as by the files; and what is not finite in it is damage like any other."""
    experts = "model.experts={count: 5, balance: 0.01}"
    for name, copies in (("memory", 1), ("files", 0)):
        config = tiny(tmp_path, "text", *QUICK, experts, f"spikes.targets_in_memory={copies}", FAULTS, run=name)
        assert train(config).verdict == "done"
    assert rows(tmp_path / "memory") == rows(tmp_path / "files")
    found = [
        checkpoint.read_record(newest(tmp_path / name) / "checkpoints/step_00000060") for name in ("memory", "files")
    ]
    assert found[0].content_sha256 == found[1].content_sha256


@pytest.mark.parametrize("stop_after", [29, 30, 31, 33, 34, 35, 36, 40, 43, 44, 50])
def test_stopped_inside_the_incident_it_ends_in_the_same_bytes(tmp_path: Path, stop_after: int):
    faults = "faults.inject=[loss_spike@31x8, loss_spike@32x8, loss_spike@33x8, nan_weight@40]"
    reference = end_of(train(tiny(tmp_path, "text", *QUICK, faults, run="a")), tmp_path / "a")
    first = train(tiny(tmp_path, "text", *QUICK, faults, run="b"), stop_after)
    assert first.verdict == "interrupted"
    result = go_on(tmp_path / "b", stop_after=3)
    while result.verdict == "interrupted":
        result = go_on(tmp_path / "b", stop_after=12)
    assert end_of(result, tmp_path / "b") == reference


def test_the_budget_of_rollbacks_ends_the_attempt(tmp_path: Path):
    faults = ", ".join(f"nan_weight@{batch}" for batch in range(31, 60))
    result = train(tiny(tmp_path, "text", *QUICK, f"faults.inject=[{faults}]"))
    assert (result.verdict, result.exit_code) == ("diverged", 4)
    assert sum(row["event"] == "rolled_back" for row in rows(tmp_path / "run")) == 3
    assert not (tmp_path / "run/attempts/0001/manifest.json").exists()


def test_faults_need_the_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PRETRAIN_ALLOW_FAULTS")
    with pytest.raises(Exception, match="PRETRAIN_ALLOW_FAULTS=1"):
        train(tiny(tmp_path, "text", "faults.inject=[nan_grad@3]"))
    assert not (tmp_path / "run").exists()
