"""Lion: the sign of a momentum, whose every update has the same size."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from pretrain.optimizers.groups import BY_ROLE, NamedParameters, RoleGroups, Roles, parameter_groups
from pretrain.registry import limited


@dataclass(frozen=True)
class LionSettings:
    """Lion (Chen et al., arXiv 2302.06675): every element moves by the learning rate, up or down.

    lr: peak learning rate, a third to a tenth of AdamW's; the scheduler multiplies it.
    lr_scaling: `linear` or `sqrt` fit `lr` to the samples of a step, `none` takes it as it is.
    base_batch_size: samples of a step (batch_size x gradient_accumulation_steps) that `lr` was found with.
    betas: weight of the momentum in the update, and decay rate of the momentum.
    weight_decay: decay per step, times the learning rate, of every part that `groups` gives no other; three to ten
      times AdamW's.
    groups: values of their own for parts of the model.
    """

    # Like Adam it makes entries of one size; the rule holds for both: Yang and Littwin, arXiv 2308.01814.
    width_exponent: ClassVar[float] = 1.0

    lr: float = limited(1.0e-3, above=0)
    lr_scaling: str = limited("none", choices=("none", "linear", "sqrt"))
    base_batch_size: int | None = limited(None, at_least=1)
    betas: tuple[float, float] = limited((0.9, 0.99), at_least=0, below=1)
    weight_decay: float = limited(0.3, at_least=0)
    groups: RoleGroups = BY_ROLE


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of the paper: c = b1 m + (1 - b1) g, w <- w - lr (sign(c) + decay w), m <- b2 m + (1 - b2) g.

    The decay is taken first, as in AdamW, which gives the same. State: `exp_avg`, m, there from the start.
    """

    def __init__(self, groups: list[dict[str, object]]) -> None:
        super().__init__(groups, {})
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {"exp_avg": torch.zeros_like(parameter, requires_grad=False)}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step with the gradients as they are; a parameter without one stays."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            gradients = [parameter.grad for parameter in parameters]
            means = [self.state[parameter]["exp_avg"] for parameter in parameters]
            kept, decay = group["betas"]
            updates = torch._foreach_mul(means, kept)
            torch._foreach_add_(updates, gradients, alpha=1 - kept)
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(parameters, torch._foreach_sign(updates), alpha=-group["lr"])
            torch._foreach_mul_(means, decay)
            torch._foreach_add_(means, gradients, alpha=1 - decay)


def build_lion(settings: LionSettings, named_parameters: NamedParameters, roles: Roles) -> torch.optim.Optimizer:
    """Lion over the groups of `roles`."""
    return Lion(parameter_groups(settings, named_parameters, roles))
