"""A signal at any moment of a run, and at any moment of the run that goes on from it: the end is the same bytes."""

from pathlib import Path

import pytest

from pretrain import syscalls
from pretrain.config import RunConfig
from tests.loop.lineages import end_of
from tests.loop.probes import Moments, Unsynced, hook_loss, poison
from tests.tiny import tiny

# Validation at steps 2, 4 and 5, checkpoints at 3 and 5, and the batch after the first validation is refused.
SHORT = (
    *("training.max_steps=5", "training.gradient_accumulation_steps=1", "validation.validate_every_n_steps=2"),
    *("checkpoint.checkpoint_every_n_steps=3", "model.layers=1", "validation.batch_size=8"),
)
REFUSED = {(0, 2 * 2): "loss"}


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "system", Unsynced())


def short(folder: Path, task: str, run: str, *overrides: str) -> RunConfig:
    return tiny(folder, task, *SHORT, *overrides, run=run)


@pytest.mark.parametrize("task", ["text", "iq"])
def test_a_signal_at_any_moment_and_at_any_moment_of_the_child(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook_loss(monkeypatch, poison(REFUSED))
    moments = Moments(monkeypatch)
    assert moments.live(short(tmp_path, task, "untouched")).verdict == "done"
    reference, whole = end_of(tmp_path / "untouched"), moments.count
    stopped = 0
    for first in range(1, whole + 1):
        second = 2 + first % 9  # within what the child makes up for, or soon after it
        run = tmp_path / f"run-{first}"
        results = [moments.live(short(tmp_path, task, run.name), first)]
        results += [moments.live(run, at) for at in (second, 0)]
        stopped += [result.verdict for result in results].count("interrupted")
        assert results[-1].verdict == "done", (first, second, results)
        assert end_of(run) == reference, (first, second)
    assert whole >= 25, "hardly any moment was watched"
    assert stopped >= 1.4 * whole, "hardly any signal was heard"
