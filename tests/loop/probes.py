"""What a test does to a run in this process: watch what it reads, poison a batch, send a signal at any moment."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain import syscalls
from pretrain.attempt import AttemptResult, resume_attempt, start_attempt
from pretrain.batch import Batch
from pretrain.config import RunConfig
from pretrain.evidence import checkpoint, namespace
from pretrain.machine.signals import StopRequest
from pretrain.tasks.iq import IqTask
from pretrain.tasks.text import TextTask
from pretrain.telemetry.sink import Event

Place = tuple[int, int]
Hook = Callable[[Batch, torch.Tensor], torch.Tensor]


class Unsynced(syscalls.System):
    """The real system without its fsyncs, which only a power cut can tell apart and which take most of the time."""

    def fsync(self, fd: int) -> None:
        """Do nothing."""


def hook_loss(monkeypatch: pytest.MonkeyPatch, hook: Hook) -> None:
    """Let `hook(batch, loss)` take the place of what a task returns as the loss of a micro-batch."""
    for task in (TextTask, IqTask):
        real = task.loss_sum

        def loss_sum(self: Any, model: Any, batch: Batch, device: Any, real: Any = real) -> torch.Tensor:
            return hook(batch, real(self, model, batch, device))

        monkeypatch.setattr(task, "loss_sum", loss_sum)


def poison(places: Mapping[Place, str]) -> Hook:
    """Return a hook that spoils the micro-batches at these (epoch, position).

    `loss`: the loss is NaN. `gradient`: it is finite, but its gradients are not. `huge`: these are 1e4 times larger.
    """

    def hook(batch: Batch, loss: torch.Tensor) -> torch.Tensor:
        kind = places.get((batch.epoch, batch.position), "")
        if kind == "gradient":
            loss.register_hook(lambda gradient: gradient * float("inf"))
        elif kind == "huge":
            loss.register_hook(lambda gradient: gradient * 1e4)
        return loss * float("nan") if kind == "loss" else loss

    return hook


def noise(batch: Batch, loss: torch.Tensor) -> torch.Tensor:
    """Draw from the global generator, as dropout would, so that its position is part of every result."""
    return loss * (1 + 0.01 * torch.rand(()))


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of names, types, shapes and bytes."""
    whole = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        whole.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


class Moments:
    """Counts the moments of one attempt at which a signal may come, and lets it come at one of them.

    A moment is an event that is shown, or a micro-batch that is trained on or scored; `at` counts from 1, 0 = none.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.count, self.stop = 0, 0, StopRequest()
        for task in (TextTask, IqTask):
            for name in ("loss_sum", "score", "score_reference"):
                self._watch(monkeypatch, task, name)

    def _watch(self, monkeypatch: pytest.MonkeyPatch, task: type, name: str) -> None:
        real = getattr(task, name)

        def watched(*arguments: Any) -> Any:
            self.passes()
            return real(*arguments)

        monkeypatch.setattr(task, name, watched)

    def passes(self) -> None:
        """Pass one moment."""
        self.count += 1
        if self.count == self.at:
            self.stop.name = "SIGTERM"

    def emit(self, event: Event) -> None:
        """Take an event of the run as a moment: this is one of its sinks."""
        self.passes()

    def close(self) -> None:
        """Nothing is open."""

    def live(self, run: RunConfig | Path, at: int = 0) -> AttemptResult:
        """Run attempt 0001 of a config, or the child of a run folder's newest attempt, with the signal at a moment."""
        self.at, self.count, self.stop = at, 0, StopRequest()
        if isinstance(run, Path):
            return resume_attempt(run, [], self.stop, [self])
        return start_attempt(run, self.stop, [self])


@contextmanager
def killed_at(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    """Within this block a run ends where it comes to `name`, as by SIGKILL: nothing is put on record."""

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(name, kill)
        patch.setattr("pretrain.attempt.run.record_outcome", lambda *_: None)
        with pytest.raises(Killed):
            yield


def newest_attempt(run: Path) -> Path:
    """Return the folder of a run's newest attempt."""
    number = namespace.newest(run)
    assert number is not None
    return namespace.attempt_folder(run, number)


def last_record(run: Path) -> checkpoint.CheckpointRecord:
    """Return the record of the last checkpoint of a run's newest attempt."""
    return checkpoint.read_record(checkpoint.list_checkpoints(newest_attempt(run))[-1][1])
