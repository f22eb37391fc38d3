"""What guard, spikes and copies in memory add to a step of a model of ten million parameters, and what they hold."""

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.added_work import REFERENCE_SECONDS, Piece
from benchmarks.stopwatch import Stopwatch
from pretrain.attempt import start_attempt
from pretrain.config import RunConfig, load
from pretrain.evidence.writer import AttemptWriter
from pretrain.loop import boundary
from pretrain.loop import steps as steps_page
from pretrain.loop.updates import UpdateNorm
from pretrain.machine import random_state
from pretrain.machine.signals import StopRequest
from pretrain.policy.retention import CheckpointSettings
from pretrain.policy.spikes import UPDATE_EVERY_N_STEPS
from pretrain.state import RunState
from pretrain.telemetry.sink import Event, StepRow

CONFIG = Path(__file__).parents[1] / "configs" / "quickstart-text.yaml"
MODEL = ("model.width=320", "model.layers=8", "model.heads=5", "model.kv_heads=5")
# Until the windows of loss and gradient are full, and the update norm, seen now and then, is judged as well.
WARM_STEPS = 7 * UPDATE_EVERY_N_STEPS
STEPS = 5 * UPDATE_EVERY_N_STEPS
COPY_EVERY_N_STEPS = 20
ADDED_BAR, COPIES_BAR = 0.015, 0.01

PIECES: tuple[Piece, ...] = (
    ("guard", steps_page, "needs_scan"),
    ("guard", steps_page, "judge"),
    ("guard", steps_page, "_decide"),
    ("spikes and alarms", steps_page, "find_spikes"),
    ("spikes and alarms", steps_page, "spike_observations"),
    ("spikes and alarms", steps_page, "update_alarms"),
    ("spikes and alarms", steps_page, "record_alarms"),
    ("spikes and alarms", steps_page, "remember"),
    ("spikes and alarms", steps_page, "on_healthy"),
    ("update norm", UpdateNorm, "before"),
    ("update norm", UpdateNorm, "after"),
    ("generators kept aside", random_state, "capture"),
)
COPIES: Piece = ("copies", boundary, "keep_target")
# Checkpoints are counted elsewhere; here they only have to stay out of the pieces.
_CHECKPOINT: tuple[Piece, ...] = (
    ("checkpoint", RunState, "tensors"),
    ("checkpoint", AttemptWriter, "save"),
)


@dataclass(frozen=True)
class Cost:
    """Milliseconds a step: the mean, and the median over stretches of as many steps as lie between two update norms."""

    mean: float
    median: float

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.mean + other.mean, self.median + other.median)

    def share(self, of: "Cost") -> "Cost":
        """Return what part of another cost this is."""
        return Cost(self.mean / of.mean, self.median / of.median)


@dataclass(frozen=True)
class GuardCost:
    """What was measured.

    refused: steps among `steps` that were not taken. step: of the run itself, without its checkpoints. pieces: where
    the added time goes; that of `copies` is one copy shared out over the steps between two checkpoints at the default
    cadence. first_copy, copy: milliseconds of one, in memory that is new, and in that of an older one. added: all
    pieces; added_share: of a step of 50 ms; added_share_of_step, copies_share_of_step: of the run's own step.
    copies_bytes: of every copy that is held at a time. update_norm_bytes: of the copies of the parameters that the
    update norm is measured against, which is all that it takes.
    """

    parameters: int
    steps: int
    refused: int
    step: Cost
    pieces: dict[str, Cost]
    added: Cost
    added_share: Cost
    added_share_of_step: Cost
    copies_share_of_step: Cost
    first_copy: float
    copy: Cost
    checkpoint_every_n_steps: int
    update_norm_every_n_steps: int
    parameter_bytes: int
    optimizer_bytes: int
    copies_bytes: int
    update_norm_bytes: int


