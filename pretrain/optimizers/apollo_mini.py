"""APOLLO-Mini: APOLLO with one random direction and one factor for a whole matrix."""

import math
from dataclasses import dataclass

import torch

from pretrain.optimizers.apollo import apollo_and_adamw
from pretrain.optimizers.groups import BY_ROLE, SMALLEST_EPS, NamedParameters, RoleGroups, Roles
from pretrain.registry import limited


@dataclass(frozen=True)
class ApolloMiniSettings:
    """APOLLO-Mini (Zhu et al., arXiv 2412.05270): rank 1, one factor for each attention and feed-forward matrix.

    lr: peak learning rate, of AdamW for all else too; the scheduler multiplies it.
    lr_scaling: `linear` or `sqrt` fit `lr` to the samples of a step, `none` takes it as it is.
    base_batch_size: samples of a step (batch_size x gradient_accumulation_steps) that `lr` was found with.
    update_interval: steps from one random projection to the next.
    scale: what the scaled gradient is multiplied by; sqrt(128) is the paper's, for what rank 1 underestimates.
    betas: decay rates of the running means of the gradient and of its square.
    eps: added to the root of the second moment.
    weight_decay: decay per step, times the learning rate, of every part that `groups` gives no other.
    groups: values of their own for parts of the model.
    """

    lr: float = limited(3.0e-3, above=0)
    lr_scaling: str = limited("none", choices=("none", "linear", "sqrt"))
    base_batch_size: int | None = limited(None, at_least=1)
    update_interval: int = limited(200, at_least=1)
    scale: float = limited(math.sqrt(128), above=0)
    betas: tuple[float, float] = limited((0.9, 0.95), at_least=0, below=1)
    eps: float = limited(1.0e-8, at_least=SMALLEST_EPS)
    weight_decay: float = limited(0.1, at_least=0)
    groups: RoleGroups = BY_ROLE


def build_apollo_mini(
    settings: ApolloMiniSettings, named_parameters: NamedParameters, roles: Roles
) -> torch.optim.Optimizer:
    """APOLLO of rank 1 by whole matrix, and AdamW over all parameters that are no matrix of a hidden layer."""
    return apollo_and_adamw(settings, named_parameters, roles, lambda parameter: 1, by_channel=False)
