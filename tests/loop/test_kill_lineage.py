"""Killed anywhere, any number of times, a run ends in the same bytes as the one that was never touched."""

import itertools
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pretrain import files, lineage, reading
from pretrain.evidence import namespace
from tests.loop.forks import Forks, Life, Order
from tests.loop.lineages import End, Lineage, end_of, small_config
from tests.loop.probes import newest_attempt

# Two refusals, a rollback from within the window of a checkpoint, and a refusal behind it.
HURT = "faults.inject=[nan_grad@1, inf_loss@3, nan_weight@5, nan_grad@7]"


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRETRAIN_ALLOW_FAULTS", "1")
        with Forks() as process:
            yield process


@dataclass(frozen=True)
class Untouched:
    """A run that was never killed: its config, how it ended, and the life it took."""

    config: Path
    end: End
    life: Life


def untouched(
    forks: Forks, folder: Path, task: str, max_steps: int, every: int = 2, overrides: tuple[str, ...] = ()
) -> Untouched:
    config = small_config(folder, task, max_steps, every, *overrides)
    life = forks.live(Order(str(folder / "untouched"), str(folder / "untouched.log"), str(config)))
    assert life.exit_code == 0
    return Untouched(config, end_of(folder / "untouched"), life)


def finish(run: Lineage, reference: Untouched) -> None:
    """Let the run live to its end, which is that of the untouched one."""
    assert run.live().exit_code == 0, run.lives
    assert end_of(run.run) == reference.end, run.lives
    run.check_attempts()


def test_a_hundred_kills(forks: Forks, tmp_path: Path) -> None:
    reference = untouched(forks, tmp_path, "text", max_steps=150)
    run = Lineage(forks, reference.config, tmp_path / "run")
    chance = random.Random(1)

    for kill_at in (1, 3, 5, 8, 11):
        run.live(kill_at=kill_at, torn=True)
    assert run.kinds == {"unborn": 5}, "attempt 0001 stood before its birth was over"
    while len(run.lives) < 90:
        run.live(kill_at=chance.randint(1, 160), torn=chance.random() < 0.5)
    for kill_at in (1, 20, 40):
        run.live(armed_by="step_00000150", kill_at=kill_at)
    for kill_at in (1, 2, 3):
        run.live(armed_by="manifest.json", kill_at=kill_at)
    run.live(armed_by="manifest.json", kill_at=2, torn=True)
    for kill_at in (4, 12, 30):
        run.live(kill_at=kill_at)

    assert len(run.lives) == 100
    assert not [life for life in run.lives if life.exit_code is not None], "a life ended before its kill"
    assert min(run.kinds[kind] for kind in ("unborn", "progress", "no progress")) >= 10, run.kinds
    finish(run, reference)
    assert run.live().changes == 0, "a run that is done has nothing left to do"


def test_killed_at_any_moment(forks: Forks, tmp_path: Path) -> None:
    """What no system call marks: within a forward pass, an import, a read-ahead."""
    reference = untouched(forks, tmp_path, "iq", max_steps=150)
    run = Lineage(forks, reference.config, tmp_path / "run")
    chance = random.Random(2)
    for _ in range(15):
        run.live(delay_seconds=chance.uniform(0.0, 0.3))
    finish(run, reference)
    assert sum(run.kinds.values()) >= 5, "hardly any life was killed"  # how many depends on the machine


def test_s31_two_runs_at_once_each_killed_and_restarted_five_times(forks: Forks, tmp_path: Path) -> None:
    """What a death in the middle of a checkpoint leaves has a name of its own, is reported, and is nobody else's."""
    reference = untouched(forks, tmp_path, "text", max_steps=12)
    runs = [Lineage(forks, reference.config, tmp_path / name) for name in ("one", "other")]
    left: set[Path] = set()
    for number in range(5):
        config = None if number else str(reference.config)
        orders = [
            Order(str(run.run), f"{run.run}.log", config, armed_by="shard_0", kill_at=3 + 8 * place, torn=True)
            for place, run in enumerate(runs)
        ]
        for run, life in zip(runs, forks.together(orders), strict=True):
            assert life.exit_code is None, life
            run.lived(life, f"killed {number + 1} times")
            attempt = newest_attempt(run.run)
            names = temporaries(attempt)
            assert len(names) == 1, life
            assert names <= {*lineage.verify(attempt).extra}, lineage.verify(attempt).text()
            left |= {attempt / name for name in names}
    for run in runs:
        finish(run, reference)
        assert len(namespace.list_attempts(run.run)) == 6
    assert left == {run.run / name for run in runs for name in temporaries(run.run)}
    assert len({path.name for path in left}) == 10, left