class Steps:
    """The last sink of the loop: takes the pieces of every step, and asks the run to stop after the last one."""

    def __init__(self, stopwatch: Stopwatch, stop: StopRequest, steps: int) -> None:
        self.totals: list[float] = []
        self.taken: list[bool] = []
        self.pieces: list[dict[str, float]] = []
        self._stopwatch, self._stop, self._last = stopwatch, stop, steps
        self._begun = time.perf_counter()

    def emit(self, event: Event) -> None:
        """Close a step and begin the next one, leaving out what is spent here."""
        now = time.perf_counter()
        if not isinstance(event, StepRow):
            return
        self.totals.append(now - self._begun)
        self.pieces.append(self._stopwatch.take())
        self.taken.append(event.action == "accept")
        if len(self.totals) == self._last:
            self._stop.name = "SIGTERM"
        self._begun = time.perf_counter()

    def close(self) -> None:
        """Nothing is open."""


class _Bytes:
    """How much memory is held, seen at the calls that take it."""

    def __init__(self) -> None:
        self.parameters = self.parameter_bytes = self.optimizer_bytes = self.copy = self.update_norm = 0

    def of_snapshot(self, state: RunState, taken: Any) -> None:
        """See a copy of the trajectory, and what it is a copy of."""
        self.copy = _size(taken.tensors.values())
        self.parameters = sum(parameter.numel() for parameter in state.model.parameters())
        self.parameter_bytes = _size(state.model.parameters())
        self.optimizer_bytes = _size(
            tensor for name, tensor in state.state_tensors().items() if name.startswith("optimizer.")
        )

    def of_update(self, updates: UpdateNorm, _: Any) -> None:
        """See the copies that an update is measured against."""
        self.update_norm = max(self.update_norm, updates.bytes_held)


