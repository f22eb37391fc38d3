"""Experts against a dense model of equally many active parameters on real text, and with the balancing off.

The runs of a seed have the same data and number of steps; the two mixtures differ in the balancing alone. Exit code 0
says that the mean loss of the balanced mixture, on text that no step has seen, is below that of the dense model; that
without balancing the alarm of dead experts came in every run; and that with it the alarm came in none, and no expert
had less than a quarter of an equal share at any look of the second half.

The balancing is the bias at its default speed with an auxiliary loss beside it, large since the run is short: a router
has made up its mind in fewer steps than the bias alone takes to reach it.
"""

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pretrain.attempt import start_attempt
from pretrain.batch import InputSpec
from pretrain.config import load
from pretrain.machine.signals import StopRequest
from pretrain.models import MODELS, active_parameters
from pretrain.policy.experts import STARVED

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "quickstart-text.yaml"
COUNT = 8
WATCHED = "monitors.experts.every_n_steps=20"
KINDS: dict[str, tuple[str, ...]] = {
    "dense": (),
    "balanced": (f"model.experts={{count: {COUNT}, top_k: 2, balance: 0.001, auxiliary_weight: 0.1}}", WATCHED),
    "unbalanced": (f"model.experts={{count: {COUNT}, top_k: 2, balance: 0}}", WATCHED),
}
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Found:
    """What a run came to.

    loss: on text that no step has seen, after the last one, in nats per byte. parameters, active: of the model, and of
    those that one position meets. smallest_share: the least load of an expert at a look of the second half of the run,
    as a part of an equal one, 1.0 being an equal one; None of a dense model. dead: how many experts the alarm was
    raised for.
    """

    kind: str
    seed: int
    loss: float
    parameters: int
    active: int
    smallest_share: float | None
    dead: int


def run(kind: str, seed: int, steps: int, folder: Path, extra: Iterable[str] = ()) -> Found:
    """Train one model from nothing and read what its stream says."""
    overrides = [f"run.dir={folder}", f"training.max_steps={steps}", f"training.seed={seed}", *KINDS[kind], *extra]
    config = load(CONFIG, overrides)
    model = MODELS[config.model.name].build(config.model.settings, InputSpec("tokens", 256), 128, seed)
    result = start_attempt(config, StopRequest(), [])
    if result.verdict != "done":
        sys.exit(f"{kind}, seed {seed}: expected a run that is done, found {result}")
    stream = (folder / "attempts" / "0001" / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in stream.splitlines()]
    last = next(row for row in reversed(rows) if row["event"] == "validation")
    return Found(
        kind, seed, last["loss"], rows[0]["parameters"], active_parameters(model), least_share(rows), dead(rows)
    )


def least_share(rows: Rows) -> float | None:
    """Return the smallest load of an expert at a look of the second half of a run, as a part of an equal one.

    A look is at one step of 2,048 positions.
    """
    half = max(row["step"] for row in rows if row["event"] == "step") / 2
    looks = [row for row in rows if row["event"] == "monitor" and row["name"] == "experts" and row["step"] > half]
    return min((share * COUNT for row in looks for share in row["values"]["load"].values()), default=None)


def dead(rows: Rows) -> int:
    """Return for how many experts `dead_expert` was raised."""
    return len({row["subject"] for row in rows if row["event"] == "alarm" and row["name"] == "dead_expert"})


def verdicts(found: Iterable[Found]) -> dict[str, bool]:
    """Return what is to be shown, each with whether the runs show it."""
    by_kind: defaultdict[str, list[Found]] = defaultdict(list)
    for one in found:
        by_kind[one.kind].append(one)
    balanced = by_kind["balanced"]
    losses = {kind: fmean(one.loss for one in runs) for kind, runs in by_kind.items()}
    return {
        "the mean loss of the balanced mixture is below that of the dense model": losses["balanced"] < losses["dense"],
        "without balancing the alarm of dead experts came in every run": all(one.dead for one in by_kind["unbalanced"]),
        "with it it came in none": not any(one.dead for one in balanced),
        "and no expert had less than a quarter of an equal share": all(
            (one.smallest_share or 0.0) >= STARVED for one in balanced
        ),
    }


def line(one: Found) -> str:
    """Return a run as one line of the table."""
    share = "" if one.smallest_share is None else f"{one.smallest_share:.3f}"
    return f"{one.kind:<12}{one.seed:>5}{one.loss:>10.4f}{one.parameters:>12,}{one.active:>10,}{share:>10}{one.dead:>6}"


def main() -> None:
    """Read the words of the command line, run, print the table, and exit with 1 where something is not shown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=700)
    arguments = parser.parse_args()
    print(f"{'':<12}{'seed':>5}{'loss':>10}{'parameters':>12}{'active':>10}{'smallest':>10}{'dead':>6}", flush=True)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(1, arguments.seeds + 1):
            for kind in KINDS:
                found.append(run(kind, seed, arguments.steps, Path(folder) / f"{kind}-{seed}"))
                print(line(found[-1]), flush=True)
    for kind in KINDS:
        print(f"{kind:<12} mean{fmean(one.loss for one in found if one.kind == kind):>10.4f}")
    shown = verdicts(found)
    for what, is_so in shown.items():
        print(f"{'yes' if is_so else 'NO':<4}{what}")
    sys.exit(0 if all(shown.values()) else 1)


if __name__ == "__main__":
    main()
