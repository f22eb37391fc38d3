"""What the loop does in a step beside the work of a bare loop, timed directly in the running loop."""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from benchmarks.bare_loop import BareLoop
from benchmarks.stopwatch import Stopwatch
from benchmarks.throughput import run_config
from pretrain.attempt import start_attempt
from pretrain.console import Screen
from pretrain.data.loader import StatefulLoader
from pretrain.evidence import rows
from pretrain.evidence.writer import AttemptWriter
from pretrain.loop import boundary
from pretrain.loop import steps as steps_page
from pretrain.loop.updates import UpdateNorm
from pretrain.machine import random_state
from pretrain.machine.signals import StopRequest
from pretrain.tasks.text import TextTask
from pretrain.telemetry.csv_log import CsvLog
from pretrain.telemetry.rows import RowMaker
from pretrain.telemetry.sink import Event, StepRow
from pretrain.telemetry.throughput import Throughput

REFERENCE_SECONDS = 0.05  # the step that the added work is put beside
WARM_STEPS = 20
BARE_STEPS = 100

Piece = tuple[str, Any, str]

# What is the same work in both loops, and what a bare loop has something else for.
_SAME: tuple[Piece, ...] = (
    ("backward", torch.Tensor, "backward"),
    ("update", torch.optim.AdamW, "step"),
)
_OURS: tuple[Piece, ...] = (
    ("forward", TextTask, "loss_sum"),
    ("zero_grad", torch.nn.Module, "zero_grad"),
    ("clip", steps_page, "clip"),
    ("read", steps_page, "read"),
)
_THEIRS: tuple[Piece, ...] = (
    ("forward", BareLoop, "forward"),
    ("zero_grad", torch.optim.Optimizer, "zero_grad"),
    ("clip", torch.nn.utils, "clip_grad_norm_"),
    ("read", torch.Tensor, "item"),
)
_COMPARED = ("zero_grad", "clip", "read")
_SHARED = {piece for piece, _, _ in (*_SAME, *_OURS)}
_ADDED: tuple[Piece, ...] = (
    ("batch handed out", StatefulLoader, "next_step"),
    ("generators captured", random_state, "capture"),
    ("guard", steps_page, "needs_scan"),
    ("guard", steps_page, "judge"),
    ("spikes", steps_page, "find_spikes"),
    ("spikes", steps_page, "spike_observations"),
    ("spikes", steps_page, "update_alarms"),
    ("spikes", steps_page, "remember"),
    ("update norm", UpdateNorm, "before"),
    ("update norm", UpdateNorm, "after"),
    ("learning rate", steps_page, "set_learning_rate"),
    ("metric row", rows, "step"),
    ("metric row", AttemptWriter, "row"),
    ("telemetry row", RowMaker, "row"),
    ("telemetry row", CsvLog, "emit"),
    ("console", Screen, "emit"),
    ("stopwatch", Throughput, "lap"),
    ("stopwatch", Throughput, "finish"),
)
_SAVE = "save"


@dataclass(frozen=True)
class AddedWork:
    """Milliseconds a step, means over `steps` steps unless named otherwise; checkpoints are counted apart.

    added: a step without forward, backward and update, beyond what is left of a bare step without them.
    pieces: where it goes; `beyond` says that what a bare loop does there is taken off. A reading thread that keeps
    the interpreter from the loop is counted where the loop waits, but for the wait within forward and backward.
    share, share_in_median_step: of a step of 50 ms; on a busy machine the mean has its other work in it.
    save: one checkpoint, both its syncs and what is pruned after it.
    """

    steps: int
    step: float
    added: float
    added_in_median_step: float
    share: float
    share_in_median_step: float
    pieces: dict[str, float]
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


def measure(folder: Path, steps: int, threads: int) -> AddedWork:
    """Run both loops with a stopwatch in them, this package's for `steps` steps that count."""
    # The bare loop comes first: PyTorch wraps AdamW.step when the first one is built, and the stopwatch wraps that.
    config = run_config(folder, WARM_STEPS + steps + 1, threads)
    bare = _bare_pieces(config.training.max_steps, folder, threads)
    stopwatch = Stopwatch()
    sink = _Steps(stopwatch)
    with ExitStack() as stack:
        for piece, owner, name in (*_SAME, *_OURS, *_ADDED, (_SAVE, boundary, "save")):
            stack.enter_context(stopwatch.timing(piece, owner, name))
        nowhere = stack.enter_context(open("/dev/null", "w", encoding="utf-8"))
        start_attempt(config, StopRequest(), [Screen(nowhere), sink])

    # The last step has the validation in it.
    counted = list(zip(sink.totals, sink.pieces, strict=True))[WARM_STEPS:-1]
    means = {name: fmean(taken.get(name, 0.0) for _, taken in counted) for name in dict.fromkeys(_names(_ADDED))}
    beyond = {f"{name}, beyond": fmean(taken[name] for _, taken in counted) - bare[name] for name in _COMPARED}
    outside = [total - sum(taken.get(name, 0.0) for name in (*_SHARED, _SAVE)) for total, taken in counted]
    rest = {"the rest, beyond": fmean(outside) - sum(means.values()) - bare["rest"]}
    pieces = means | beyond | rest
    added = sum(pieces.values())
    in_median_step = added - fmean(outside) + median(outside)
    saves = [taken[_SAVE] for _, taken in counted if _SAVE in taken]
    every = config.checkpoint.checkpoint_every_n_steps
    return AddedWork(
        steps=len(counted),
        step=1000 * fmean(total - taken.get(_SAVE, 0.0) for total, taken in counted),
        added=1000 * added,
        added_in_median_step=1000 * in_median_step,
        share=added / REFERENCE_SECONDS,
        share_in_median_step=in_median_step / REFERENCE_SECONDS,
        pieces={name: 1000 * seconds for name, seconds in pieces.items()},
        save=1000 * fmean(saves),
        save_per_step=1000 * fmean(saves) / every,
        checkpoint_every_n_steps=every,
    )


def _bare_pieces(max_steps: int, folder: Path, threads: int) -> dict[str, float]:
    """Return the mean seconds of each shared piece of a bare step, and of the `rest` of it."""
    bare = BareLoop(run_config(folder, max_steps, threads))
    bare.run(WARM_STEPS)
    stopwatch = Stopwatch()
    with ExitStack() as stack:
        for piece, owner, name in (*_SAME, *_THEIRS):
            stack.enter_context(stopwatch.timing(piece, owner, name))
        total = bare.run(BARE_STEPS)
    taken = stopwatch.take()
    seconds = {name: taken[name] / BARE_STEPS for name in _SHARED}
    return seconds | {"rest": (total - sum(taken.values())) / BARE_STEPS}


def _names(pieces: tuple[Piece, ...]) -> list[str]:
    return [name for name, _, _ in pieces]
