"""A run that is killed is trained on the samples of the untouched one; a resume that is wrong by a batch is found."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pretrain.state import RunState
from tests.loop.forks import Forks, Order, live_on
from tests.loop.lineages import small_config
from tests.loop.sample_ledger import LedgerLineage, Samples, check_samples, ledger_of, samples_of

# 15 windows or 14 are 7 whole steps of two, so that 9 steps end within the second epoch.
SMALL_DATA = {
    "text": ("data.train.letters.span=[0.0, 0.07]",),
    "iq": ("data.train.signals.windows=15", "data.train.signals.span=[0.0, 1.0]"),
}


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as process:
        yield process


@pytest.fixture(scope="module", params=["text", "iq"])
def killed(request: pytest.FixtureRequest, forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run that is done, `untouched`, and one that was killed three times, the last at step 8."""
    folder = tmp_path_factory.mktemp(request.param)
    config = small_config(folder, request.param, 9, 2, *SMALL_DATA[request.param])
    LedgerLineage(forks, config, folder / "untouched").live()
    run = LedgerLineage(forks, config, folder / "run")
    for step in (4, 4, 8):  # the second time it is the child that dies where its parent did
        run.live(armed_by=f"step_{step:08}", kill_at=5)
    assert run.newest_step() == 6
    return folder


def go_on(killed: Path, forks: Forks, folder: Path, does: str = "") -> Samples:
    """Let a copy of the killed run go on to its end, as `does` says, and return what its end was trained on."""
    run = folder / "run"
    shutil.copytree(killed / "run", run)
    shutil.copy(ledger_of(killed / "run"), ledger_of(run))
    (config,) = killed.glob("small-*.yaml")
    assert LedgerLineage(forks, config, run).live(does=f"{__name__}:{does}" if does else "").exit_code == 0
    return samples_of(run)


def resume_late(order: Order) -> int:
    """Leave one batch out."""
    return _live_moved(order, 1)


def resume_early(order: Order) -> int:
    """Take the batch before once more."""
    return _live_moved(order, -1)


def _live_moved(order: Order, steps: int) -> int:
    real = RunState.restore_scalars

    def restore_scalars(self: RunState, step: int, batch: int, scalars: dict[str, Any]) -> None:
        loader = scalars["loader"]
        real(self, step, batch, {**scalars, "loader": {**loader, "position": loader["position"] + 2 * steps}})

    RunState.restore_scalars = restore_scalars  # type: ignore[method-assign]
    return live_on(order)


def test_killed_it_is_trained_on_the_same_samples(killed: Path, forks: Forks, tmp_path: Path) -> None:
    untouched = samples_of(killed / "untouched")
    assert [len(ids) for _, ids in untouched.batches.values()] == [2] * 9
    assert [epoch for epoch, _ in untouched.batches.values()] == [0] * 7 + [1] * 2
    assert untouched.windows in (14, 15)
    found = go_on(killed, forks, tmp_path)
    check_samples(found, untouched)
    lines = ledger_of(tmp_path / "run").read_text().splitlines()
    assert len(lines) > len(found.batches), "no batch was read by an attempt that was lost"


@pytest.mark.parametrize("does", ["resume_late", "resume_early"])
def test_a_resume_that_is_wrong_by_a_batch_is_found(killed: Path, forks: Forks, tmp_path: Path, does: str) -> None:
    found, untouched = go_on(killed, forks, tmp_path, does), samples_of(killed / "untouched")
    assert found.of_step(6) == untouched.of_step(6)
    with pytest.raises(AssertionError, match=re.escape(f"step 7: expected epoch and windows {untouched.of_step(7)}")):
        check_samples(found, untouched)


@pytest.mark.parametrize(
    ("does", "what"), [("resume_late", "epoch 0 leaves out"), ("resume_early", "epoch 0 has a window twice")]
)
def test_a_batch_twice_or_left_out_is_found_without_another_run(
    killed: Path, forks: Forks, tmp_path: Path, does: str, what: str
) -> None:
    """Where the untouched run has the same fault, its own epochs tell."""
    found = go_on(killed, forks, tmp_path, does)
    with pytest.raises(AssertionError, match=what):
        check_samples(found, found)
