"""Monitors in a run: they change no bit of it, and raise the alarm for the fault that they watch, and no other."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain import syscalls
from pretrain.attempt import start_attempt
from pretrain.data import loader
from pretrain.evidence.metrics import counts
from pretrain.loop import LoopParts
from pretrain.machine.signals import StopRequest
from pretrain.models import CHECKPOINTING
from pretrain.telemetry.sink import Note, StepRow
from tests.loop.lineages import end_of
from tests.loop.probes import Unsynced, hook_loss, last_record, newest_attempt, noise
from tests.loop.states import States
from tests.tiny import Recorder, go_on, tiny, train

EVERY = tuple(
    f"monitors.{name}.every_n_steps={every}"
    for name, every in [("blocks", 2), ("activations", 1), ("attention", 3), ("mixture", 3), ("regression", 1)]
)
# What the usual cadences are to a long run.
OFTEN = tuple(
    f"monitors.{name}.every_n_steps={every}"
    for name, every in [("blocks", 5), ("activations", 5), ("attention", 5), ("mixture", 20), ("regression", 1)]
)
QUICK = (
    "training.max_steps=160",
    "training.gradient_accumulation_steps=1",
    "checkpoint.checkpoint_every_n_steps=40",
    "validation.validate_every_n_steps=40",
    "spikes.loss.action=record",
    "spikes.gradient.action=record",
    "optimizer.lr=1.0e-3",
)
MONITOR_EVENTS = ("monitor", "mixture", "alarm")


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "system", Unsynced())


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (newest_attempt(run) / "metrics.jsonl").read_text().splitlines()]


def raised(run: Path) -> dict[str, int]:
    """Return the step at which each alarm was first raised."""
    found: dict[str, int] = {}
    for row in rows_of(run):
        if row["event"] == "alarm" and row["state"] == "raised":
            found.setdefault(row["name"], row["step"])
    return found


# --- inert ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("task", ["text", "iq"])
def test_on_or_off_the_weights_and_the_other_rows_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, precision: str
) -> None:
    hook_loss(monkeypatch, noise)
    common = (f"training.precision={precision}", "training.max_steps=8")
    assert train(tiny(tmp_path, task, *common, run="off")).verdict == "done"
    assert train(tiny(tmp_path, task, *common, *EVERY, run="on")).verdict == "done"
    off, on = (last_record(tmp_path / run) for run in ("off", "on"))
    assert on.content_sha256 == off.content_sha256
    watched = rows_of(tmp_path / "on")
    assert [row for row in watched if row["event"] not in MONITOR_EVENTS] == rows_of(tmp_path / "off")
    seen = [(row["step"], row.get("name", "mixture")) for row in watched if row["event"] in ("monitor", "mixture")]
    at = {"blocks": 2, "activations": 1, "attention": 3, "mixture": 3}
    assert seen == [(step, name) for step in range(1, 9) for name, every in at.items() if step % every == 0]


@pytest.mark.parametrize("task", ["text", "iq"])
def test_blocks_that_are_computed_again_are_seen_once(tmp_path: Path, task: str) -> None:
    """Weights and all rows, those of the monitors among them, are the same with any activation checkpointing."""
    common = (
        "training.precision=bfloat16",
        "training.max_steps=8",
        "model.dropout=0.1",
        "model.sliding_window=5",
        *EVERY,
    )
    found = []
    for how in CHECKPOINTING:
        config = tiny(tmp_path, task, *common, f"training.activation_checkpointing={how}", run=how)
        assert train(config).verdict == "done"
        found.append((last_record(tmp_path / how).content_sha256, rows_of(tmp_path / how)))
    assert found[0] == found[1] == found[2]
    assert {row["name"] for row in found[0][1] if row["event"] == "monitor"} == {"blocks", "activations", "attention"}


@pytest.mark.parametrize("task", ["text", "iq"])
def test_stopped_after_every_step_the_rows_and_what_is_remembered_are_the_same(tmp_path: Path, task: str) -> None:
    whole = tiny(tmp_path, task, *EVERY, run="whole")
    assert train(whole).verdict == "done"
    config = tiny(tmp_path, task, *EVERY, run="stopped")
    result = train(config, stop_after=1)
    while result.verdict != "done":
        result = go_on(tmp_path / "stopped", stop_after=1)
    assert end_of(tmp_path / "stopped") == end_of(tmp_path / "whole")
    assert last_record(tmp_path / "whole").scalars["spikes"]["monitors"].keys() >= {
        "blocks block_update_high model.layers.0",
        "activations model.layers.1",
        f"regression {'letters' if task == 'text' else 'signals'}",
    }


def test_a_refused_step_leaves_nothing_in_a_monitor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETRAIN_ALLOW_FAULTS", "1")
    states = States(monkeypatch)
    config = tiny(tmp_path, "text", *EVERY, "faults.inject=[nan_grad@5]")
    assert start_attempt(config, StopRequest(), [states]).verdict == "done"
    assert states.actions.split()[6] == "skip"
    before, after = (
        {name: value for name, value in states.found[at][1].items() if name.startswith("monitors.")} for at in (5, 6)
    )
    assert before == after
    assert "monitors.mixture letters" in before


def test_a_rollback_takes_what_is_remembered_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETRAIN_ALLOW_FAULTS", "1")
    states = States(monkeypatch)
    config = tiny(tmp_path, "text", *EVERY, "faults.inject=[nan_weight@6]")
    assert start_attempt(config, StopRequest(), [states]).verdict == "done"
    at = states.actions.split().index("roll_back")
    target = rows_of(tmp_path / "run")
    (step,) = (row["step"] for row in target if row["event"] == "rolled_back")
    kept = {name: value for name, value in states.found[step][1].items() if name.startswith("monitors.")}
    assert kept == {name: value for name, value in states.found[at][1].items() if name.startswith("monitors.")}


def test_with_all_of_them_off_no_module_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a hook was set")

    monkeypatch.setattr(torch.nn.Module, "register_forward_hook", refuse)
    assert train(tiny(tmp_path, "text")).verdict == "done"


# --- each fault, made ----------------------------------------------------------------------------------


def scale(names: str, factor: float) -> Callable[[LoopParts], None]:
    """Return what multiplies every parameter whose name holds `names`."""

    def change(parts: LoopParts) -> None:
        with torch.no_grad():
            for name, parameter in parts.state.model.named_parameters():
                if names in name:
                    parameter.mul_(factor)

    return change


def run_with(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    task: str,
    change: Callable[[LoopParts], None],
    steps: Callable[[int], bool],
    *overrides: str,
) -> Recorder:
    """Run with all monitors on, the model changed after the steps for which `steps` holds."""

    def then(parts: LoopParts, row: StepRow) -> None:
        if steps(row.step):
            change(parts)

    shown = Recorder()
    config = tiny(tmp_path, task, *QUICK, *OFTEN, *overrides)
    assert start_attempt(config, StopRequest(), [States(monkeypatch, then), shown]).verdict == "done"
    return shown


TASKS = pytest.mark.parametrize("task", ["text", "iq"])


@TASKS
def test_a_block_whose_activations_explode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    shown = run_with(tmp_path, monkeypatch, task, scale("layers.1.mlp.down_proj", 3000.0), lambda step: step == 122)
    assert raised(tmp_path / "run")["activation_explosion"] == 125
    assert counts(newest_attempt(tmp_path / "run") / "metrics.jsonl").alarms["activation_explosion"] == 1
    notes = [event.text for event in shown.events if isinstance(event, Note) and "activation_explosion" in event.text]
    assert notes[0].startswith("activation_explosion of model.layers.1 raised at step 125: ")
    manifest = json.loads((newest_attempt(tmp_path / "run") / "manifest.json").read_text())
    assert manifest["counts"]["alarms"]["activation_explosion"] == 1


@TASKS
def test_attention_whose_entropy_collapses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    run_with(tmp_path, monkeypatch, task, scale("layers.0.self_attn.q_proj", 20000.0), lambda step: step == 122)
    found = raised(tmp_path / "run")
    assert found["attention_entropy"] == found["attention_logit"] == 125


@TASKS
def test_a_block_that_gets_no_gradient_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    def deaden(parts: LoopParts) -> None:
        scale("layers.1.self_attn.o_proj", 1e-6)(parts)
        scale("layers.1.self_attn.v_proj", 1e-6)(parts)
        scale("layers.1.mlp", 1e-6)(parts)

    run_with(tmp_path, monkeypatch, task, deaden, lambda step: step == 122)
    assert raised(tmp_path / "run")["block_gradient_low"] == 125


@TASKS
def test_a_block_whose_gradient_leaves_the_others_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    """As a kernel would do that is wrong for one shape."""

    def spoil(parts: LoopParts) -> None:
        for name, parameter in parts.state.model.named_parameters():
            if "layers.1." in name:
                parameter.register_hook(lambda gradient: gradient * 1000.0)

    run_with(tmp_path, monkeypatch, task, spoil, lambda step: step == 122)
    assert raised(tmp_path / "run")["block_gradient_high"] == 125


@TASKS
def test_a_validation_that_becomes_worse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    overrides = ("validation.validate_every_n_steps=10",)
    run_with(tmp_path, monkeypatch, task, scale("model.norm.weight", -3.0), lambda step: step == 122, *overrides)
    rows = [row for row in rows_of(tmp_path / "run") if row["event"] == "alarm" and "regression" in row["name"]]
    assert next((row["step"], row["state"]) for row in rows) == (130, "raised")
    assert {row["subject"] for row in rows} == {"letters" if task == "text" else "signals"}


def test_training_data_that_is_mixed_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An order that gives one domain first, as a loader without a shuffle would."""
    domains = ("data.train.signals.windows=600", "data.train.noise={source: synthetic-iq, windows: 180}")
    run = (*QUICK, *OFTEN, *domains, "training.batch_size=8")
    assert train(tiny(tmp_path, "iq", *run, run="shuffled")).verdict == "done"
    assert "mixture_drift" not in raised(tmp_path / "shuffled")
    real = loader.consecutive

    def in_the_order_of_the_data(position: int, count: int, windows: int, seed: int, epoch: int) -> Any:
        found = real(position, count, windows, seed, epoch)
        found[:] = range(position, position + count)
        return found

    monkeypatch.setattr(loader, "consecutive", in_the_order_of_the_data)
    assert train(tiny(tmp_path, "iq", *run, run="sorted")).verdict == "done"
    assert raised(tmp_path / "sorted")["mixture_drift"] == 20
    shares = [row["shares"] for row in rows_of(tmp_path / "sorted") if row["event"] == "mixture"]
    assert shares[:4] == [{"noise": 0.0, "signals": 1.0}] * 3 + [{"noise": 0.625, "signals": 0.375}]


