"""How well a run sees its faults, names them and recovers: seeded faults of six causes, and healthy steps.

Each run is a real attempt on two layers of 32 or so, at 512 bytes or 480 patches a step, half on text and half on IQ.
`benchmarks/incident_faults.py` makes the causes. The settings are the defaults but for `spikes.update.action`, which is
`roll_back`: damaged moments show in the update before the loss has them.

- *incident*: a step that was skipped, gone back from, or raised an alarm; overflows of the loss scale are none.
- *detected*: an incident within 20 batches of the fault. Where the config is at fault: before the mean of ten losses of
  the unguarded run is twice its lowest or a loss is not finite, or at all where neither happens.
- *named*: the cause in the first incident of a detected run, from the fault on; *by most*: in most of its incidents.
- *delay*: batches from the fault to the first incident. *lead*: steps from the first incident of the gradient or the
  update to the first loss of the unguarded run that stands out or is not finite, where both happen.
- *loss*: final validation loss over that of the clean run, the same config without the fault, where the fault is
  transient; the mean of a cause, since single runs of this size differ by a percent either way by chance.
- *unguarded*: the same for a bare PyTorch loop with the same model, batches, rates and fault. (The guard of the product
  cannot be switched off.) *NaN*: how many of them end without a finite loss.
- *false alarm*: an incident of a healthy run. Those before a fault and in the clean runs are counted apart.

The run seeds are 1000 times --seed and on. The causes were made with --seed 1; other seeds are the ones to report.
"""

import argparse
import dataclasses
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import Any

import torch

from benchmarks.incident_faults import CAUSES, TASKS, Plan
from benchmarks.incident_figures import Figures, bars_of, figures_of, table
from benchmarks.incident_record import Record, run_plan

RUNS_OF_A_CAUSE = 40
HEALTHY_RUNS, HEALTHY_STEPS = 25, 50_000


def plans_of(seed: int, share: float = 1.0) -> list[Plan]:
    """Return the plans of a seed; a `share` below 1 has fewer of each, but every cause on text and on IQ."""
    plans: list[Plan] = []
    runs = max(len(TASKS), round(RUNS_OF_A_CAUSE * share))
    for cause in CAUSES:
        plans += [Plan(cause, TASKS[number % 2], number, 0) for number in range(runs)]
    healthy = max(len(TASKS), round(HEALTHY_RUNS * share))
    steps = round(HEALTHY_STEPS * share / healthy)
    plans += [Plan(None, TASKS[number % 2], number, 0, steps) for number in range(healthy)]
    return [dataclasses.replace(plan, seed=seed * 1000 + index) for index, plan in enumerate(plans)]


def run_all(plans: Sequence[Plan], workers: int) -> list[Record]:
    """Run every plan and return their records in the order of the plans."""
    if workers == 1:
        return [run_plan(plan) for plan in plans]
    # A fork would inherit the threads of this process half alive.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        # The longest first, so that no worker is left with them at the end.
        order = sorted(plans, key=lambda plan: plan.cause not in (None, "exploding_depth"))
        futures = {pool.submit(run_plan, plan): plan for plan in order}
        for done in _counted(futures, len(plans)):
            done.result()
        found = {plan: future.result() for future, plan in futures.items()}
    return [found[plan] for plan in plans]


def _counted(futures: "Mapping[Future[Record], Plan]", total: int) -> "Iterator[Future[Record]]":
    for count, future in enumerate(as_completed(futures), start=1):
        if sys.stderr.isatty():
            print(f"\r{count} of {total} runs", end="" if count < total else "\n", file=sys.stderr, flush=True)
        yield future


def main() -> int:
    """Run, print, and return 1 where a bar of a whole run does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.incidents", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="of all run seeds (default 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object; the table goes to stderr")
    parser.add_argument("--share", type=float, default=1.0, help="of the runs; below 1 nothing is held to the bars")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each (default 2)")
    arguments = parser.parse_args()
    if not 0 < arguments.share <= 1 or arguments.workers < 1 or arguments.seed < 0:
        parser.error("expected a share above 0 and at most 1, at least 1 worker, and no negative seed")

    begun = time.perf_counter()
    records = run_all(plans_of(arguments.seed, arguments.share), arguments.workers)
    seconds = time.perf_counter() - begun
    figures = figures_of(records)
    bars = bars_of(figures)
    text = f"seed {arguments.seed}, {len(records)} runs in {seconds:,.0f} s\n\n{table(figures, bars)}"
    print(text, file=sys.stderr if arguments.json else sys.stdout)
    if arguments.json:
        print(json.dumps(_plain(_answer(arguments, records, seconds, figures, bars)), allow_nan=False))
    return 0 if arguments.share < 1 or all(bar["holds"] for bar in bars.values()) else 1


def _answer(
    arguments: argparse.Namespace, records: Sequence[Record], seconds: float, figures: Figures, bars: Figures
) -> Figures:
    return {
        "seed": arguments.seed,
        "share": arguments.share,
        "seconds": seconds,
        "machine": {"torch": torch.__version__, "cores": os.cpu_count(), "workers": arguments.workers},
        "bars": bars,
        "figures": figures,
        "runs": [dataclasses.asdict(record) for record in records],
    }


def _plain(value: Any) -> Any:
    """Return the value with what is not finite as a word, which JSON has no number for."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    sys.exit(main())
