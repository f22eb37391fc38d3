"""What all monitors at their usual cadence add to a step of a model of ten million parameters, and what they do off."""

import dataclasses
import json
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import torch

from benchmarks.added_work import REFERENCE_SECONDS, Piece
from benchmarks.guard_cost import Cost, Steps, cost_of, run_config, words_of
from benchmarks.stopwatch import Stopwatch
from pretrain.attempt import start_attempt
from pretrain.loop import boundary
from pretrain.loop.monitors import Watch
from pretrain.machine.signals import StopRequest
from pretrain.monitors import USUAL, Cadence, activations, attention

STRETCH = max(cadence["every_n_steps"] for cadence in dataclasses.asdict(USUAL).values())
WARM_STEPS, STEPS = STRETCH, 4 * STRETCH
ADDED_BAR = 0.02

PIECES: tuple[Piece, ...] = (
    ("activations, in the forward pass", activations, "_norm_count_and_largest"),
    ("attention, in the forward pass", attention, "_entropy_and_largest_logit"),
    ("hooks set and taken off", Watch, "watching"),
    ("blocks, rows and alarms", Watch, "record"),
    ("validation against its best", boundary, "watch_regression"),
)


@dataclass(frozen=True)
class MonitorCost:
    """What was measured: milliseconds a step by piece, with all monitors on and with all of them off.

    Mean and median are over stretches of as many steps as lie between two looks of the most seldom one.
    """

    parameters: int
    steps: int
    on: dict[str, Cost]
    off: dict[str, Cost]

    @property
    def added(self) -> Cost:
        """Return the sum of all pieces with the monitors on."""
        return sum(self.on.values(), Cost(0.0, 0.0))


def measure(folder: Path, threads: int, *, on: bool) -> dict[str, Cost]:
    """Run the loop with a stopwatch in it; `STEPS` steps count."""
    config, stop, stopwatch = run_config(folder, threads), StopRequest(), Stopwatch()
    if on:
        # The model is dense, and a monitor of experts is refused for one.
        config = dataclasses.replace(config, monitors=dataclasses.replace(USUAL, experts=Cadence()))
    sink = Steps(stopwatch, stop, WARM_STEPS + STEPS)
    with ExitStack() as stack:
        for piece, owner, name in PIECES:
            stack.enter_context(stopwatch.timing(piece, owner, name))
        start_attempt(config, stop, [sink])
    counted = sink.pieces[WARM_STEPS:]
    stretches = [counted[at : at + STRETCH] for at in range(0, len(counted), STRETCH)]
    return {
        name: cost_of([fmean(taken.get(name, 0.0) for taken in stretch) for stretch in stretches])
        for name, _, _ in PIECES
    }


def _parameters(run_dir: Path) -> int:
    with (run_dir / "attempts" / "0001" / "metrics.jsonl").open() as stream:
        return int(json.loads(stream.readline())["parameters"])


def table(found: MonitorCost, threads: int) -> str:
    """Return what was measured as a plain table."""
    reference = Cost(1000 * REFERENCE_SECONDS, 1000 * REFERENCE_SECONDS)

    def line(label: str, *cells: str) -> str:
        return f"{label:<36}" + "".join(f"{cell:>12}" for cell in cells)

    def costs(label: str, on: Cost, off: Cost) -> str:
        return line(label, f"{on.mean:.3f}", f"{on.median:.3f}", f"{off.mean:.4f}", f"{off.median:.4f}")

    share, off = found.added.share(reference), sum(found.off.values(), Cost(0.0, 0.0))
    return "\n".join(
        (
            f"{found.parameters:,} parameters, {threads} thread(s), torch {torch.__version__}; {found.steps} steps; "
            f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}",
            line("ms a step", "on, mean", "median", "off, mean", "median"),
            *(costs(name, found.on[name], found.off[name]) for name in found.on),
            costs("in all", found.added, off),
            line(
                f"of 50 ms; at most {100 * ADDED_BAR:g} %",
                f"{100 * share.mean:.2f} %",
                f"{100 * share.median:.2f} %",
                f"{100 * off.share(reference).mean:.3f} %",
                f"{100 * off.share(reference).median:.3f} %",
            ),
            "the copies of the parameters that updates are measured against are made in every run: see guard_cost",
        )
    )


def main() -> None:
    """Measure and print."""
    arguments = words_of("monitor_cost", __doc__)
    with TemporaryDirectory() as folder:
        on, off = (measure(Path(folder) / str(is_on), arguments.threads, on=is_on) for is_on in (True, False))
        parameters = _parameters(Path(folder) / "True")
    found = MonitorCost(parameters, STEPS, on, off)
    if arguments.json:
        print(json.dumps({"monitor_cost": {**dataclasses.asdict(found), "added": dataclasses.asdict(found.added)}}))
    else:
        print(table(found, arguments.threads))


if __name__ == "__main__":
    main()
