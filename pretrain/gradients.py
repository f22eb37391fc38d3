"""Gradients of one optimizer step: accumulated, measured, clipped, and never quietly mended."""

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from pretrain import progress
from pretrain.batch import Batch, StepBatch

CLIP_EPS = 1e-6


class BatchLoss(Protocol):
    """What accumulation needs of a task: how many units of a batch are supervised, and their summed loss."""

    def supervised(self, batch: Batch) -> int: ...

    def loss_sum(self, model: nn.Module, batch: Batch, device: torch.device) -> torch.Tensor: ...


@runtime_checkable
class Regularised(Protocol):
    """A model that adds something of its own to the mean loss, such as a mixture of experts."""

    def begin_step(self) -> None:
        """Forget what was collected for a step that was not taken."""

    def own_loss(self) -> torch.Tensor | None:
        """Return what the newest pass adds to the mean loss over its units, and forget it; None = nothing."""


def accumulate(
    model: nn.Module,
    task: BatchLoss,
    step_batch: StepBatch,
    device: torch.device,
    autocast: AbstractContextManager[Any],
    scale: float = 1.0,
) -> tuple[torch.Tensor, int]:
    """Set the gradients to those of the mean loss over every supervised unit of the step.

    The sum of each micro-batch is divided by the count of the whole step, so neither ragged micro-batches nor
    their number matter; equal ones give the mean of their means. What gradients held before is dropped first.
    What a model adds of its own is a mean over a micro-batch, and counts by the units in it like the mean loss there.
    scale: what the loss is multiplied by on the way back, and the gradients divided by at the end: a power of two.
    Returns the mean loss, detached and still on the device, and the count. Raises ValueError when nothing is
    supervised.
    """
    total = sum(task.supervised(batch) for batch in step_batch.micro_batches)
    if total < 1:
        where = f"epoch {step_batch.epoch}, position {step_batch.position}"
        raise ValueError(f"{where}: expected supervised units in a step, found none")
    model.zero_grad(set_to_none=True)
    regularised = model if isinstance(model, Regularised) else None
    if regularised is not None:
        regularised.begin_step()
    means = []
    for batch in step_batch.micro_batches:
        with autocast:
            loss = task.loss_sum(model, batch, device)
            own = None if regularised is None else regularised.own_loss()
            mean = (loss if own is None else loss + own * task.supervised(batch)) / total
        scaled = mean if scale == 1.0 else mean * scale
        scaled.backward()  # type: ignore[no-untyped-call]
        means.append(mean.detach())
        progress.moved()
    if scale != 1.0:
        torch._foreach_mul_(_gradients(model.parameters()), 1.0 / scale)
    return means[0] if len(means) == 1 else torch.stack(means).sum(), total


def global_norm(parameters: Iterable[nn.Parameter]) -> torch.Tensor:
    """Return the 2-norm of all gradients as one vector: a scalar on their device, in their own type.

    float32 squares overflow above 1.8e19, so finite gradients can give inf here: see `rescue`.
    """
    return _norm_of(list(torch._foreach_norm(_gradients(parameters), 2.0)))


def clip(parameters: Sequence[nn.Parameter], max_norm: float | None) -> torch.Tensor:
    """Scale all gradients by min(1, max_norm / (norm + 1e-6)) and return the norm that they had.

    Nothing waits for the device. Where the norm is not finite the factor is 1: gradients stay as they are for
    the guard to see, while max_norm / inf = 0 would erase them and leave a step that looks healthy.
    max_norm: None = no clipping.
    """
    norm = global_norm(parameters)
    if max_norm is not None:
        factor = (max_norm / (norm + CLIP_EPS)).clamp(max=1.0)
        torch._foreach_mul_(_gradients(parameters), torch.where(torch.isfinite(norm), factor, 1.0))
    return norm


def clip_ratio(norm: float, max_norm: float | None) -> float:
    """Return the factor that `clip` and `rescue` multiply by, for a norm on the host; 1 if not finite."""
    if max_norm is None or not math.isfinite(norm):
        return 1.0
    return min(1.0, max_norm / (norm + CLIP_EPS))


def read(loss: torch.Tensor, norm: torch.Tensor) -> tuple[float, float]:
    """Return loss and norm as Python floats, in the one host synchronisation of a step."""
    loss_value, norm_value = torch.stack((loss.double(), norm.double())).tolist()
    return loss_value, norm_value


def rescue(parameters: Sequence[nn.Parameter], max_norm: float | None) -> float:
    """Return the norm in float64 and clip by it, for gradients whose norm `clip` found not finite.

    A norm that is not finite in float64 either means that an element is not: then nothing is changed.
    """
    gradients = _gradients(parameters)
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in gradients]
    norm = float(_norm_of(norms))
    ratio = clip_ratio(norm, max_norm)
    if ratio < 1.0:
        # In two halves: at norms near the end of float32 the whole factor would be a subnormal of few digits.
        torch._foreach_mul_(gradients, math.sqrt(ratio))
        torch._foreach_mul_(gradients, math.sqrt(ratio))
    return norm


def largest_element(parameters: Iterable[nn.Parameter]) -> float:
    """Return the largest absolute element of the gradients; NaN when one is NaN. Waits for the device."""
    bounds = [bound for gradient in _gradients(parameters) for bound in torch.aminmax(gradient)]
    return float(torch.stack(bounds).abs().amax())


def block_norms(blocks: Iterable[tuple[str, nn.Module]]) -> dict[str, float]:
    """Return the gradient norm of each (name, module), as the gradients are now. Waits for the device.

    A block whose float32 norm is not finite is measured again in float64. Raises ValueError for a block
    that has no gradient.
    """
    named = [(name, list(module.parameters())) for name, module in blocks]
    if not named:
        return {}
    values = torch.stack([global_norm(parameters) for _, parameters in named]).tolist()
    return {
        name: value if math.isfinite(value) else rescue(parameters, None)
        for (name, parameters), value in zip(named, values, strict=True)
    }


def _norm_of(norms: list[torch.Tensor]) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def _gradients(parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        raise ValueError("no parameter has a gradient; accumulate comes first")
    return gradients
