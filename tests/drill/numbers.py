"""L9: numbers that are not finite, or far too large, in losses, gradients, weights and batches; killed among them."""

import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import safetensors.torch

from pretrain import lineage
from pretrain.evidence import checkpoint, namespace
from tests.drill.layer import Layer
from tests.loop.forks import Forks, Order
from tests.loop.lineages import small_config

Ending = tuple[int, dict[str, Any], bytes, tuple[bytes, ...]]
ORDINARY = ("begin", "step", "validation")


@dataclass(frozen=True)
class Script:
    """Faults by the batch, and what must be on record of them at the end.

    inject: as in `faults.inject`. rows: how many rows there are of each kind besides steps and validations, refusals
    by their reason. exit_code: of the run. unseen: the rows where only every third step is scanned, if they are others.
    """

    inject: str
    rows: Mapping[str, int]
    exit_code: int = 0
    unseen: Mapping[str, int] | None = None
    overrides: tuple[str, ...] = ()
    steps: int = 12


# An element is scanned only where the clipped norm is above the threshold, and a spike is judged after a warmup.
SCANNED = ("training.grad_clip_max_norm=null", "guard.inf_post_clip_threshold=50")
WARM = ("spikes.warmup_steps=16", "spikes.window_steps=16")
SCRIPTS = {
    "first-gradient": Script("nan_grad@0", {"non_finite_norm": 1}),
    "gradient": Script("nan_grad@5", {"non_finite_norm": 1}),
    "losses": Script("inf_loss@3, inf_loss@4", {"non_finite_loss": 2}),
    "clipped": Script("huge_grad@4", {}),
    "overflow": Script("huge_grad@4x1e39", {"non_finite_norm": 1}),
    "element": Script("huge_grad@4", {"post_clip": 1}, unseen={}, overrides=SCANNED),
    "weight": Script("nan_weight@5", {"rolled_back": 1}),
    "first-weight": Script("nan_weight@0", {"non_finite_loss": 1, "rolled_back": 1}),
    "spike": Script("loss_spike@19x1e4", {"spike": 1}, overrides=WARM, steps=24),
    "batch": Script("corrupt_batch@5, inf_loss@5", {"non_finite_loss": 1}),
    "budget": Script(
        "nan_grad@4, inf_loss@5, nan_grad@6, inf_loss@7", {"non_finite_norm": 2, "non_finite_loss": 2}, exit_code=4
    ),
    "weights": Script(
        "nan_weight@3, nan_weight@9, nan_weight@14, nan_weight@20",
        {"non_finite_loss": 4, "rolled_back": 3},
        exit_code=4,
    ),
}


class Numbers:
    """Every script at one and at four micro-batches a step, scanned at every step and at every third."""

    def __init__(self, forks: Forks, seed: int) -> None:
        self._forks, self._seed = forks, seed

    def points(self, *, whole: bool) -> Sequence[str]:
        """All of them; of a quick part every eighth, so that each number of micro-batches and each cadence is there."""
        found = [f"{name} K={count} scan={every}" for name in SCRIPTS for count in (1, 4) for every in (1, 3)]
        return found if whole else [found[(9 * place) % len(found)] for place in range(6)]

    def check(self, point: str, folder: Path) -> None:
        """Look at the run that is hurt, then kill another one among its faults and in the recovery, and compare."""
        name, count, every = point.split()
        script, micro_batches, scanned = SCRIPTS[name], int(count[2:]), int(every[5:])
        overrides = (
            *(f"faults.inject=[{script.inject}]", f"training.gradient_accumulation_steps={micro_batches}"),
            *(f"guard.nan_check_interval={scanned}", *script.overrides),
        )
        config = small_config(folder, "text" if micro_batches == 1 else "iq", script.steps, 3, *overrides)
        ends = (script.exit_code,)
        order = Order(str(folder / "hurt"), str(folder / "hurt.log"), str(config))
        life = self._forks.live(order, ends)
        ending = ending_of(folder / "hurt")
        expected = script.unseen if scanned == 3 and script.unseen is not None else script.rows
        rows = [row for row in map(json.loads, ending[2].splitlines()) if row["event"] not in ORDINARY]
        assert Counter(row.get("reason", row["event"]) for row in rows) == expected, rows
        assert len(ending[3]) == len({row["incident"] for row in rows}), "an incident has no row, or a row no incident"
        assert_finite(folder / "hurt")

        chance, run, log = random.Random(f"{self._seed} {point}"), str(folder / "run"), str(folder / "run.log")
        kill_at = chance.randint(life.changes // 4, life.changes * 3 // 4)
        assert self._forks.live(Order(run, log, str(config), kill_at, torn=chance.random() < 0.5)).exit_code is None
        self._forks.live(Order(run, log, kill_at=chance.randint(1, 60)), ends)
        assert self._forks.live(Order(run, log), ends).exit_code == script.exit_code
        assert ending_of(folder / "run") == ending, f"another end after a kill at {kill_at}"
        assert_finite(folder / "run")


def ending_of(run: Path) -> Ending:
    """Return how a run ended: what its outcome or manifest says beside the attempt, its rows and its incidents."""
    number = namespace.newest(run)
    assert number is not None
    attempt = namespace.attempt_folder(run, number)
    found = lineage.verify(attempt)
    assert found.sound, found.text()
    if found.ok:
        record = json.loads((attempt / "manifest.json").read_bytes())
        kept = {name: record[name] for name in ("step", "batch", "latest", "counts", "faults", "bit_exact", "metrics")}
        assert record["faults"], "a run that was hurt passes as clean"
    else:
        record = json.loads((attempt / "outcome.json").read_bytes())
        kept = {name: record[name] for name in ("step", "batch", "checkpoint", "verdict", "reason", "incident")}
    incidents = tuple(path.read_bytes() for path in sorted(attempt.glob("incidents/*")))
    return record.get("exit_code", 0), kept, (attempt / "metrics.jsonl").read_bytes(), incidents


def assert_finite(run: Path) -> None:
    """No checkpoint of any attempt holds a number that is not finite."""
    count = 0
    for number in namespace.list_attempts(run):
        for _, folder in checkpoint.list_checkpoints(namespace.attempt_folder(run, number)):
            checkpoint.verify_checkpoint(folder)
            for shard in folder.glob("*.safetensors"):
                for name, tensor in safetensors.torch.load_file(shard).items():
                    count += 1
                    assert bool(tensor.isfinite().all()), f"{shard}: {name} is not finite"
    assert count > 0


@contextmanager
def opened(folder: Path, seed: int) -> Iterator[Numbers]:
    """Start the process that forks."""
    with mock.patch.dict(os.environ, PRETRAIN_ALLOW_FAULTS="1", OMP_NUM_THREADS="1"), Forks() as forks:
        yield Numbers(forks, seed)


LAYER = Layer("L9", "numbers that are not finite or too large, and kills among them", (6, 48), opened)
