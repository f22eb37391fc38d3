"""The rule of Adafactor: second moments as means of rows and columns, and a step relative to the weight."""

import math

import torch
from torch import Tensor

from pretrain.optimizers.low_rank import Group, Rule, State, state_type


def factored_moments(like: Tensor) -> State:
    """Return the moments of a gradient like this one before the first step, in the type of `state_type`.

    `row_var` [..., rows, 1] and `col_var` [..., 1, columns]; of a vector or a number, `variance` of its own shape.
    """
    like = like.detach().to(state_type(like))
    if like.dim() < 2:
        return {"variance": torch.zeros_like(like, memory_format=torch.contiguous_format)}
    # Roots, since of rows that are spread over processes these need whole means, and each process has to hold them so.
    rows, columns = (mean.sqrt() for mean in _mean_squares(like))
    return {"row_var": torch.zeros_like(rows), "col_var": torch.zeros_like(columns)}


def factored_step(gradient: Tensor, state: State, group: Group, parameter: Tensor) -> Tensor:
    """Move the moments on and return what is to be subtracted, of the gradient's shape, the learning rate in it.

    Shazeer and Stern, arXiv 1804.04235, algorithms 4 and 5, in the form of `torch.optim.Adafactor`. `state["step"]` is
    the number of this gradient, from 1; the step is relative to the root mean square of `parameter`, which may be a
    larger matrix than the gradient. Waits for no device: every number stays a tensor.
    """
    eps, smallest = group["eps"]
    count = state["step"].to(gradient.dtype)
    newest = count ** group["beta2_decay"]
    if gradient.dim() < 2:
        second = state["variance"].lerp_(gradient.square(), newest).clone()
    else:
        rows, columns = _mean_squares(gradient)
        row, column = state["row_var"].lerp_(rows, newest), state["col_var"].lerp_(columns, newest)
        second = row @ (column / row.mean(dim=-2, keepdim=True).clamp(min=eps))
    update = second.clamp_(min=eps * eps).rsqrt_().mul_(gradient)
    size = _root_mean_square(parameter.to(gradient.dtype)).clamp(min=smallest) * count.rsqrt().clamp(max=group["lr"])
    return update.mul_(size / (_root_mean_square(update) / group["d"]).clamp(min=1.0))


def _mean_squares(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean squares of rows and of columns; squared once: a norm of columns takes five times as long."""
    square = matrix.square()
    return square.mean(dim=-1, keepdim=True), square.mean(dim=-2, keepdim=True)


def _root_mean_square(tensor: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(tensor)
    return norm / math.sqrt(tensor.numel())


def _step(gradient: Tensor, count: int, state: State, group: Group, parameter: Tensor) -> Tensor:
    return factored_step(gradient, state, group, parameter)


FACTORED = Rule(factored_moments, _step)
