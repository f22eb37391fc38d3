"""Experts against a dense model of equally many active parameters on real text, and with the balancing off.

Three runs for each seed, with the same data and the same number of steps: the dense model, the mixture, and the mixture
of one expert for each position without any balancing. Exit code 0 says that the mean loss of the mixture on text that no
step has seen is below that of the dense model; that without balancing the alarm of dead experts came in every run; and
that with it, over the second half of every run, no expert had less than a quarter of an equal share.
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

import torch

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
    "balanced": (f"model.experts={{count: {COUNT}, top_k: 2, balance: 0.001}}", WATCHED),
    "unbalanced": (f"model.experts={{count: {COUNT}, top_k: 1, balance: 0}}", WATCHED),
}
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Found:
    """What a run came to.

    loss: on text that no step has seen, after the last one, in nats per byte. parameters, active: of the model, and of
    those that one position meets. smallest_share: the least load of an expert in the second half of the run, as a part
    of an equal one, 1.0 being an equal one; None of a dense model. dead: how many experts the alarm was raised for.
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
    """Return the smallest load of an expert over the second half of a run, as a part of an equal one.

    The load is the mean over the looks of that half: one look is at 2,048 positions of the thousands between two looks.
    """
    looks = [row for row in rows if row["event"] == "monitor" and row["name"] == "experts"]
    last = max((row["step"] for row in rows if row["event"] == "step"), default=0)
    loads: defaultdict[str, list[float]] = defaultdict(list)
    for row in looks:
        for expert, share in row["values"]["load"].items() if row["step"] > last / 2 else ():
            loads[expert].append(share)
    return min((fmean(shares) for shares in loads.values()), default=None) and COUNT * min(
        fmean(shares) for shares in loads.values()
    )


def dead(rows: Rows) -> int:
    """Return for how many experts `dead_expert` was raised."""
    alarms = [row for row in rows if row["event"] == "alarm" and row["state"] == "raised"]
    return len({row["subject"] for row in alarms if row["name"] == "dead_expert"})