@TASKS
def test_activations_that_grow_are_seen_before_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    """A quarter more at every step: the alarm leads the first loss spike by steps enough to act on."""
    run_with(
        tmp_path,
        monkeypatch,
        task,
        scale("layers.0.mlp.down_proj", 1.25),
        lambda step: step >= 100,
        "training.max_steps=180",
        "spikes.window_steps=32",
        "spikes.warmup_steps=16",
    )
    found = raised(tmp_path / "run")
    loss = found.get("loss_spike", 180)
    assert found["activation_explosion"] <= loss - 5


# --- healthy -------------------------------------------------------------------------------------------


DATA = {
    "text": [f"data.{kind}.letters.path=builtin:pydoc" for kind in ("train", "validation")],
    "iq": [f"data.{kind}.signals.windows=6000" for kind in ("train", "validation")],
}


@pytest.mark.slow
@TASKS
def test_a_thousand_healthy_steps_raise_nothing(tmp_path: Path, task: str) -> None:
    """On data enough that nothing is learned by heart: a validation loss that rises for that is no false alarm."""
    config = tiny(
        tmp_path,
        task,
        *OFTEN,
        *DATA[task],
        "training.max_steps=1000",
        "training.batch_size=8",
        "training.gradient_accumulation_steps=1",
        "checkpoint.checkpoint_every_n_steps=500",
        "validation.validate_every_n_steps=200",
        "validation.batch_size=64",
        "optimizer.lr=3.0e-3",
    )
    assert train(config).verdict == "done"
    assert raised(tmp_path / "run") == {}
    assert sum(row["event"] == "monitor" for row in rows_of(tmp_path / "run")) == 600
