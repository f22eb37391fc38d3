"""Attempts that are killed before their first checkpoint, one after the other: the run says that it stands still."""

from pathlib import Path

import pytest

from pretrain import syscalls
from pretrain.attempt import resume_attempt
from pretrain.machine.signals import StopRequest
from tests.loop.lineages import end_of
from tests.loop.probes import Unsynced, killed_at
from tests.tiny import Recorder, go_on, tiny, train


def told(run: Path, stop_after: int | None = None) -> list[str]:
    """Resume, and return what was said of attempts without a checkpoint."""
    stop = StopRequest()
    screen = Recorder(stop, stop_after)
    resume_attempt(run, [], stop, [screen])
    texts = [getattr(event, "text", "") for event in screen.events]
    return [text for text in texts if text.startswith("no progress")]


@pytest.mark.parametrize("killed", [2, 3, 4])
def test_three_attempts_without_a_checkpoint_are_told_of(
    killed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syscalls, "system", Unsynced())
    run = tmp_path / "run"
    assert train(tiny(tmp_path), 6).verdict == "interrupted"
    for _ in range(killed):
        with killed_at(monkeypatch, "pretrain.attempt.run.train"):
            go_on(run)
    found = told(run, stop_after=1)
    assert len(found) == (killed >= 3)
    for text in found:
        assert text.startswith(f"no progress in {killed} attempts: 0002 to {killed + 1:04d} left no checkpoint")
        assert "stands at step 6; one is saved every 4 steps" in text
    assert told(run) == [], "an attempt has saved a checkpoint since"
    assert train(tiny(tmp_path, run="untouched")).verdict == "done"
    assert end_of(run) == end_of(tmp_path / "untouched")
