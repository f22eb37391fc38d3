"""Adafactor, with its whole state in place before the first step, and with GaLore on request."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pretrain.optimizers.combined import combine
from pretrain.optimizers.factored import FACTORED, factored_moments, factored_step
from pretrain.optimizers.galore import galore, split_by_galore
from pretrain.optimizers.groups import BY_ROLE, SMALLEST_EPS, NamedParameters, RoleGroups, Roles, parameter_groups
from pretrain.optimizers.low_rank import new_count, state_type
from pretrain.registry import limited


@dataclass(frozen=True)
class AdafactorSettings:
    """Adafactor (Shazeer and Stern, arXiv 1804.04235): second moments as row and column means, no first.

    lr: peak of the relative step: a parameter moves by min(lr, 1 / sqrt(step)) times its own root mean square, so past
      step 1 / lr^2 the rate falls whatever the scheduler says; the scheduler multiplies it.
    lr_scaling: `linear` or `sqrt` fit `lr` to the samples of a step, `none` takes it as it is.
    base_batch_size: samples of a step (batch_size x gradient_accumulation_steps) that `lr` was found with.
    beta2_decay: exponent of the weight, step^beta2_decay, that the newest squared gradient has in its running mean.
    eps: lower bound of the root of the second moment.
    parameter_eps: lower bound of the root mean square of a parameter that its step is relative to.
    clip_threshold: largest root mean square of an update before it is scaled.
    weight_decay: decay per step, times the learning rate, of every part that `groups` gives no other.
    groups: values of their own for parts of the model.
    use_galore: moments of attention and feed-forward matrices in a space of low rank (Zhao et al., arXiv 2403.03507);
      the basis takes more memory than it saves here, where no first moment is kept.
    galore_rank: dimension of that space; a matrix whose shorter side is no longer than this takes the plain path.
    galore_update_interval: steps from one singular value decomposition of the gradient, which finds the space, to the
      next.
    galore_scale: what the step is multiplied by on its way back to the whole matrix.
    galore_max_dim: a matrix whose longer side is beyond this takes the plain path; the default leaves the feed-forward
      matrices of llama-7b out, which are 11008 wide. A warning says where less than half is projected for this.
    """

    lr: float = limited(3.0e-2, above=0)
    lr_scaling: str = limited("none", choices=("none", "linear", "sqrt"))
    base_batch_size: int | None = limited(None, at_least=1)
    beta2_decay: float = limited(-0.8, at_most=0)
    eps: float = limited(1.0e-8, at_least=SMALLEST_EPS)
    parameter_eps: float = limited(1.0e-3, at_least=0)
    clip_threshold: float = limited(1.0, at_least=1)
    weight_decay: float = limited(0.1, at_least=0)
    groups: RoleGroups = BY_ROLE
    use_galore: bool = False
    galore_rank: int = limited(128, at_least=1)
    galore_update_interval: int = limited(200, at_least=1)
    galore_scale: float = limited(0.25, above=0)
    galore_max_dim: int = limited(8192, at_least=1)


class Adafactor(torch.optim.Optimizer):
    """The rule of `factored.py` over every parameter; weight decay comes before the step, as AdamW's does.

    The steps are those of `torch.optim.Adafactor`, which waits for the device three times for each parameter and fails
    on parameters that are spread over processes. State, there from the start: `step`, and `row_var` and `col_var` of
    the last two dimensions, or `variance` of a vector, at least float32.
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {})
        for parameter in (parameter for group in self.param_groups for parameter in group["params"]):
            self.state[parameter] = {"step": new_count(parameter), **factored_moments(parameter)}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step with the gradients as they are; a parameter without one stays."""
        for group in self.param_groups:
            for parameter in (parameter for parameter in group["params"] if parameter.grad is not None):
                state = self.state[parameter]
                state["step"] += 1
                update = factored_step(parameter.grad.to(state_type(parameter)), state, group, parameter)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.sub_(update.to(parameter.dtype))


def build_adafactor(
    settings: AdafactorSettings, named_parameters: NamedParameters, roles: Roles
) -> torch.optim.Optimizer:
    """Adafactor over the groups of `roles`; with two dimensions and more, the last two are factored."""
    low, plain = split_by_galore(settings, named_parameters, roles)
    others = Adafactor(_groups(settings, plain, roles)) if plain else None
    return combine([galore(_groups(settings, low, roles), FACTORED, settings), others])


def _groups(settings: AdafactorSettings, named: NamedParameters, roles: Roles) -> list[dict[str, Any]]:
    """The groups with the keys that the rule reads."""
    return [
        group
        | {
            "eps": (group["eps"], settings.parameter_eps),
            "beta2_decay": settings.beta2_decay,
            "d": settings.clip_threshold,
        }
        for group in parameter_groups(settings, named, roles)
    ]
