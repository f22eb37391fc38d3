"""Stochastic gradient descent with momentum, its buffers in place before the first step."""

from dataclasses import dataclass

import torch

from pretrain.optimizers.groups import BY_ROLE, NamedParameters, RoleGroups, Roles, parameter_groups
from pretrain.registry import limited


@dataclass(frozen=True)
class SgdSettings:
    """Stochastic gradient descent (PyTorch's), with momentum.

    lr: peak learning rate; the scheduler multiplies it.
    lr_scaling: `linear` or `sqrt` fit `lr` to the samples of a step, `none` takes it as it is.
    base_batch_size: samples of a step (batch_size x gradient_accumulation_steps) that `lr` was found with.
    momentum: decay rate of the running sum of gradients; 0 = none, and no state.
    nesterov: takes the step from where the momentum leads; needs momentum.
    weight_decay: what of a parameter is added to its gradient, in every part that `groups` gives no other.
    groups: values of their own for parts of the model.
    """

    lr: float = limited(0.1, above=0)
    lr_scaling: str = limited("none", choices=("none", "linear", "sqrt"))
    base_batch_size: int | None = limited(None, at_least=1)
    momentum: float = limited(0.9, at_least=0, below=1)
    nesterov: bool = True
    weight_decay: float = limited(1.0e-4, at_least=0)
    groups: RoleGroups = BY_ROLE

    def contradictions(self) -> list[str]:
        """What `nesterov` and `momentum` can get wrong together."""
        if self.nesterov and self.momentum == 0:
            return ["optimizer.nesterov needs optimizer.momentum above 0; set optimizer.nesterov=false, or a momentum"]
        return []


def build_sgd(settings: SgdSettings, named_parameters: NamedParameters, roles: Roles) -> torch.optim.Optimizer:
    """SGD over the groups of `roles`; the `momentum_buffer` of every parameter exists from here on.

    It is the zeros from which the first step makes what it would make of nothing.
    """
    optimizer = torch.optim.SGD(
        parameter_groups(settings, named_parameters, roles),
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        # The fused kernel of PyTorch 2.13 gives bfloat16 momenta on the CPU other bits at every run.
        fused=False,
    )
    for _, parameter in named_parameters if settings.momentum > 0 else ():
        optimizer.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter, requires_grad=False)}
    return optimizer
