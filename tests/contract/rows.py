"""One small run over any combination of rows, with data that can be learnt, and its state as bytes."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from pretrain import gradients
from pretrain.batch import Batch, StepBatch
from pretrain.errors import ConfigError
from pretrain.machine.precision import autocast
from pretrain.models import MODELS, balance, roles
from pretrain.optimizers import OPTIMIZERS, flat_state, set_learning_rate
from pretrain.tasks import TASKS, Task

DEVICE = torch.device("cpu")
ROWS, LENGTH = 4, 64

# Rows with other than default settings: state that the defaults do not make, and intervals that end within a test.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw_galore": (
        "adamw",
        {"use_galore": True, "galore_rank": 16, "galore_update_interval": 2, "galore_scale": 1.0},
    ),
    "adafactor_galore": (
        "adafactor",
        {"use_galore": True, "galore_rank": 16, "galore_update_interval": 2, "galore_scale": 1.0},
    ),
    "apollo_often": ("apollo", {"update_interval": 2}),
}

# Every model and every optimizer meets every task; models and optimizers do not concern each other.
COMBINATIONS = sorted(
    {(task, model, "adamw") for task, model in itertools.product(TASKS, MODELS)}
    | {(task, "decoder", optimizer) for task, optimizer in itertools.product(TASKS, OPTIMIZERS)}
    | {("text", "decoder", variant) for variant in VARIANTS}
)


@dataclass(frozen=True)
class Tokens:
    kind: str = "tokens"
    vocabulary: int | None = 16

    def samples(self, index: int) -> torch.Tensor:
        """Each row counts up from its own start, in steps of its own."""
        start, stride = torch.arange(ROWS) * 5 + index, torch.arange(ROWS) % 3 + 1
        return (start[:, None] + stride[:, None] * torch.arange(LENGTH + 1)) % 16


@dataclass(frozen=True)
class Complex:
    kind: str = "complex"
    vocabulary: int | None = None

    def samples(self, index: int) -> torch.Tensor:
        """Each row is a tone of its own frequency and phase."""
        frequency = (torch.arange(ROWS) + 1) / 32
        turns = frequency[:, None] * torch.arange(LENGTH) + 0.1 * index
        return torch.polar(torch.ones_like(turns), 2 * torch.pi * turns)


@dataclass
class Run:
    """A task, a model and an optimizer, from default settings but for a feature or a variant."""

    task: Task
    source: Any
    model: nn.Module
    optimizer: torch.optim.Optimizer
    precision: str

    def step(self, index: int, micro_batches: int = 2) -> float:
        batches = tuple(
            Batch(self.source.samples(index * micro_batches + k), 0, 0, ("",) * ROWS) for k in range(micro_batches)
        )
        parameters = list(self.model.parameters())
        context = autocast(DEVICE, self.precision)
        loss, _ = gradients.accumulate(self.model, self.task, StepBatch(batches, 0, 0), DEVICE, context)
        value, norm = gradients.read(loss, gradients.clip(parameters, 1.0))
        assert np.isfinite([value, norm]).all()
        self.optimizer.step()
        balance(self.model)
        return value

    def tensors(self) -> dict[str, torch.Tensor]:
        model = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        return model | flat_state(self.optimizer)

    def bytes(self) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
        return {
            name: (str(tensor.dtype), tuple(tensor.shape), tensor.detach().numpy().tobytes())
            for name, tensor in self.tensors().items()
        }

    def restore(self, saved: dict[str, torch.Tensor]) -> None:
        """Write into the state's own tensors, as a checkpoint does."""
        own = self.tensors()
        assert own.keys() == saved.keys()
        with torch.no_grad():
            for name, tensor in own.items():
                assert (tensor.dtype, tensor.shape) == (saved[name].dtype, saved[name].shape), name
                tensor.copy_(saved[name])


@dataclass(frozen=True)
class Feature:
    """Settings that are not the defaults: of the model, of the text task, and what a model is built with besides."""

    model: Mapping[str, Any] = field(default_factory=dict)
    text: Mapping[str, Any] = field(default_factory=dict)
    built: Mapping[str, Any] = field(default_factory=dict)


DEFAULT = Feature()


def build(combination: tuple[str, str, str], seed: int, precision: str = "float32", feature: Feature = DEFAULT) -> Run:
    task_name, model_name, optimizer_name = combination
    entry = TASKS[task_name]
    settings = entry.settings(**feature.text) if task_name == "text" else entry.settings()
    source: Any = Tokens()
    try:
        task = entry.build(settings, source, LENGTH)
    except ConfigError:
        source = Complex()
        task = entry.build(settings, source, LENGTH)
    row = MODELS[model_name]
    model = row.build(row.settings(**feature.model), task.input_spec, task.max_positions, seed, **feature.built)
    name, changes = VARIANTS.get(optimizer_name, (optimizer_name, {}))
    chosen = OPTIMIZERS[name].settings(**changes)
    optimizer = OPTIMIZERS[name].build(chosen, list(model.named_parameters()), roles(model))
    set_learning_rate(optimizer, chosen.lr)
    return Run(task, source, model, optimizer, precision)
