"""A batch refused right after a validation, and a signal right after that, change no row of the stream."""

from pathlib import Path

import pytest
import torch

from pretrain.loop import steps as loop_steps
from tests.tiny import go_on, tiny, train

POISONED = 3 * 4  # the position of the fourth batch, which meets a validated step that no checkpoint holds


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    accumulate = loop_steps.accumulate

    def poisoned(model, task, batch, *rest):
        loss, supervised = accumulate(model, task, batch, *rest)
        return (torch.full_like(loss, torch.nan) if batch.position == POISONED else loss), supervised

    monkeypatch.setattr(loop_steps, "accumulate", poisoned)


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("stop_after", [3, 4, 5])
def test_stopped_around_the_refusal(tmp_path: Path, stop_after: int) -> None:
    every_three = "validation.validate_every_n_steps=3"
    whole = train(tiny(tmp_path, "text", every_three, run="whole"))
    cut = train(tiny(tmp_path, "text", every_three, run="cut"), stop_after)
    assert (whole.verdict, cut.verdict) == ("done", "interrupted")
    assert go_on(tmp_path / "cut").checkpoint == whole.checkpoint
    one, two = (tmp_path / part / "metrics.jsonl" for part in ("whole/attempts/0001", "cut/attempts/0002"))
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes().count(b'"skipped"') == 1