def _size(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@contextmanager
def _seeing(owner: Any, name: str, see: Callable[[Any, Any], None]) -> Iterator[None]:
    """Within this block `see` is told the first word and the result of every call of `owner.name`."""
    original: Callable[..., Any] = getattr(owner, name)

    def seen(first: Any, *words: Any, **named: Any) -> Any:
        taken = original(first, *words, **named)
        see(first, taken)
        return taken

    setattr(owner, name, seen)
    try:
        yield
    finally:
        setattr(owner, name, original)


def run_config(folder: Path, threads: int) -> RunConfig:
    """Return a run on text that is longer than what is measured, with few short windows a step.

    One window alone has a loss that jumps so far that healthy steps are refused.
    """
    steps = 10 * (WARM_STEPS + STEPS)
    return load(
        CONFIG,
        [
            *MODEL,
            f"run.dir={folder}",
            f"training.max_steps={steps}",
            f"training.threads={threads}",
            "training.batch_size=4",
            "data.sequence_length=32",
            "optimizer.lr=3.0e-4",
            f"validation.validate_every_n_steps={steps}",
            f"checkpoint.checkpoint_every_n_steps={COPY_EVERY_N_STEPS}",
            "checkpoint.max_rolling_checkpoints=1",
        ],
    )


def measure(folder: Path, threads: int) -> GuardCost:
    """Run the loop with a stopwatch in it; `STEPS` steps count."""
    config, stop, stopwatch, held = run_config(folder, threads), StopRequest(), Stopwatch(), _Bytes()
    sink = Steps(stopwatch, stop, WARM_STEPS + STEPS)
    with ExitStack() as stack:
        # Looked at while no piece is running, or the look would be in it: the copies are seen inside of theirs.
        stack.enter_context(_seeing(RunState, "snapshot", held.of_snapshot))
        for piece, owner, name in (*PIECES, COPIES, *_CHECKPOINT):
            stack.enter_context(stopwatch.timing(piece, owner, name))
        stack.enter_context(_seeing(UpdateNorm, "before", held.of_update))
        start_attempt(config, stop, [sink])

    counted = list(zip(sink.totals, sink.pieces, strict=True))[WARM_STEPS:]
    stretches = [counted[at : at + UPDATE_EVERY_N_STEPS] for at in range(0, len(counted), UPDATE_EVERY_N_STEPS)]
    pieces = {
        name: cost_of([fmean(taken.get(name, 0.0) for _, taken in stretch) for stretch in stretches])
        for name in dict.fromkeys(name for name, _, _ in PIECES)
    }
    copies = [taken[COPIES[0]] for taken in sink.pieces if COPIES[0] in taken]
    copy = cost_of(copies[1:])
    every, reference = CheckpointSettings().checkpoint_every_n_steps, 1000 * REFERENCE_SECONDS
    pieces[COPIES[0]] = Cost(copy.mean / every, copy.median / every)
    step = cost_of([total for total, taken in counted if "checkpoint" not in taken])
    added = sum(pieces.values(), Cost(0.0, 0.0))
    return GuardCost(
        parameters=held.parameters,
        steps=len(counted),
        refused=sink.taken[WARM_STEPS:].count(False),
        step=step,
        pieces=pieces,
        added=added,
        added_share=added.share(Cost(reference, reference)),
        added_share_of_step=added.share(step),
        copies_share_of_step=pieces[COPIES[0]].share(step),
        first_copy=1000 * copies[0],
        copy=copy,
        checkpoint_every_n_steps=every,
        update_norm_every_n_steps=UPDATE_EVERY_N_STEPS,
        parameter_bytes=held.parameter_bytes,
        optimizer_bytes=held.optimizer_bytes,
        copies_bytes=held.copy * config.spikes.targets_in_memory,
        update_norm_bytes=held.update_norm,
    )


def cost_of(seconds: list[float]) -> Cost:
    return Cost(1000 * fmean(seconds), 1000 * median(seconds))


def table(found: GuardCost, threads: int) -> str:
    """Return what was measured as a plain table."""

    def line(label: str, *cells: str) -> str:
        return f"{label:<34}" + "".join(f"{cell:>14}" for cell in cells)

    def costs(label: str, cost: Cost) -> str:
        share = cost.share(Cost(1000 * REFERENCE_SECONDS, 1000 * REFERENCE_SECONDS))
        return line(
            label, f"{cost.mean:.3f}", f"{100 * share.mean:.2f} %", f"{cost.median:.3f}", f"{100 * share.median:.2f} %"
        )

    def shares(label: str, of: Cost) -> str:
        return line(label, "", f"{100 * of.mean:.2f} %", "", f"{100 * of.median:.2f} %")

    def held(label: str, size: int) -> str:
        return line(label, f"{size / 1e6:.1f} MB", f"{size / found.parameter_bytes:.2f} x")

    return "\n".join(
        (
            f"{found.parameters:,} parameters, {threads} thread(s), torch {torch.__version__}; {found.steps} steps, "
            f"{found.refused} refused; {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}",
            line("ms a step, and of one of 50 ms", "mean", "", "median", ""),
            *(costs(name, cost) for name, cost in found.pieces.items()),
            costs(f"in all; at most {100 * ADDED_BAR:g} %", found.added),
            line("the whole step, measured", f"{found.step.mean:.1f}", "", f"{found.step.median:.1f}"),
            shares("all of the above, of that step", found.added_share_of_step),
            shares(f"copies, of it; at most {100 * COPIES_BAR:g} %", found.copies_share_of_step),
            f"one copy: {found.copy.mean:.1f} ms, median {found.copy.median:.1f}, the first {found.first_copy:.1f}; "
            f"one every {found.checkpoint_every_n_steps} steps; an update norm every {found.update_norm_every_n_steps}",
            "",
            line("bytes", "", "of parameters"),
            held("parameters", found.parameter_bytes),
            held("optimizer", found.optimizer_bytes),
            held("copies in memory", found.copies_bytes),
            held("copies for the update norm", found.update_norm_bytes),
        )
    )


def words_of(benchmark: str, description: str | None) -> argparse.Namespace:
    """Read `--json` and `--threads`, and take so many threads."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{benchmark}", description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--threads", type=int, default=1, help="PyTorch's threads (default 1)")
    arguments = parser.parse_args()
    if arguments.threads < 1:
        parser.error("expected at least 1 thread")
    torch.set_num_threads(arguments.threads)
    return arguments


def main() -> None:
    """Measure and print."""
    arguments = words_of("guard_cost", __doc__)
    with TemporaryDirectory() as folder:
        found = measure(Path(folder) / "run", arguments.threads)
    print(json.dumps({"guard_cost": dataclasses.asdict(found)}) if arguments.json else table(found, arguments.threads))


if __name__ == "__main__":
    main()
