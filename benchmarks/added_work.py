"""What the loop does in a step beside the work of a bare loop, timed directly in the running loop."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from benchmarks.bare_loop import BareLoop
from benchmarks.stopwatch import Stopwatch
from benchmarks.throughput import run_config
from pretrain import gradients, loop
from pretrain.attempt import start_attempt
from pretrain.console import Screen
from pretrain.data.loader import StatefulLoader
from pretrain.evidence import rows
from pretrain.evidence.writer import AttemptWriter
from pretrain.machine import random_state
from pretrain.machine.signals import StopRequest
from pretrain.tasks.text import TextTask
from pretrain.telemetry.csv_log import CsvLog
from pretrain.telemetry.rows import RowMaker
from pretrain.telemetry.sink import Event, StepRow
from pretrain.telemetry.throughput import Throughput

REFERENCE_SECONDS = 0.05  # the step that the added work is put beside
WARM_STEPS = 20

# What a bare loop does too; `read` stands where it has `.item()`, `clip` where it has `clip_grad_norm_`.
_SHARED: tuple[tuple[Any, str], ...] = (
    (TextTask, "loss_sum"),
    (torch.nn.Module, "zero_grad"),
    (torch.Tensor, "backward"),
    (loop, "clip"),
    (loop, "read"),
    (torch.optim.AdamW, "step"),
)
_ADDED: tuple[tuple[str, Any, str], ...] = (
    ("batch handed out", StatefulLoader, "next_step"),
    ("generators captured", random_state, "capture"),
    ("guard", loop, "needs_scan"),
    ("guard", loop, "judge"),
    ("learning rate", loop, "set_learning_rate"),
    ("metric row", rows, "step"),
    ("metric row", AttemptWriter, "row"),
    ("telemetry row", RowMaker, "row"),
    ("telemetry row", CsvLog, "emit"),
    ("console", Screen, "emit"),
    ("stopwatch", Throughput, "lap"),
    ("stopwatch", Throughput, "finish"),
)
_SAVE, _ALL_SHARED, _REST = "save", "shared", "the rest"


@dataclass(frozen=True)
class AddedWork:
    """Milliseconds a step, means over `steps` steps unless named otherwise; checkpoints are counted apart.

    pieces: where the added time goes. instead: what `clip`, `read` and `zero_grad` cost beyond what a bare loop has
    in their place. share: of a step of 50 ms. save: one checkpoint, both its syncs and what is pruned after it.
    """

    steps: int
    step: float
    added: float
    added_median: float
    share: float
    pieces: dict[str, float]
    instead: dict[str, float]
    save: float
    save_per_step: float
    checkpoint_every_n_steps: int


class _Steps:
    """The last sink of the loop: takes the time of every step, in all and by piece."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self.totals: list[float] = []
        self.pieces: list[dict[str, float]] = []
        self._stopwatch, self._begun = stopwatch, time.perf_counter()

    def emit(self, event: Event) -> None:
        """Close a step and begin the next one, leaving out what is spent here."""
        now = time.perf_counter()
        if isinstance(event, StepRow):
            self.totals.append(now - self._begun)
            self.pieces.append(self._stopwatch.take())
            self._begun = time.perf_counter()

    def close(self) -> None:
        """Nothing is open."""


def measure(folder: Path, steps: int, threads: int, bare: BareLoop) -> AddedWork:
    """Run the loop for `steps` steps with a stopwatch in it; `bare` lends the gradients of a step."""
    config = run_config(folder, WARM_STEPS + steps, threads)
    stopwatch = Stopwatch()
    sink = _Steps(stopwatch)
    with ExitStack() as stack:
        for owner, name in _SHARED:
            stack.enter_context(stopwatch.timing(_ALL_SHARED, owner, name))
        for piece, owner, name in _ADDED:
            stack.enter_context(stopwatch.timing(piece, owner, name))
        stack.enter_context(stopwatch.timing(_SAVE, loop, "save"))
        nowhere = stack.enter_context(open("/dev/null", "w", encoding="utf-8"))
        start_attempt(config, StopRequest(), [Screen(nowhere), sink])

    # The last step has the validation in it.
    counted = list(zip(sink.totals, sink.pieces, strict=True))[WARM_STEPS:-1]
    instead = _instead(bare)
    added = [total - taken[_ALL_SHARED] - taken.get(_SAVE, 0.0) for total, taken in counted]
    names = dict.fromkeys(piece for piece, _, _ in _ADDED)
    pieces = {name: fmean(taken.get(name, 0.0) for _, taken in counted) for name in names}
    pieces[_REST] = fmean(added) - sum(pieces.values())
    saves = [taken[_SAVE] for _, taken in counted if _SAVE in taken]
    every = config.checkpoint.checkpoint_every_n_steps
    whole = fmean(added) + sum(instead.values())
    return AddedWork(
        steps=len(counted),
        step=1000 * fmean(total - taken.get(_SAVE, 0.0) for total, taken in counted),
        added=1000 * whole,
        added_median=1000 * (median(added) + sum(instead.values())),
        share=whole / REFERENCE_SECONDS,
        pieces={name: 1000 * seconds for name, seconds in pieces.items()},
        instead={name: 1000 * seconds for name, seconds in instead.items()},
        save=1000 * fmean(saves) if saves else float("nan"),
        save_per_step=1000 * fmean(saves) / every if saves else float("nan"),
        checkpoint_every_n_steps=every,
    )


def _instead(bare: BareLoop) -> dict[str, float]:
    """Return how many seconds more each of the loop's own functions takes than what it stands for."""
    parameters = list(bare.model.parameters())
    kept = [parameter.grad for parameter in parameters]

    def restore() -> None:
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient

    loss = norm = torch.tensor(1.5)
    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "clip": (
            lambda: gradients.clip(parameters, bare.max_norm),
            lambda: torch.nn.utils.clip_grad_norm_(parameters, bare.max_norm, foreach=True),
        ),
        "read": (lambda: gradients.read(loss, norm), loss.item),
        "zero_grad": (
            lambda: bare.model.zero_grad(set_to_none=True),
            lambda: bare.optimizer.zero_grad(set_to_none=True),
        ),
    }
    return {
        name: _median_seconds(ours, restore) - _median_seconds(theirs, restore)
        for name, (ours, theirs) in pairs.items()
    }


def _median_seconds(call: Callable[[], object], before: Callable[[], None]) -> float:
    seconds = []
    for _ in range(200):
        before()
        begun = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begun)
    return median(seconds)
