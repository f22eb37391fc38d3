"""A task whose rows are supervised by ragged masks, and small steps for the tests of gradients."""

from dataclasses import dataclass

import torch
from torch import nn

from pretrain.batch import Batch, StepBatch

CPU = torch.device("cpu")


@dataclass(frozen=True)
class MaskedSquares:
    """Squared error of a linear model; row n of the step is supervised in its first n % 7 columns."""

    columns: int = 6

    def mask(self, batch: Batch) -> torch.Tensor:
        kept = (batch.position + torch.arange(len(batch.samples))) % (self.columns + 1)
        return torch.arange(self.columns) < kept[:, None]

    def supervised(self, batch: Batch) -> int:
        return int(self.mask(batch).sum())

    def loss_sum(self, model: nn.Module, batch: Batch, device: torch.device) -> torch.Tensor:
        errors: torch.Tensor = (model(batch.samples) - 1.0).square()
        return errors[self.mask(batch)].sum()


def cut(samples: torch.Tensor, sizes: list[int]) -> StepBatch:
    """The rows of `samples` as micro-batches of these sizes."""
    batches, position = [], 0
    for size in sizes:
        rows = samples[position : position + size]
        batches.append(Batch(rows, 0, position, ("",) * size))
        position += size
    assert position == len(samples)
    return StepBatch(tuple(batches), 0, 0)


def with_gradients(*gradients: torch.Tensor) -> list[nn.Parameter]:
    parameters = []
    for gradient in gradients:
        parameter = nn.Parameter(torch.zeros_like(gradient))
        parameter.grad = gradient.clone()
        parameters.append(parameter)
    return parameters


def gradient_bytes(parameters: list[nn.Parameter]) -> list[bytes]:
    return [parameter.grad.numpy().tobytes() for parameter in parameters if parameter.grad is not None]
