"""L1: SIGKILL before every change of the disk, or in the middle of a write; then resumed to the end."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from tests.drill.layer import Layer
from tests.loop.forks import Forks, Order
from tests.loop.lineages import End, end_of, small_config
from tests.loop.sample_ledger import LedgerLineage, Samples, ledger_of, samples_of

# Two refusals, a rollback from within the window of a checkpoint, and a refusal behind it.
HURT = "faults.inject=[nan_grad@1, inf_loss@3, nan_weight@5, nan_grad@7]"
RUNS = {"text": (6, ()), "iq": (6, ()), "hurt": (8, (HURT,))}


class Sweep:
    """Short runs of both tasks, and one that is hurt, counted once untouched."""

    def __init__(self, forks: Forks, folder: Path, seed: int) -> None:
        self._forks, self._seed = forks, seed
        self._configs: dict[str, Path] = {}
        self._ends: dict[str, End] = {}
        self._changes: dict[str, int] = {}
        self._samples: dict[str, Samples] = {}
        for name, (steps, overrides) in RUNS.items():
            own = folder / name
            own.mkdir()
            config = small_config(own, "iq" if name == "iq" else "text", steps, 2, *overrides)
            ledger = str(ledger_of(own / "run"))
            life = forks.live(Order(str(own / "run"), str(own / "run.log"), str(config), ledger=ledger))
            self._samples[name] = samples_of(own / "run")
            self._configs[name], self._ends[name], self._changes[name] = config, end_of(own / "run"), life.changes

    def points(self, *, whole: bool) -> Sequence[str]:
        """Every change of the disk, by turns before it and in the middle of it; of a quick part every 25th.

        Five of six changes are writes, so that to die both before and in each would take nearly twice as long: one
        seed does half of that, and the next one, which tears what this one dies before, the other half. The runs take
        the places of a quick part in turn.
        """
        every = 1 if whole else 25
        return [
            f"{name} {('before', 'torn')[(at // every + self._seed) % 2]} {at}"
            for number, name in enumerate(self._configs)
            for at in range(1 if whole else 1 + number, self._changes[name] + 1, every)
        ]

    def check(self, point: str, folder: Path) -> None:
        """Die, die again early in the recovery, and live on to the end of the untouched run."""
        name, kind, at = point.split()
        run = LedgerLineage(self._forks, self._configs[name], folder / "run")
        run.live(kill_at=int(at), torn=kind == "torn")
        run.live(kill_at=1 + int(at) % 40, torn=kind == "torn")
        assert run.live().exit_code == 0, run.lives
        assert end_of(run.run) == self._ends[name], f"another end: {run.lives}"
        run.check_attempts()
        run.check_samples(self._samples[name])


@contextmanager
def opened(folder: Path, seed: int) -> Iterator[Sweep]:
    """Start the process that forks, and count."""
    with mock.patch.dict(os.environ, PRETRAIN_ALLOW_FAULTS="1"), Forks() as forks:
        yield Sweep(forks, folder, seed)


LAYER = Layer("L1", "SIGKILL at every change of the disk, and again in the recovery", (32, 793), opened)
