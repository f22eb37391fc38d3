"""A validation of many batches that takes longer than the timeout, by a clock that moves only while one is scored."""

import dataclasses
import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pretrain import validation
from pretrain.batch import Batch
from pretrain.machine.signals import StopRequest
from pretrain.tasks.text import TextTask
from tests.machine.test_progress import TASK, model_of, validator
from tests.machine.test_watchdog import TIMEOUT, Process

NAP = TIMEOUT / 10
BATCHES = 6


class Clock:
    """A clock that each look of the watchdog moves by a nap, as long as there is time to pass."""

    def __init__(self) -> None:
        self.now, self.naps_left = 0.0, 0
        self.passed = threading.Condition()

    def __call__(self) -> float:
        with self.passed:
            if self.naps_left:
                self.now += NAP
                self.naps_left -= 1
                self.passed.notify()
            return self.now

    def take(self, naps: int, over: threading.Event) -> None:
        """Return when so much time has passed, or nobody looks at the clock any more."""
        with self.passed:
            self.naps_left = naps
            while self.naps_left and not over.is_set():
                self.passed.wait(0.05)  # `over` wakes nobody


@dataclasses.dataclass(frozen=True)
class SlowTask(TextTask):
    """Scores a batch in so many naps of the watchdog."""

    naps: int = 0
    process: Process | None = None
    clock: Clock | None = None

    def score(self, model: nn.Module, batch: Batch, device: torch.device) -> dict[str, torch.Tensor]:
        assert self.clock is not None
        assert self.process is not None
        self.clock.take(self.naps, self.process.over)
        return super().score(model, batch, device)


@pytest.mark.parametrize(
    ("naps", "counts", "codes"),
    [(5, True, []), (5, False, [8]), (15, True, [8])],
    ids=[
        "each batch takes half the timeout",
        "the same, and no batch counts",
        "each batch takes more than the timeout",
    ],
)
def test_a_validation_that_moves_is_left_alone(
    naps: int, counts: bool, codes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not counts:
        monkeypatch.setattr(validation, "progress", SimpleNamespace(moved=lambda: None))
    clock = Clock()
    process = Process(clock)
    task = SlowTask(TASK.vocabulary, TASK.max_positions, naps=naps, process=process, clock=clock)
    process.dog.start()
    results = validator(4, 4 * BATCHES, task).run(model_of(TASK), StopRequest())
    process.dog.close()
    assert results is not None
    assert process.codes == codes
    if not codes:
        assert clock.now == pytest.approx(BATCHES * naps * NAP)
        assert clock.now > 2 * TIMEOUT
