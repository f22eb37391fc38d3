"""The values that a model's parameters start from."""

import math

import torch
from torch import nn

from pretrain.models.parametrization import initial_std
from pretrain.models.roles import roles

RESIDUAL_PROJECTIONS = ("o_proj.weight", "down_proj.weight")
POSITION_TABLE = "embed_positions.weight"


@torch.no_grad()
def initialize(model: nn.Module, std: float, layers: int, generator: torch.Generator, ratio: float = 1.0) -> None:
    """Set every parameter, in the order of its name in the model, drawing only from `generator`.

    Matrices get N(0, std^2); the projections that write into the residual stream get std / sqrt(2 *
    layers), so that its variance does not grow with 2 * layers additions (Radford et al., GPT-2, section
    2.3). Learned positions get std / 2, 0.01 beside the usual 0.02 as in the code of GPT-2. Vectors, which are the
    scales of norms, get 1.
    ratio: how many times as wide as its base the model is, see `parametrization`; 1 changes nothing.
    """
    role_of = roles(model)
    for name, parameter in model.named_parameters():
        own = initial_std(role_of[name], std, ratio)
        if parameter.dim() < 2:
            parameter.fill_(1.0)
        elif name.endswith(RESIDUAL_PROJECTIONS):
            parameter.normal_(0.0, own / math.sqrt(2 * layers), generator=generator)
        elif name.endswith(POSITION_TABLE):
            parameter.normal_(0.0, own / 2, generator=generator)
        else:
            parameter.normal_(0.0, own, generator=generator)
