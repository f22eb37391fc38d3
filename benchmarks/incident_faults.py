"""How each cause is made: by data, by config, or by a change of the live state between two steps."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.incident_data import BATCH, NO_SIGNALS, NO_TEXT, UNUSUAL_SIGNALS, UNUSUAL_TEXT
from pretrain.batch import Batch
from pretrain.tasks import Task

CAUSES = ("high_curvature", "exploding_depth", "outlier_batch", "optimizer_state", "precision", "data_corruption")
TASKS = ("text", "iq")
STEPS = 300
_LARGEST_HALF = 65504.0

Change = Callable[[nn.Module, torch.optim.Optimizer, Task, Batch], None]


@dataclass(frozen=True)
class Plan:
    """One run of `steps` steps; cause: None = a healthy one. number: counts those of a cause. seed: the run's own."""

    cause: str | None
    task: str
    number: int
    seed: int
    steps: int = STEPS


@dataclass(frozen=True)
class Fault:
    """What is done to one run.

    at: completed steps, and so the global batch, at which it is done; None = the config itself is at fault.
    overrides, schedule: of every run of the plan. inject: of `faults.inject`, in the faulty runs.
    rows, filler: how many windows of the batch are replaced, and by what; broken_rows: how many lose a sample to NaN.
    change: what is done to the live model and optimizer.
    transient: the cause is gone once the run has skipped it or gone back, so that it can end as the clean one does.
    """

    kind: str
    at: int | None
    overrides: tuple[str, ...] = ()
    inject: tuple[str, ...] = ()
    rows: int = 0
    filler: Callable[..., Any] | None = None
    broken_rows: int = 0
    change: Change | None = field(default=None, compare=False)
    schedule: str = "warmup_stable_decay, decay_ratio: 0.3"
    simple: bool = False
    transient: bool = True


def fault_of(plan: Plan) -> Fault:
    """Return the fault of a plan, drawn from its seed; the kinds of a cause take turns."""
    assert plan.cause is not None
    rng = np.random.default_rng(plan.seed)
    at = int(rng.integers(150, 190))
    turn = plan.number // len(TASKS)
    made: Fault = _MAKERS[plan.cause](plan.task, turn, at, rng)
    return made


def _high_curvature(task: str, turn: int, at: int, rng: np.random.Generator) -> Fault:
    """A learning rate that rises over most of the run, to far above what the model bears.

    On text it rises more slowly, so that the model learns something before: one that has not has no loss to lose.
    """
    lowest, highest = (0.12, 0.25) if task == "text" else (0.25, 0.6)
    peak = math.exp(rng.uniform(math.log(lowest), math.log(highest)))
    steps = ("training.max_steps=800",) if task == "text" else ()
    return Fault(
        kind=f"warmup to {peak:.2g}",
        at=None,
        overrides=(f"optimizer.lr={peak:.4g}", *steps),
        schedule="linear_warmup_then_constant, scheduler_warmup_ratio: 0.9",
        simple=True,
        transient=False,
    )


def _exploding_depth(task: str, turn: int, at: int, rng: np.random.Generator) -> Fault:
    """A deep post-norm model whose blocks amplify from one step on, as with matrices that were read at a wrong scale.

    One that begins with large matrices explodes in its first steps, while there is nothing to compare it with, and
    seldom again: no config was found that explodes every time and late enough.
    """
    layers, factor, std = int(rng.integers(7, 10)), float(rng.uniform(2.5, 4)), rng.uniform(0.1, 0.25)

    def change(model: nn.Module, optimizer: torch.optim.Optimizer, task: Task, probe: Batch) -> None:
        with torch.no_grad():
            for path, module in model.named_modules():
                if path.endswith("_proj"):
                    assert isinstance(module, nn.Linear)
                    module.weight.mul_(factor)

    rate = math.exp(rng.uniform(math.log(2e-3), math.log(5e-3)))
    return Fault(
        kind=f"{layers} blocks times {factor:.2g}",
        at=at,
        overrides=(
            f"model.layers={layers}",
            "model.width=16",
            "model.norm_position=post",
            f"model.init_std={std:.3g}",
            f"optimizer.lr={rate:.3g}",
        ),
        change=change,
        simple=turn % 2 == 0,
    )


