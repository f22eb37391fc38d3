"""All that a run is, by name, so that a test can say exactly what a step has changed."""

from collections.abc import Callable, Collection
from dataclasses import asdict
from typing import Any

import pytest

from pretrain.batch import StepBatch
from pretrain.data.loader import StatefulLoader
from pretrain.loop import LoopParts
from pretrain.loop import train as loop_train
from pretrain.state import RunState
from pretrain.telemetry.sink import Event, StepRow
from tests.loop.probes import digest

Whole = dict[str, Any]


def whole(state: RunState) -> Whole:
    """Return every tensor's SHA-256, every counter, statistic and generator, and what else a step could leave behind.

    Names begin with model, buffer, optimizer, rng, group, mode, state, spikes, monitors, scaler, loader or ledger;
    `gradients` is the number of parameters that hold one.
    """
    found: Whole = {name: digest({name: tensor}) for name, tensor in state.tensors().items()}
    for name, buffer in state.model.named_buffers():  # those that no checkpoint holds, too
        found[f"buffer.{name}"] = digest({name: buffer})
    for number, group in enumerate(state.optimizer.param_groups):
        found |= {f"group.{number}.{name}": repr(value) for name, value in group.items() if name != "params"}
    found["gradients"] = sum(parameter.grad is not None for parameter in state.model.parameters())
    found |= {f"mode.{name}": module.training for name, module in state.model.named_modules()}
    found |= {"state.step": state.step, "state.batch": state.batch, "scaler": state.scaler}
    found |= {f"spikes.{name}": value for name, value in asdict(state.spikes).items()}
    found |= {f"monitors.{name}": values for name, values in state.monitors.items()}
    found |= {"loader": (state.loader.state.epoch, state.loader.state.position)}
    ledger = state.ledger
    found |= {"ledger.retries": ledger.guard.retries, "ledger.best": ledger.best}
    found |= {"ledger.incidents": ledger.incidents, "ledger.faults_fired": ledger.faults_fired}
    found |= {f"ledger.ladder.{name}": value for name, value in asdict(ledger.ladder).items()}
    return found


def changed(before: Whole, after: Whole) -> set[str]:
    """Return the names of what is no longer as it was."""
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def trajectory(state: Whole) -> Whole:
    """Return what a run is but for its record, the number of batches read, and gradients that nobody reads again."""
    record = ("ledger", "state.batch", "gradients")
    return {name: value for name, value in state.items() if not name.startswith(record)}


def leave_out(monkeypatch: pytest.MonkeyPatch, positions: Collection[int]) -> None:
    """Let the loader never hand out a step that begins at one of these positions, as if it were not in the order."""
    real = StatefulLoader.next_step

    def next_step(self: StatefulLoader) -> StepBatch:
        while self.state.position in positions:
            self.skip_steps(1)
        return real(self)

    monkeypatch.setattr(StatefulLoader, "next_step", next_step)


class States:
    """A sink that keeps (action, all of the state) after each step, the begin of the loop being the first.

    parts: what the loop works with. begin: called with them before the first step. then: called after each step with
    its row too, to see or to change them.
    """

    parts: LoopParts

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        then: Callable[[LoopParts, StepRow], None] | None = None,
        begin: Callable[[LoopParts], None] | None = None,
    ) -> None:
        self.found: list[tuple[str, Whole]] = []
        self._then, self._begin = then, begin
        monkeypatch.setattr("pretrain.attempt.run.train", self._train)

    @property
    def actions(self) -> str:
        """Return the word of each step, the first of them `begin`."""
        return " ".join(action for action, _ in self.found)

    def _train(self, parts: LoopParts) -> None:
        self.parts = parts
        self.found.append(("begin", whole(parts.state)))
        if self._begin is not None:
            self._begin(parts)
        loop_train(parts)

    def emit(self, event: Event) -> None:
        """Take the state once a step is over: its row is the last that is shown of it."""
        if isinstance(event, StepRow):
            self.found.append((event.action, whole(self.parts.state)))
            if self._then is not None:
                self._then(self.parts, event)

    def close(self) -> None:
        """Nothing is open."""
