"""L2: lineages of 100 kills over both tasks, saving at every step, seldom, and out of step with the epochs."""

import math
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from pretrain.build import build_data
from pretrain.config import load
from pretrain.evidence import checkpoint, events, namespace
from tests.drill.layer import Layer
from tests.loop.forks import Forks, Order
from tests.loop.lineages import End, end_of, small_config
from tests.loop.sample_ledger import LedgerLineage, Samples, ledger_of, samples_of

SEEDS = 10
BIRTH = 10  # changes of the disk, at the most, within which an attempt has not been born yet
KILLS = {True: 100, False: 25}


@dataclass(frozen=True)
class Variant:
    """How a run saves, and how long its lives may be.

    every: steps between two checkpoints. reach: a life is killed at a change of the disk between 1 and this. steps: of
    the run for each kill, more than its lives can take. epoch: of these steps, None = as the data are.
    """

    every: int
    reach: int
    steps: int
    epoch: int | None = None


VARIANTS = {
    "plain": Variant(every=2, reach=160, steps=3),
    "every-step": Variant(every=1, reach=90, steps=2),
    "seldom": Variant(every=30, reach=170, steps=14),
    "coprime": Variant(every=3, reach=110, steps=3, epoch=7),
}
# Data of which an epoch is so many steps of one micro-batch of two windows.
EPOCHS = {
    ("text", 7): ("data.train.letters.span=[0.0, 0.07]",),
    ("iq", 7): ("data.train.signals.windows=15", "data.train.signals.span=[0.0, 1.0]"),
}


class Lineages:
    """Each task, variant, seed; the untouched run of a task and a variant is trained when one is first asked for."""

    def __init__(self, forks: Forks, folder: Path, seed: int) -> None:
        self._forks, self._folder, self._seed = forks, folder, seed
        self._known: dict[tuple[str, str, int], tuple[Path, End, Samples]] = {}

    def points(self, *, whole: bool) -> Sequence[str]:
        """Each seed is of one variant, in turn; a quick part is one lineage of a quarter of the kills."""
        names = list(VARIANTS)
        if not whole:
            return [f"iq {names[-1]} {self._seed} {KILLS[whole]}"]
        return [
            f"{task} {names[number % len(names)]} {self._seed * SEEDS + number} {KILLS[whole]}"
            for task in ("text", "iq")
            for number in range(SEEDS)
        ]

    def check(self, point: str, folder: Path) -> None:
        """Kill life after life, from the birth of the first attempt to the last manifest; compare ends and samples."""
        task, name, seed, kills = point.split()
        steps = VARIANTS[name].steps * int(kills)
        config, end, samples = self._untouched(task, name, steps)
        variant, chance = VARIANTS[name], random.Random(f"{task} {name} {seed}")
        run = LedgerLineage(self._forks, config, folder / "run")
        for kill_at in (1, 6, 11):
            run.live(kill_at=kill_at, torn=True)
        assert run.kinds == {"unborn": 3}, f"attempt 0001 stood before its birth was over: {run.lives}"
        before = run.newest_step()
        while len(run.lives) < int(kills) - 7:
            reach = BIRTH if len(run.lives) % 15 == 0 else variant.reach
            run.live(kill_at=chance.randint(1, reach), torn=chance.random() < 0.5)
            assert run.newest_step() >= before, f"the run went back: {run.lives[-1]}"
            before = run.newest_step()
        for place, kill_at in ((f"step_{steps:08}", 1), (f"step_{steps:08}", 20), ("manifest.json", 1)):
            run.live(armed_by=place, kill_at=kill_at)
        run.live(armed_by="manifest.json", kill_at=2, torn=True)
        for kill_at in (4, 12, 30):
            run.live(kill_at=kill_at)
        assert len(run.lives) == int(kills)
        assert all(life.exit_code is None for life in run.lives), f"a life ended before its kill: {run.lives}"
        # Where most lives are shorter than the time between two checkpoints, the long ones still bring it on.
        assert min(run.kinds[kind] for kind in ("unborn", "progress")) >= int(kills) // 12, run.kinds
        assert name != "seldom" or run.kinds["no progress"] > run.kinds["progress"], run.kinds
        assert run.live().exit_code == 0, run.lives
        assert_standstills_are_told(run.run)
        assert end_of(run.run) == end, f"another end: {run.lives}"
        run.check_attempts()
        run.check_samples(samples)

    def _untouched(self, task: str, name: str, steps: int) -> tuple[Path, End, Samples]:
        if (task, name, steps) not in self._known:
            own, variant = self._folder / f"{task}-{name}-{steps}", VARIANTS[name]
            own.mkdir()
            more = EPOCHS[task, variant.epoch] if variant.epoch else ()
            config = small_config(own, task, steps, variant.every, *more)
            if variant.epoch:
                windows = sum(row["windows"] for row in build_data(load(config)).records if "train" in row["domain"])
                assert windows // 2 == variant.epoch, f"{task}: an epoch is {windows // 2} steps of two windows"
                assert math.gcd(variant.epoch, variant.every) == 1
            ledger = str(ledger_of(own / "run"))
            life = self._forks.live(Order(str(own / "run"), str(own / "run.log"), str(config), ledger=ledger))
            assert life.exit_code == 0, life
            self._known[task, name, steps] = config, end_of(own / "run"), samples_of(own / "run")
        return self._known[task, name, steps]


def assert_standstills_are_told(run: Path) -> None:
    """An attempt that saved a checkpoint has told of those right before it that saved none, from three on."""
    barren = 0
    for number in namespace.list_attempts(run):
        attempt = namespace.attempt_folder(run, number)
        if not checkpoint.list_checkpoints(attempt):
            barren += 1
            continue
        told = [row["text"] for row in events.read(attempt) if row.get("event") == "warning"]
        found = [text for text in told if text.startswith("no progress in")]
        assert len(found) == (barren >= 3), f"attempt {number:04d}, after {barren} without a checkpoint: {told}"
        assert all(text.startswith(f"no progress in {barren} attempts: ") for text in found), found
        barren = 0


@contextmanager
def opened(folder: Path, seed: int) -> Iterator[Lineages]:
    """Start the process that forks."""
    with mock.patch.dict(os.environ, OMP_NUM_THREADS="1"), Forks() as forks:
        yield Lineages(forks, folder, seed)


LAYER = Layer("L2", "lineages of 100 kills, saved at every step, seldom, out of step with the epochs", (1, 20), opened)