def temporaries(folder: Path) -> set[str]:
    return {name for name, _ in reading.walk(folder) if files.TEMPORARY.fullmatch(name.rpartition("/")[2])}


def kill_while_it_trains(forks: Forks, reference: Untouched, run: Path, kill_at: int) -> Iterator[Life]:
    """Kill the first life of a run at a change, and once more within that change where it is a write of rows."""
    for torn in (False, True):
        lineage = Lineage(forks, reference.config, run)
        life = lineage.live(kill_at=kill_at, torn=torn)
        assert life.exit_code is None
        finish(lineage, reference)
        shutil.rmtree(run)
        yield life
        if not life.last.startswith("write") or "shard" in life.last:
            return


def sweep_training(
    forks: Forks, folder: Path, task: str, first: int, stride: int, overrides: tuple[str, ...] = ()
) -> list[Life]:
    reference = untouched(forks, folder, task, 4, overrides=overrides)
    points = range(first, reference.life.changes + 1, stride)
    return list(
        itertools.chain.from_iterable(kill_while_it_trains(forks, reference, folder / "run", at) for at in points)
    )


def sweep_resuming(forks: Forks, folder: Path, task: str, first: int, stride: int) -> list[Life]:
    """Kill a resume at each change, then the resume of that at the same one, and let the third end the run."""
    reference = untouched(forks, folder, task, max_steps=4)
    parent = Lineage(forks, reference.config, folder / "parent")
    parent.live(armed_by="step_00000004", kill_at=5)
    shutil.copytree(folder / "parent", folder / "run")
    whole = Lineage(forks, reference.config, folder / "run")
    finish(whole, reference)
    lives = []
    for kill_at in range(first, whole.lives[0].changes + 1, stride):
        shutil.rmtree(folder / "run")
        shutil.copytree(folder / "parent", folder / "run")
        run = Lineage(forks, reference.config, folder / "run")
        lives.append(run.live(kill_at=kill_at))
        assert lives[-1].exit_code is None
        if run.live(kill_at=kill_at, torn=True).exit_code is None:  # 0 where the first one left little to do
            lives.append(run.lives[-1])
        finish(run, reference)
    return lives


# How many points are visited is asserted, so that a change of the disk that is not seen any more does not go unnoticed.


def test_s24_killed_at_some_changes(forks: Forks, tmp_path: Path) -> None:
    assert len(sweep_training(forks, tmp_path, "text", first=1, stride=17)) >= 12


def test_killed_at_some_changes_while_it_resumes(forks: Forks, tmp_path: Path) -> None:
    assert len(sweep_resuming(forks, tmp_path, "iq", first=1, stride=19)) >= 9


def test_killed_at_some_changes_of_a_run_that_is_hurt(forks: Forks, tmp_path: Path) -> None:
    """Between an incident's file and its row, and between the row of a rollback and what it undoes."""
    assert len(sweep_training(forks, tmp_path, "text", 1, stride=31, overrides=(HURT,))) >= 8


@pytest.mark.slow
def test_killed_at_many_changes_of_a_run_that_is_hurt(forks: Forks, tmp_path: Path) -> None:
    assert len(sweep_training(forks, tmp_path, "text", 2, stride=5, overrides=(HURT,))) >= 50


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 2])
def test_killed_at_every_change(forks: Forks, tmp_path: Path, first: int) -> None:
    assert len(sweep_training(forks, tmp_path, "text", first, stride=2)) >= 99


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 2])
def test_killed_at_every_change_while_it_resumes(forks: Forks, tmp_path: Path, first: int) -> None:
    assert len(sweep_resuming(forks, tmp_path, "iq", first, stride=2)) >= 72
