"""What `plan` says of a run is what the run then has: parameters, state, copies, checkpoints."""

from pathlib import Path

import pytest

from pretrain.attempt import start_attempt
from pretrain.evidence.checkpoint import list_checkpoints
from pretrain.machine.signals import StopRequest
from pretrain.plan import costs_of
from pretrain.policy.retention import most_checkpoints
from pretrain.telemetry.sink import Begin
from tests.tiny import Recorder, tiny

# Every optimizer and GaLore: what each keeps has another shape.
RUNS = [
    ("text", "optimizer.optimizer_class=adamw"),
    ("text", "optimizer.optimizer_class=sgd"),
    ("text", "optimizer.optimizer_class=adafactor"),
    ("text", "optimizer.optimizer_class=muon", "model.parametrization=mup"),
    ("text", "optimizer.optimizer_class=lion", "model.tie_embeddings=false"),
    ("text", "optimizer.optimizer_class=apollo"),
    ("text", "optimizer.optimizer_class=apollo_mini"),
    ("text", "optimizer.use_galore=true", "optimizer.galore_rank=4", "model.size=null"),
    ("iq", "spikes.targets_in_memory=2"),
]


@pytest.mark.parametrize("words", RUNS, ids=lambda words: " ".join(words))
def test_a_run_has_what_was_planned(tmp_path: Path, words: tuple[str, ...]) -> None:
    config = tiny(tmp_path, words[0], "training.max_steps=5", *words[1:])
    costs = costs_of(config)
    assert not (tmp_path / "run").exists()
    recorder = Recorder()
    start_attempt(config, StopRequest(), [recorder])
    begin = next(event for event in recorder.events if isinstance(event, Begin))
    lines = dict(begin.details)
    optimizer = costs.memory["optimizer"]
    assert lines["model"] == f"decoder, {costs.parameters:,} parameters; optimizer state {optimizer:,} bytes"
    assert lines["going back"].endswith(f"in memory, {costs.memory['rollback copies']:,} bytes")
    assert lines["step"].endswith(f"= {costs.windows_of_step} windows")
    assert costs.memory["parameters"] == costs.memory["gradients"] == 4 * costs.parameters
    assert sum(costs.roles.values()) == costs.parameters
    saved = list_checkpoints(tmp_path / "run" / "attempts" / "0001")
    sizes = {(folder / "shard_00000.safetensors").stat().st_size for _, folder in saved}
    assert sizes == {costs.checkpoint_bytes}
    assert len(saved) == costs.kept == 3  # of steps 0, 4 and 5
    assert costs.disk_bytes == 4 * costs.checkpoint_bytes


def test_flops_are_six_for_each_parameter_of_a_matrix_and_those_of_attention(tmp_path: Path) -> None:
    costs = costs_of(tiny(tmp_path))
    matrices = costs.parameters - costs.roles["norms"]
    positions = 2 * 2 * 16  # micro-batches, windows of each, positions of each
    assert costs.positions == positions
    assert costs.flops == positions * (6 * matrices + 12 * 2 * 16 * 16)
    answer = costs.answer()
    assert answer["run"]["flops"] == 12 * costs.flops
    assert answer["run"]["epochs"] == pytest.approx(12 * 4 / costs.windows)
    assert answer["memory"]["total"] == sum(costs.memory.values())
    assert answer["config"]["model"]["width"] == 16


def test_a_model_that_no_memory_holds_is_planned_at_once(tmp_path: Path) -> None:
    costs = costs_of(
        tiny(
            tmp_path,
            "text",
            "model.size=llama-7b",
            "model.width=4096",
            "model.heads=32",
            "model.kv_heads=32",
            "model.layers=32",
            "model.ffn_width=11008",
        )
    )
    assert costs.roles["attention"] == 32 * 4 * 4096 * 4096
    assert costs.roles["feed_forward"] == 32 * 3 * 4096 * 11008
    assert costs.memory["optimizer"] > 50e9
    assert f"{costs.parameters:,}" in costs.text()


def test_a_run_on_a_gpu_is_planned_without_one(tmp_path: Path) -> None:
    here, there = (costs_of(tiny(tmp_path, "text", f"training.device={device}")) for device in ("cpu", "cuda"))
    assert there.memory["rollback copies"] == here.memory["rollback copies"] + 16
    assert there.parameters == here.parameters


@pytest.mark.parametrize(
    ("kept", "overrides"),
    [
        (3, ["training.max_steps=12"]),  # 8, 12, and 4 where that is the best
        (3, ["training.max_steps=12", "checkpoint.num_best_checkpoints=0", "checkpoint.keep_every_n_steps=12"]),
        (2, ["training.max_steps=12", "checkpoint.num_best_checkpoints=0"]),
        (3, ["training.max_steps=11", "checkpoint.num_best_checkpoints=0"]),  # 4, 8 and the end
        (3, ["training.max_steps=12", "checkpoint.num_best_checkpoints=5"]),
        (2, ["training.max_steps=4", "checkpoint.num_best_checkpoints=1"]),
        (13, ["training.max_steps=12", "checkpoint.checkpoint_every_n_steps=1", "checkpoint.keep_every_n_steps=1"]),
    ],
)
def test_most_checkpoints(tmp_path: Path, kept: int, overrides: list[str]) -> None:
    config = tiny(tmp_path, "text", *overrides)
    steps = config.training.max_steps
    assert most_checkpoints(config.checkpoint, config.validation.validate_every_n_steps, steps) == kept
