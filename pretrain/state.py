"""RunState: all that a resumed run must have back, as flat tensors and plain scalars, in two halves."""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from pretrain.data.loader import LoaderState, StatefulLoader
from pretrain.machine import random_state
from pretrain.optimizers import flat_state
from pretrain.policy.alarms import AlarmState, RaisedAlarm
from pretrain.policy.guard import GuardState
from pretrain.policy.loss_scale import LossScale
from pretrain.policy.measured import Known
from pretrain.policy.recovery import LadderState
from pretrain.policy.retention import RankedSteps
from pretrain.policy.spikes import SpikeState


@dataclass
class Ledger:
    """What never goes back in a rollback: the refusals and what was learned from them."""

    guard: GuardState = field(default_factory=GuardState)
    ladder: LadderState = field(default_factory=LadderState)
    best: RankedSteps = ()
    incidents: int = 0
    faults_fired: tuple[str, ...] = ()


@dataclass
class Snapshot:
    """The trajectory at one step, copied: what a rollback puts back."""

    step: int
    batch: int
    loader: LoaderState
    spikes: SpikeState
    alarms: AlarmState
    monitors: Known
    scaler: LossScale | None
    tensors: dict[str, torch.Tensor]


@dataclass
class RunState:
    """The trajectory (model, optimizer, step, loader position, generators, statistics) and the ledger.

    step: completed optimizer steps. batch: global batches consumed, the refused ones included. scaler: the loss scale
    of a float16 run, None for the others. monitors: what their alarms remember. parked: positions of the generators of
    a device that the state has left, kept for a return. seeded: where the generators stand before the first step.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: StatefulLoader
    device: torch.device
    step: int = 0
    batch: int = 0
    spikes: SpikeState = field(default_factory=SpikeState)
    alarms: AlarmState = field(default_factory=AlarmState)
    monitors: Known = field(default_factory=dict)
    scaler: LossScale | None = None
    ledger: Ledger = field(default_factory=Ledger)
    parked: random_state.GeneratorStates = field(default_factory=dict)
    seeded: random_state.GeneratorStates = field(default_factory=dict)

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """Return the model's and the optimizer's own tensors by name: writing into them writes the state."""
        model = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        return model | flat_state(self.optimizer)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return every tensor of a checkpoint by name, the generators' positions included."""
        return self.state_tensors() | self.generators()

    def generators(self) -> random_state.GeneratorStates:
        """Return the generators' positions that a checkpoint holds: of this device, and of one that was left."""
        return {name: state.clone() for name, state in self.parked.items()} | random_state.capture(self.device)

    def restore_generators(self, found: random_state.GeneratorStates) -> None:
        """Put the generators back where a checkpoint had them, and park those of a device that this is not.

        One that this device has and the checkpoint has not, since a run on another device saved it, begins anew.
        """
        random_state.restore(self.seeded | found, self.device)
        self.parked = random_state.elsewhere(found, self.device)

    def move_to(self, device: torch.device) -> None:
        """Move model, optimizer state and generators; a checkpoint then holds the same names as before.

        The generator of the device that is left stays where it stands, for a resume that comes back to it.
        """
        generators = self.generators()
        parameters = list(self.model.parameters())
        self.model.to(device)
        # The optimizer knows its parameters by identity.
        assert all(old is new for old, new in zip(parameters, self.model.parameters(), strict=True))
        for kept in self.optimizer.state.values():
            for key, value in kept.items():
                if isinstance(value, torch.Tensor):
                    kept[key] = value.to(device)
        self.device, self.parked = device, random_state.elsewhere(generators, device)

    def is_finite(self) -> bool:
        """Whether every number of the model and the optimizer is finite; waits for the device."""
        floats = [tensor for tensor in self.state_tensors().values() if tensor.is_floating_point() and tensor.numel()]
        bounds = torch.stack([bound.double() for tensor in floats for bound in torch.aminmax(tensor)])
        return bool(torch.isfinite(bounds).all())

    def snapshot(self, spare: Snapshot | None = None) -> Snapshot:
        """Return a copy of the trajectory, in the memory of `spare` where a snapshot is no longer needed."""
        tensors = self.state_tensors()
        copies = {
            name: torch.empty_like(tensor) if spare is None else spare.tensors[name] for name, tensor in tensors.items()
        }
        with torch.no_grad():
            for name, tensor in tensors.items():
                copies[name].copy_(tensor)
        return Snapshot(
            step=self.step,
            batch=self.batch,
            loader=self.loader.state,
            spikes=self.spikes,
            alarms=self.alarms,
            monitors=self.monitors,
            scaler=self.scaler,
            tensors=copies | self.generators(),
        )

    def go_back(self, snapshot: Snapshot) -> None:
        """Put the trajectory back to a snapshot, all of it; the ledger stays."""
        with torch.no_grad():
            for name, tensor in self.state_tensors().items():
                tensor.copy_(snapshot.tensors[name])
        self.restore_generators(random_state.of_states(snapshot.tensors))
        self.step, self.batch, self.spikes = snapshot.step, snapshot.batch, snapshot.spikes
        self.alarms, self.monitors, self.scaler = snapshot.alarms, snapshot.monitors, snapshot.scaler
        self.loader.restore(snapshot.loader)

    def scalars(self) -> dict[str, Any]:
        """Return what a checkpoint record keeps beside the tensors."""
        position, ladder = self.loader.state, self.ledger.ladder
        return {
            "loader": {"epoch": position.epoch, "position": position.position},
            "ledger": {
                "retries": list(self.ledger.guard.retries),
                "rollbacks": ladder.rollbacks,
                "rung": ladder.rung,
                "incidents": self.ledger.incidents,
                "quarantined": [list(window) for window in ladder.quarantined],
                "learning_rate_factor": ladder.learning_rate_factor,
                "faults_fired": list(self.ledger.faults_fired),
            },
            "guard": {
                "skips": ladder.skips,
                "skips_in_a_row": ladder.skips_in_a_row,
                "healthy": ladder.healthy,
                "rewarm_from": ladder.rewarm_from,
            },
            "spikes": {
                name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self.spikes).items()
            }
            | {
                "alarms": [asdict(alarm) for alarm in self.alarms.raised],
                "monitors": {key: list(values) for key, values in self.monitors.items()},
            },
            "scaler": None if self.scaler is None else asdict(self.scaler),
            "best": [{"step": step, "value": value} for step, value in self.ledger.best],
        }

    def restore_scalars(self, step: int, batch: int, scalars: dict[str, Any]) -> None:
        """Take back what `scalars` returned, both halves, and move the loader to its position."""
        self.restore_trajectory(step, batch, scalars)
        ledger = scalars["ledger"]
        self.ledger = Ledger(
            guard=GuardState(retries=tuple(ledger["retries"])),
            ladder=LadderState(
                rung=ledger["rung"],
                rollbacks=ledger["rollbacks"],
                learning_rate_factor=ledger["learning_rate_factor"],
                quarantined=tuple((first, last) for first, last in ledger["quarantined"]),
                **scalars["guard"],
            ),
            best=tuple((row["step"], row["value"]) for row in scalars["best"]),
            incidents=ledger["incidents"],
            faults_fired=tuple(ledger["faults_fired"]),
        )

    def restore_trajectory(self, step: int, batch: int, scalars: dict[str, Any]) -> None:
        """Take back the half that a rollback puts back; the tensors are restored by the caller."""
        self.step, self.batch = step, batch
        self.loader.restore(LoaderState(**scalars["loader"]))
        spikes = scalars["spikes"]
        self.spikes = SpikeState(
            steps=spikes["steps"],
            loss=tuple(spikes["loss"]),
            gradient=tuple(spikes["gradient"]),
            update=tuple(spikes["update"]),
        )
        self.alarms = AlarmState(tuple(RaisedAlarm(**alarm) for alarm in spikes["alarms"]))
        self.monitors = {key: tuple(values) for key, values in spikes["monitors"].items()}
        self.scaler = None if scalars["scaler"] is None else LossScale(**scalars["scaler"])
