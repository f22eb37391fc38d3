"""Muon for the matrices between embedding and head, PyTorch's own, and AdamW for all else."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from pretrain.optimizers.adamw import adamw_over
from pretrain.optimizers.combined import combine
from pretrain.optimizers.groups import (
    BY_ROLE,
    HIDDEN_ROLES,
    SMALLEST_EPS,
    NamedParameters,
    RoleGroups,
    Roles,
    parameter_groups,
    split_hidden,
)
from pretrain.registry import limited


@dataclass(frozen=True)
class MuonSettings:
    """Muon (Jordan et al., 2024), PyTorch's: momentum made orthogonal, for attention and feed-forward matrices.

    lr: peak learning rate of both; a matrix of m x n takes 0.2 sqrt(max(m, n)) times it, so that its update is as large
      as AdamW's (Liu et al., arXiv 2502.16982); the scheduler multiplies it.
    lr_scaling: `linear` or `sqrt` fit `lr` to the samples of a step, `none` takes it as it is.
    base_batch_size: samples of a step (batch_size x gradient_accumulation_steps) that `lr` was found with.
    momentum: decay rate of the running mean of the gradient.
    nesterov: makes the mean orthogonal that the next gradient would find.
    iterations: Newton-Schulz iterations that make it orthogonal, in bfloat16.
    momentum_eps: lower bound of the norm that the mean is divided by before.
    betas: of AdamW, for embeddings, norms, router and head.
    eps: of AdamW, added to the root of the second moment.
    weight_decay: decay per step, times the learning rate, of every part that `groups` gives no other.
    groups: values of their own for parts of the model; attention and feed_forward have neither betas nor eps.
    """

    roles_without_moments: ClassVar[tuple[str, ...]] = HIDDEN_ROLES
    # The spectral norm of the update of a hidden matrix must not grow with the width (Yang et al., arXiv 2310.17813,
    # condition 1). Here it is 0.2 sqrt(max(m, n)) times the rate, the root of the width; that of Adam's is the width.
    width_exponent: ClassVar[float] = 0.5

    lr: float = limited(3.0e-3, above=0)
    lr_scaling: str = limited("none", choices=("none", "linear", "sqrt"))
    base_batch_size: int | None = limited(None, at_least=1)
    momentum: float = limited(0.95, at_least=0, below=1)
    nesterov: bool = True
    iterations: int = limited(5, at_least=1, at_most=99)
    momentum_eps: float = limited(1.0e-7, at_least=SMALLEST_EPS)
    betas: tuple[float, float] = limited((0.9, 0.95), at_least=0, below=1)
    eps: float = limited(1.0e-8, at_least=SMALLEST_EPS)
    weight_decay: float = limited(0.1, at_least=0)
    groups: RoleGroups = BY_ROLE


def build_muon(settings: MuonSettings, named_parameters: NamedParameters, roles: Roles) -> torch.optim.Optimizer:
    """Muon over the matrices of attention and feed-forward layers, AdamW over all other parameters.

    State: `momentum_buffer` of the first, `step`, `exp_avg` and `exp_avg_sq` of the others, all there from the start.
    """
    matrices, others = split_hidden(named_parameters, roles, lambda parameter: True)
    return combine(
        [
            _muon(settings, parameter_groups(settings, matrices, roles)),
            adamw_over(parameter_groups(settings, others, roles)),
        ]
    )


def _muon(settings: MuonSettings, groups: list[dict[str, Any]]) -> torch.optim.Muon | None:
    if not groups:
        return None
    for group in groups:
        del group["betas"]  # of AdamW, and so is the eps
        group["eps"] = settings.momentum_eps
    optimizer = torch.optim.Muon(
        groups,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        ns_steps=settings.iterations,
        adjust_lr_fn="match_rms_adamw",
    )
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter, requires_grad=False)}
    return optimizer
