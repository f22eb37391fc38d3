"""Experts in a run: the bias moves once for each step that was taken, by the loads of all of its micro-batches."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain import syscalls
from pretrain.attempt import start_attempt
from pretrain.machine.signals import StopRequest
from pretrain.models import routers
from pretrain.telemetry.sink import Begin
from tests.loop.probes import Unsynced, last_record, newest_attempt
from tests.loop.states import States
from tests.tiny import Recorder, tiny, train

EXPERTS = "model.experts={count: 5, balance: 0.25, router_z_weight: 0.01}"
WATCHED = "monitors.experts.every_n_steps=1"
QUICK = ("training.max_steps=6", "checkpoint.checkpoint_every_n_steps=6", "validation.validate_every_n_steps=2")


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "system", Unsynced())


def rows_of(run: Path, event: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (newest_attempt(run) / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["event"] == event]


@pytest.mark.parametrize("how", ["none", "full"])
def test_the_bias_moves_by_the_loads_of_each_step_that_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """With validations between, two micro-batches in a step and a refused step, whose loads are dropped."""
    monkeypatch.setenv("PRETRAIN_ALLOW_FAULTS", "1")
    biases: list[dict[str, torch.Tensor]] = []

    def keep(parts: Any, *_: Any) -> None:
        model = parts.state.model
        biases.append({name: gate.get_buffer("e_score_correction_bias").clone() for name, gate in routers(model)})

    states = States(monkeypatch, keep, keep)
    checkpointing = f"training.activation_checkpointing={how}"
    config = tiny(tmp_path, "text", *QUICK, EXPERTS, WATCHED, checkpointing, "faults.inject=[nan_grad@3]")
    assert start_attempt(config, StopRequest(), [states]).verdict == "done"
    moved = [(before, after) for before, after in pairwise(biases) if not same(before, after)]
    assert (len(biases), len(moved)) == (8, 6)
    looks = rows_of(tmp_path / "run", "monitor")
    assert [row["step"] for row in looks] == [1, 2, 3, 4, 5, 6]
    for (before, after), row in zip(moved, looks, strict=True):
        for name, bias in before.items():
            loads = torch.tensor([row["values"]["load"][f"{name}.{expert}"] for expert in range(5)])
            # As many choices as five experts cannot share out: no load is the mean.
            assert torch.equal(after[name], bias + 0.25 * torch.sign(0.2 - loads))
            assert row["values"]["load_entropy"][name] <= 1.0


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("task", ["text", "iq"])
def test_watched_or_not_the_weights_and_the_other_rows_are_the_same(tmp_path: Path, task: str, precision: str) -> None:
    common = (*QUICK, EXPERTS, f"training.precision={precision}", "training.activation_checkpointing=selective")
    assert train(tiny(tmp_path, task, *common, run="off")).verdict == "done"
    assert train(tiny(tmp_path, task, *common, WATCHED, run="on")).verdict == "done"
    off, on = (last_record(tmp_path / run) for run in ("off", "on"))
    assert on.content_sha256 == off.content_sha256
    for event in ("step", "validation"):
        assert rows_of(tmp_path / "on", event) == rows_of(tmp_path / "off", event)


def test_a_bias_that_is_not_finite_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(parts: Any, row: Any) -> None:
        if row.step == 5:
            (_, gate), *_ = routers(parts.state.model)
            assert parts.state.is_finite()
            gate.get_buffer("e_score_correction_bias")[1] = torch.inf
            assert not parts.state.is_finite()

    config = tiny(tmp_path, "text", *QUICK, EXPERTS, "training.max_steps=6", "spikes.max_rollbacks=1")
    result = start_attempt(config, StopRequest(), [States(monkeypatch, spoil)])
    assert result.verdict == "diverged"
    assert len(rows_of(tmp_path / "run", "rolled_back")) == 1


def test_the_first_lines_say_how_many_parameters_are_active(tmp_path: Path) -> None:
    shown = Recorder()
    config = tiny(tmp_path, "text", "training.max_steps=1", EXPERTS)
    assert start_attempt(config, StopRequest(), [shown]).verdict == "done"
    (begin,) = (event for event in shown.events if isinstance(event, Begin))
    each = 3 * 16 * 32  # three matrices of an expert of half the feed-forward layer's 64
    total = rows_of(tmp_path / "run", "begin")[0]["parameters"]
    assert dict(begin.details)["model"].startswith(
        f"decoder, {total:,} parameters, {total - 2 * 3 * each:,} of them active at a position; "
    )
