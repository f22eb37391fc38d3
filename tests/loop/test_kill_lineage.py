"""Killed anywhere, any number of times, a run ends in the same bytes as the one that was never touched."""

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.loop.forks import Forks, Life, Order
from tests.loop.lineages import End, Lineage, end_of, small_config

BIRTH = 14  # changes of the disk until attempt 0001 stands: two folders, the lock, the attempt and its three files


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as process:
        yield process


@dataclass(frozen=True)
class Untouched:
    """A run that was never killed: its config, how it ended, and the life it took."""

    config: Path
    end: End
    life: Life


def untouched(forks: Forks, folder: Path, task: str, max_steps: int, every: int) -> Untouched:
    config = small_config(folder, task, max_steps, every)
    life = forks.live(Order(str(folder / "untouched"), str(folder / "untouched.log"), str(config)))
    assert life.exit_code == 0
    return Untouched(config, end_of(folder / "untouched"), life)


def test_a_hundred_kills(forks: Forks, tmp_path: Path) -> None:
    reference = untouched(forks, tmp_path, "text", max_steps=100, every=2)
    run = Lineage(forks, reference.config, tmp_path / "run")
    chance = random.Random(1)

    for kill_at in (1, 3, 5, 9, 13):
        run.live(kill_at=kill_at, torn=True)
    assert run.kinds == {"unborn": 5}
    while len(run.lives) < 90:
        run.live(kill_at=chance.randint(1, 160), torn=chance.random() < 0.5)
    for kill_at in (1, 20, 40):
        run.live(armed_by="step_00000100", kill_at=kill_at)
    for kill_at in (1, 2, 3):
        run.live(armed_by="manifest.json", kill_at=kill_at)
    run.live(armed_by="manifest.json", kill_at=2, torn=True)
    for kill_at in (4, 12, 30):
        run.live(kill_at=kill_at)

    assert len(run.lives) == 100
    assert all(life.exit_code is None for life in run.lives), "a life ended before its kill"
    print(run.kinds, len(run.lives))
    assert min(run.kinds[kind] for kind in ("unborn", "progress", "no progress")) >= 10, run.kinds
    assert run.live().exit_code == 0
    assert end_of(run.run) == reference.end
    run.check_attempts()
    assert run.live().changes == 0, "a run that is done has nothing left to do"