def _outlier_batch(task: str, turn: int, at: int, rng: np.random.Generator) -> Fault:
    """Three windows of a batch, of a sound kind that the run has not seen."""
    kinds: dict[str, Any] = dict(UNUSUAL_TEXT if task == "text" else UNUSUAL_SIGNALS)
    kind = list(kinds)[turn % len(kinds)]
    return Fault(kind=kind, at=at, rows=3, filler=kinds[kind])


def _data_corruption(task: str, turn: int, at: int, rng: np.random.Generator) -> Fault:
    """What is no data: bytes or samples of noise, one byte over and over, samples that are not finite."""
    fillers: dict[str, Any] = dict(NO_TEXT if task == "text" else NO_SIGNALS)
    kinds = [*fillers, "corrupt_batch", *(["not finite"] if task == "iq" else [])]
    kind = kinds[turn % len(kinds)]
    if kind == "corrupt_batch":
        return Fault(kind=kind, at=at, inject=(f"corrupt_batch@{at}",))
    if kind == "not finite":
        return Fault(kind=kind, at=at, broken_rows=int(rng.integers(1, 4)))
    batch = BATCH[task]
    rows = int(rng.integers(batch // 2, batch + 1)) if kind == "one byte" else batch
    return Fault(kind=kind, at=at, rows=rows, filler=fillers[kind])


def _optimizer_state(task: str, turn: int, at: int, rng: np.random.Generator) -> Fault:
    """Second moments that are gone, first moments that stay."""

    def change(model: nn.Module, optimizer: torch.optim.Optimizer, task: Task, probe: Batch) -> None:
        for state in optimizer.state.values():
            state["exp_avg_sq"].fill_(1e-12)

    return Fault(kind="second moments of 1e-12", at=at, change=change)


def _precision(task: str, turn: int, at: int, rng: np.random.Generator) -> Fault:
    """A residual stream so many times larger: norms divide it out again, but float16 cannot hold what is added to it.

    In float32 the losses stay as they are, and so do the gradients but for those that become smaller. Whatever makes
    only a pair of matrices larger and smaller keeps the losses and not the gradients: float32 would not bear it either.
    """
    beyond = float(rng.uniform(2, 16))

    def change(model: nn.Module, optimizer: torch.optim.Optimizer, task: Task, probe: Batch) -> None:
        modules = dict(model.named_modules())
        added = [module for path, module in modules.items() if path.endswith(("o_proj", "down_proj"))]
        entries = [module for path, module in modules.items() if path.endswith(("embed_tokens", "embed_patches"))]
        reach: list[float] = []
        hooks = [
            module.register_forward_hook(lambda module, inputs, output: reach.append(float(output.abs().max())))
            for module in added
        ]
        with torch.no_grad():
            task.loss_sum(model, probe, torch.device("cpu"))
            for hook in hooks:
                hook.remove()
            factor = 2.0 ** math.ceil(math.log2(beyond * _LARGEST_HALF / max(reach)))
            for module in (*added, *entries):
                assert isinstance(module.weight, torch.Tensor)
                module.weight.mul_(factor)

    untied = ("model.tie_embeddings=false",) if task == "text" else ()
    return Fault(
        kind=f"{beyond:.2g} times the largest of float16",
        # float16 takes three times as long here, and there is no way on afterwards: a short run will do.
        at=at - 30,
        overrides=("training.precision=float16", "training.max_steps=170", *untied),
        change=change,
        transient=False,
    )


_MAKERS: dict[str, Callable[[str, int, int, np.random.Generator], Fault]] = {
    "high_curvature": _high_curvature,
    "exploding_depth": _exploding_depth,
    "outlier_batch": _outlier_batch,
    "optimizer_state": _optimizer_state,
    "precision": _precision,
    "data_corruption": _data_corruption,
}
