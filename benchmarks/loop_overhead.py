"""What the safety of the loop costs: against a bare PyTorch loop, by direct timing, and the loader's pace beside it."""

import argparse
import dataclasses
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks import added_work, loader_rate, throughput
from benchmarks.added_work import AddedWork
from benchmarks.loader_rate import LoaderRate
from benchmarks.throughput import Comparison, Spread

ROUNDS = 30
STEPS = 300


def _line(label: str, *cells: str) -> str:
    return f"{label:<28}" + "".join(f"{cell:>14}" for cell in cells)


def comparison_table(found: Comparison, threads: int) -> str:
    """Return the two loops side by side, and the spread of each against the bare one."""

    def spread(label: str, of: Spread) -> str:
        figures = (of.median, of.lower_quartile, of.upper_quartile, of.lowest, of.highest)
        return _line(label, *(f"{figure:.4f}" for figure in figures))

    def pace(label: str, per_second: float) -> str:
        return _line(label, f"{per_second:,.0f}", f"{1000 * found.tokens_per_step / per_second:.2f}")

    return "\n".join(
        (
            f"{found.tokens_per_step:,} tokens a step, {found.parameters:,} parameters, {threads} thread(s), torch "
            f"{torch.__version__}; {found.steps} steps each, in turns of {found.turn_steps}, with a checkpoint every "
            f"{found.checkpoint_every_n_steps}; {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}",
            _line("", "tokens/s", "ms a step"),
            pace("bare PyTorch loop", found.bare_tokens_per_second),
            pace("the loop, everything on", found.loop_tokens_per_second),
            _line("ratio over all turns", f"{found.ratio:.4f}"),
            "",
            _line("ratio turn by turn", "median", "quartile", "quartile", "lowest", "highest"),
            spread("the loop", found.by_turn),
            spread("the bare loop to itself", found.bare_by_turn),
            f"largest difference between the losses of the two: {found.loss_difference:.1e}",
        )
    )


def added_table(found: AddedWork) -> str:
    """Return what the loop adds to a step, piece by piece."""
    rows = [_line(name, f"{milliseconds:.3f}") for name, milliseconds in found.pieces.items()]
    return "\n".join(
        (
            _line("work that the loop adds", "ms a step"),
            *rows,
            _line("in all", f"{found.added:.3f}", f"{100 * found.share:.2f} %") + " of a step of 50 ms",
            _line(
                "in all, in the median step",
                f"{found.added_in_median_step:.3f}",
                f"{100 * found.share_in_median_step:.2f} %",
            ),
            _line("the whole step, measured", f"{found.step:.3f}"),
            f"means over {found.steps} steps; a checkpoint comes on top: {found.save:.1f} ms, which is "
            f"{found.save_per_step:.3f} ms a step at one every {found.checkpoint_every_n_steps}",
        )
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop_overhead", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"turns of each loop (default {ROUNDS})")
    parser.add_argument("--threads", type=int, default=1, help="PyTorch's threads (default 1)")
    arguments = parser.parse_args()
    if arguments.rounds < 3 or arguments.threads < 1:
        parser.error("expected at least 3 rounds and 1 thread")

    torch.set_num_threads(arguments.threads)
    with TemporaryDirectory() as folder:
        compared = throughput.compare(Path(folder) / "compared", arguments.rounds, arguments.threads)
        added = added_work.measure(Path(folder) / "timed", STEPS, arguments.threads)
        rates: list[LoaderRate] = loader_rate.measure(Path(folder), arguments.threads)
    if arguments.json:
        everything = {
            "machine": {
                "torch": torch.__version__,
                "threads": arguments.threads,
                "cores": os.cpu_count(),
                "load_average": os.getloadavg()[0],
            },
            "throughput": dataclasses.asdict(compared),
            "added_work": dataclasses.asdict(added),
            "loader": loader_rate.answer(rates),
        }
        print(json.dumps(everything))
    else:
        print(comparison_table(compared, arguments.threads), added_table(added), loader_rate.table(rates), sep="\n\n")


if __name__ == "__main__":
    main()
