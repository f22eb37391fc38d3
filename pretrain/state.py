"""RunState: all that a resumed run must have back, as flat tensors and plain scalars."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from pretrain.data.loader import LoaderState, StatefulLoader
from pretrain.machine import random_state
from pretrain.optimizers import flat_state
from pretrain.policy.guard import GuardState
from pretrain.policy.retention import RankedSteps


@dataclass
class Ledger:
    """What never goes back in a rollback: the refusals and what was learned from them."""

    guard: GuardState = field(default_factory=GuardState)
    best: RankedSteps = ()
    incidents: int = 0


@dataclass
class RunState:
    """The trajectory (model, optimizer, step, loader position, generators) and the ledger.

    step: completed optimizer steps. batch: global batches consumed, the refused ones included.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: StatefulLoader
    device: torch.device
    step: int = 0
    batch: int = 0
    ledger: Ledger = field(default_factory=Ledger)

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Return the model's and the optimizer's own tensors by name: writing into them writes the state."""
        model = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        return model | flat_state(self.optimizer)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return every tensor of a checkpoint by name, the generators' positions included."""
        return self.state_tensors() | random_state.capture(self.device)

    def scalars(self) -> dict[str, Any]:
        """Return what a checkpoint record keeps beside the tensors."""
        position = self.loader.state
        return {
            "loader": {"epoch": position.epoch, "position": position.position},
            "ledger": {
                "retries": list(self.ledger.guard.retries),
                "rollbacks": 0,
                "rung": 0,
                "incidents": self.ledger.incidents,
                "quarantined": [],
                "learning_rate_factor": 1.0,
                "faults_fired": [],
            },
            "guard": {},
            "spikes": {},
            "scaler": None,
            "best": [{"step": step, "value": value} for step, value in self.ledger.best],
        }

    def restore_scalars(self, step: int, batch: int, scalars: dict[str, Any]) -> None:
        """Take back what `scalars` returned, and move the loader to its position."""
        self.step, self.batch = step, batch
        self.loader.restore(LoaderState(**scalars["loader"]))
        self.ledger = Ledger(
            guard=GuardState(retries=tuple(scalars["ledger"]["retries"])),
            best=tuple((row["step"], row["value"]) for row in scalars["best"]),
            incidents=scalars["ledger"]["incidents"],
        )
