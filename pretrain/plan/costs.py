"""What a run will take, from its config alone: parameters, FLOPs, memory and disk, without a step or a tensor."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pretrain.attempt import check_start
from pretrain.build import build_data, build_model, build_optimizer, build_task, projected_by
from pretrain.config import RunConfig, to_yaml, warnings
from pretrain.config.canonical import tree_of
from pretrain.evidence.shard_writer import file_bytes
from pretrain.machine import random_state
from pretrain.models import flops_per_position, roles
from pretrain.optimizers import Projected, flat_state
from pretrain.policy.retention import most_checkpoints

_CUDA_GENERATOR = 16  # bytes of its state: a seed and an offset


@dataclass(frozen=True)
class Costs:
    """What a run will take. Bytes and counts are exact, but for what is said beside them.

    roles: parameters by role. positions: of one step. flops: of one step, forward and backward.
    windows, windows_of_step, epochs: of the training data; how often the run goes through it.
    memory: bytes by kind, of what stays from step to step; activations come on top, and depend on the kernels.
    checkpoint_bytes: of the shard file; its record adds some kilobytes. kept: checkpoints that retention leaves in an
    attempt, at most; there is one more while it is saved, and the disk is for that too. projected: what the optimizer
    projects, None of most. warnings: what `train` would say at its start of this config.
    """

    config: RunConfig
    parameters: int
    roles: Mapping[str, int]
    positions: int
    flops: int
    windows: int
    windows_of_step: int
    memory: Mapping[str, int]
    checkpoint_bytes: int
    kept: int
    projected: Projected | None = None
    warnings: tuple[str, ...] = ()

    @property
    def epochs(self) -> float:
        """How often the whole run goes through the training data, steps that are skipped left out."""
        return self.windows_of_step * self.config.training.max_steps / self.windows

    @property
    def disk_bytes(self) -> int:
        """What the checkpoints of the attempt take at most."""
        return (self.kept + 1) * self.checkpoint_bytes

    def answer(self) -> dict[str, Any]:
        """Return what `plan --json` prints."""
        projected = {} if self.projected is None else {"projected": self.projected.count}
        return {
            "config": tree_of(self.config),
            "parameters": {"total": self.parameters, "roles": dict(self.roles), **projected},
            "step": {"windows": self.windows_of_step, "positions": self.positions, "flops": self.flops},
            "run": {
                "steps": self.config.training.max_steps,
                "epochs": self.epochs,
                "flops": self.flops * self.config.training.max_steps,
            },
            "memory": {**self.memory, "total": sum(self.memory.values())},
            "disk": {"checkpoint": self.checkpoint_bytes, "kept": self.kept, "total": self.disk_bytes},
            "warnings": list(self.warnings),
        }

    def text(self) -> str:
        """Return the same for a person, below the resolved config."""
        steps = self.config.training.max_steps
        rows = [
            ("parameters", f"{self.parameters:,}"),
            *((f"  {role}", f"{count:,}") for role, count in self.roles.items()),
            *(("projected", low.text) for low in (self.projected,) if low is not None),
            ("step", f"{self.windows_of_step:,} windows, {self.positions:,} positions, {self.flops:.4g} FLOPs"),
            ("run", f"{steps:,} steps, {self.epochs:.4g} epochs, {self.flops * steps:.4g} FLOPs"),
            ("memory", f"{sum(self.memory.values()):,} bytes, and activations"),
            *((f"  {kind}", f"{size:,}") for kind, size in self.memory.items()),
            (
                "disk",
                f"{self.disk_bytes:,} bytes: {self.kept} checkpoints of {self.checkpoint_bytes:,} at most, and 1 while "
                "it is saved",
            ),
            *(("warning", text) for text in self.warnings),
        ]
        return to_yaml(self.config) + "\n" + "".join(f"{name:<20} {value}\n" for name, value in rows)


def costs_of(config: RunConfig) -> Costs:
    """Return what a run of this config will take. The data is opened, the model and the optimizer have no values.

    Nor is the device asked for: a run on a GPU can be planned where there is none. Raises ConfigError and DataError for
    what `train` would refuse with the config, the data and the weights to start from, IntegrityError where these are
    damaged.
    """
    data = build_data(config)
    task = build_task(config, data)
    with torch.device("meta"):
        model = build_model(config, task)
    built = build_optimizer(config, model)
    low, optimizer = projected_by(config, model, built), flat_state(built)
    notes = check_start(config, model)
    left_out = [low.warning] if low is not None and low.warning is not None else []
    training, parameters = config.training, list(model.parameters())
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()} | optimizer
    saved = state | _generators(config.training.device)
    windows = training.batch_size * training.gradient_accumulation_steps
    weights = _bytes(parameters)
    positions = windows * task.max_positions
    return Costs(
        config=config,
        parameters=sum(parameter.numel() for parameter in parameters),
        roles=_by_role(model),
        positions=positions,
        flops=flops_per_position(model, task.max_positions) * positions,
        windows=len(data.train),
        windows_of_step=windows,
        memory={
            "parameters": weights,
            "gradients": weights,
            "optimizer": _bytes(optimizer.values()),
            "rollback copies": config.spikes.targets_in_memory * _bytes(saved.values()),
            # The update norm of every 32nd step takes a copy, which stays on a CPU.
            "update norm": weights,
        },
        checkpoint_bytes=file_bytes(saved),
        kept=most_checkpoints(config.checkpoint, config.validation.validate_every_n_steps, training.max_steps),
        projected=low,
        warnings=(*notes, *warnings(config), *data.warnings, *left_out),
    )


def _generators(device: str) -> dict[str, torch.Tensor]:
    """Return tensors as large as the states of the generators that a checkpoint holds."""
    found = random_state.capture(torch.device("cpu"))
    return found if device == "cpu" else found | {"rng.cuda.0": torch.empty(_CUDA_GENERATOR, dtype=torch.uint8)}


def _by_role(model: nn.Module) -> dict[str, int]:
    counts: dict[str, int] = {}
    role_of = roles(model)
    for name, parameter in model.named_parameters():
        counts[role_of[name]] = counts.get(role_of[name], 0) + parameter.numel()
    return counts


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(math.prod(tensor.shape) * tensor.element_size() for tensor in tensors)
