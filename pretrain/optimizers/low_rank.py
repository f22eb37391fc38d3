"""What the optimizers with moments of low rank share: the side to project, the state, and the rules of moments."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

State = dict[str, Tensor]
Group = dict[str, Any]


def on_the_right(parameter: Tensor) -> bool:
    """Whether the columns of a matrix are projected: its rows are at least as many. The longer side stays whole."""
    return parameter.shape[0] >= parameter.shape[1]


def low_shape(parameter: Tensor, rank: int) -> tuple[int, int]:
    """Return the shape of the projected gradient: [rows, rank] or [rank, columns]."""
    rows, columns = parameter.shape
    return (rows, rank) if on_the_right(parameter) else (rank, columns)


def state_type(parameter: Tensor) -> torch.dtype:
    """Return the type of moments and bases: float32, or float64 for float64 parameters."""
    return torch.promote_types(parameter.dtype, torch.float32)


@dataclass(frozen=True)
class Rule:
    """How moments turn a projected gradient into a step.

    make(like): the moments before the first step for a gradient of shape, type and device of `like`.
    step(gradient, count, state, group, parameter): moves the moments on by the gradient of number `count`, from 1,
    which `step` of the state is by then, and returns what is to be subtracted, of the gradient's shape, the rate in it.
    """

    make: Callable[[Tensor], State]
    step: Callable[[Tensor, int, State, Group, Tensor], Tensor]


@dataclass(frozen=True)
class Matrix:
    """A parameter that has a gradient, with its name, group and state, and how many gradients came before this one."""

    name: str
    parameter: Parameter
    group: Group
    state: State
    before: int

    @property
    def gradient(self) -> Tensor:
        """The gradient in the type of the state."""
        assert self.parameter.grad is not None
        return self.parameter.grad.to(state_type(self.parameter))


def new_count(parameter: Tensor) -> Tensor:
    """Return the `step` of a state, 0: float32, and on the device of the parameter as all of its state is."""
    return torch.zeros((), dtype=torch.float32, device=parameter.device)


def count_gradients(optimizer: torch.optim.Optimizer) -> list[Matrix]:
    """Return every parameter that has a gradient. Waits for the device, once for all of them."""
    found = [
        (name, parameter, group, optimizer.state[parameter])
        for group in optimizer.param_groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
        if parameter.grad is not None
    ]
    counts = torch.stack([state["step"] for *_, state in found]).tolist() if found else []
    return [Matrix(*one, int(count)) for one, count in zip(found, counts, strict=True)]


def adam_moments(like: Tensor) -> State:
    """Return the two moments of Adam, zeros."""
    return {"exp_avg": torch.zeros_like(like), "exp_avg_sq": torch.zeros_like(like)}


def adam_direction(gradient: Tensor, count: int, state: State, group: Group) -> Tensor:
    """Move both moments on and return m_hat / (sqrt(v_hat) + eps): Kingma and Ba, arXiv 1412.6980, algorithm 1."""
    beta1, beta2 = group["betas"]
    first, second = state["exp_avg"], state["exp_avg_sq"]
    first.mul_(beta1).add_(gradient, alpha=1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    root = (second / (1 - beta2**count)).sqrt_().add_(group["eps"])
    return first.div(1 - beta1**count).div_(root)


def _adam_step(gradient: Tensor, count: int, state: State, group: Group, parameter: Tensor) -> Tensor:
    return adam_direction(gradient, count, state, group).mul_(group["lr"])


ADAM = Rule(adam_moments, _adam_step)
