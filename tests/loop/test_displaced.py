"""A run whose folder is moved, replaced or removed under it, or whose lock is, writes nothing more by that path."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pretrain.attempt import AttemptResult, resume_attempt, start_attempt
from pretrain.machine.signals import StopRequest
from pretrain.telemetry.sink import End, Event, StepRow
from tests.cli.calling import pretrain
from tests.loop.lineages import end_of, tree
from tests.tiny import Recorder, tiny, train


class Meddler(Recorder):
    """Does something to the run once its fifth step has been shown, which the checkpoint of step 4 is saved before."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self._work = work

    def emit(self, event: Event) -> None:
        super().emit(event)
        if isinstance(event, StepRow) and event.step == 5:
            self._work()

    @property
    def end(self) -> End:
        (found,) = (event for event in self.events if isinstance(event, End))
        return found


@pytest.fixture
def untouched(tmp_path: Path) -> Path:
    assert train(tiny(tmp_path, run="untouched")).verdict == "done"
    return tmp_path / "untouched"


def meddled(folder: Path, work: Callable[[], object]) -> tuple[AttemptResult, End]:
    sink = Meddler(work)
    return start_attempt(tiny(folder), StopRequest(), [sink]), sink.end


def assert_displaced(result: AttemptResult, end: End, run: Path) -> None:
    assert (result.verdict, result.exit_code, result.step) == ("storage", 6, 8)
    assert f"{run / 'run.lock'}: not the lock that this process took" in (end.reason or "")
    assert not end.resumable


def test_where_another_run_lies_in_its_place_that_one_keeps_every_byte(tmp_path: Path, untouched: Path) -> None:
    run, away = tmp_path / "run", tmp_path / "away"
    other = shutil.copytree(untouched, tmp_path / "other")

    def replace() -> None:
        run.rename(away)
        other.rename(run)

    before = tree(untouched)
    result, end = meddled(tmp_path, replace)
    assert_displaced(result, end, run)
    assert tree(run) == before
    assert resume_attempt(away, [], StopRequest(), []).verdict == "done"
    assert end_of(away) == end_of(untouched)


def test_moved_away_it_makes_no_second_folder_and_goes_on_where_it_lies(tmp_path: Path, untouched: Path) -> None:
    run, away = tmp_path / "run", tmp_path / "away"
    result, end = meddled(tmp_path, lambda: run.rename(away))
    assert_displaced(result, end, run)
    assert not run.exists()
    last = json.loads((away / "attempts/0001/events.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["verdict"]) == ("end", "storage"), "the streams follow the folder"
    assert resume_attempt(away, [], StopRequest(), []).verdict == "done"
    assert end_of(away) == end_of(untouched)


def test_behind_a_link_that_leads_elsewhere_by_now_nothing_is_written(tmp_path: Path, untouched: Path) -> None:
    link, real = tmp_path / "run", tmp_path / "real"
    real.mkdir()
    link.symlink_to(real)

    def turn() -> None:
        link.unlink()
        link.symlink_to(untouched)

    before = tree(untouched)
    result, end = meddled(tmp_path, turn)
    assert_displaced(result, end, link)
    assert tree(untouched) == before
    assert resume_attempt(real, [], StopRequest(), []).verdict == "done"
    assert end_of(real) == end_of(untouched)


def test_removed_it_ends_at_the_next_save_and_leaves_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    result, end = meddled(tmp_path, lambda: shutil.rmtree(run))
    assert_displaced(result, end, run)
    assert not run.exists()


def test_without_its_lock_it_prunes_nothing_of_whoever_goes_on_from_it(tmp_path: Path, untouched: Path) -> None:
    run = tmp_path / "run"

    def unlock() -> None:
        (run / "run.lock").unlink()
        assert resume_attempt(run, [], StopRequest(), []).verdict == "done"

    result, end = meddled(tmp_path, unlock)
    assert_displaced(result, end, run)
    assert not (run / "attempts/0001/outcome.json").exists()
    assert pretrain("verify-manifest", run, "--lineage").code == 0
    assert end_of(run) == end_of(untouched)
