"""APOLLO: AdamW's scaling of the gradient, channel by channel, learned from a random projection of low rank."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from pretrain.errors import ConfigError
from pretrain.optimizers.adamw import adamw_over
from pretrain.optimizers.combined import combine
from pretrain.optimizers.groups import (
    BY_ROLE,
    SMALLEST_EPS,
    NamedParameters,
    RoleGroups,
    Roles,
    parameter_groups,
    split_hidden,
)
from pretrain.optimizers.low_rank import (
    Matrix,
    adam_direction,
    adam_moments,
    count_gradients,
    low_shape,
    new_count,
    on_the_right,
    state_type,
)
from pretrain.registry import limited

GROWTH_LIMIT = 1.01


@dataclass(frozen=True)
class ApolloSettings:
    """APOLLO (Zhu et al., arXiv 2412.05270) for attention and feed-forward matrices, AdamW for all else.

    lr: peak learning rate of both; the scheduler multiplies it.
    lr_scaling: `linear` or `sqrt` fit `lr` to the samples of a step, `none` takes it as it is.
    base_batch_size: samples of a step (batch_size x gradient_accumulation_steps) that `lr` was found with.
    rank: dimension of the random projection; null = a quarter of a matrix's shorter side, as in the paper. A matrix
      whose shorter side is no longer than this takes AdamW; a rank that leaves none is refused.
    update_interval: steps from one random projection to the next.
    scale: what the scaled gradient is multiplied by.
    betas: decay rates of the running means of the gradient and of its square.
    eps: added to the root of the second moment.
    weight_decay: decay per step, times the learning rate, of every part that `groups` gives no other.
    groups: values of their own for parts of the model.
    """

    lr: float = limited(1.0e-2, above=0)
    lr_scaling: str = limited("none", choices=("none", "linear", "sqrt"))
    base_batch_size: int | None = limited(None, at_least=1)
    rank: int | None = limited(None, at_least=1)
    update_interval: int = limited(200, at_least=1)
    scale: float = limited(1.0, above=0)
    betas: tuple[float, float] = limited((0.9, 0.95), at_least=0, below=1)
    eps: float = limited(1.0e-8, at_least=SMALLEST_EPS)
    weight_decay: float = limited(0.1, at_least=0)
    groups: RoleGroups = BY_ROLE


class Apollo(torch.optim.Optimizer):
    """Algorithm 1 of the paper, with its limit on the growth of the norm (section 4.2).

    The gradient G, m x n, is projected on its shorter side by P with elements from N(0, 1 / rank): R = G P^T for
    m >= n, else R = P G. AdamW's moments of R give the direction D. Each channel, a line along the longer side, of G is
    multiplied by |D| / |R| of that channel; with `by_channel` false, all of G by |D| / |R| of the whole (APOLLO-Mini).
    Where the norm of the result is more than 1.01 times that of the step before, it is brought down to that; after a
    step of norm 0, which would forbid every later one, nothing is limited. Weight decay acts before the step.

    State of each matrix, there from the start: `step`, `projection`, `exp_avg`, `exp_avg_sq` and `norm`, at least
    float32. P is drawn on the CPU by a generator of its own, from the name of the parameter and the
    number of the refresh, so that no other random number moves and a device draws no other one. It is kept as a tensor,
    since to draw it at every step would cost more than the update, and a later PyTorch may draw other numbers.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        ranks: Callable[[Parameter], int],
        interval: int,
        scale: float,
        by_channel: bool,
    ) -> None:
        super().__init__(groups, {})
        self._interval, self._scale, self._by_channel = interval, scale, by_channel
        for parameter in (parameter for group in self.param_groups for parameter in group["params"]):
            rank, like = ranks(parameter), {"dtype": state_type(parameter), "device": parameter.device}
            self.state[parameter] = {
                "step": new_count(parameter),
                "projection": torch.zeros((rank, min(parameter.shape)), **like),
                **adam_moments(torch.zeros(low_shape(parameter, rank), **like)),
                "norm": torch.zeros((), **like),
            }

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step with the gradients as they are; a parameter without one stays."""
        for one in count_gradients(self):
            turn, since = divmod(one.before, self._interval)
            if since == 0:
                projection = one.state["projection"]
                projection.copy_(random_projection(projection.shape, f"{one.name} {turn}"))
            one.state["step"] += 1
            update = self._scaled(one)
            one.parameter.mul_(1 - one.group["lr"] * one.group["weight_decay"])
            one.parameter.add_(update.to(one.parameter.dtype), alpha=-one.group["lr"] * self._scale)

    def _scaled(self, one: Matrix) -> Tensor:
        """Return the gradient times what the moments say of it, its growth limited."""
        gradient, state = one.gradient, one.state
        projection, right = state["projection"], on_the_right(gradient)
        low = gradient @ projection.T if right else projection @ gradient
        direction = adam_direction(low, one.before + 1, state, one.group)
        along = (1 if right else 0) if self._by_channel else (0, 1)
        size = torch.linalg.vector_norm(low, dim=along, keepdim=True)
        factor = torch.linalg.vector_norm(direction, dim=along, keepdim=True) / size
        # A channel without a gradient has none to scale; 0 / 0 would be NaN.
        scaled = gradient * torch.where(size > 0, factor, 0.0)
        norm, before = torch.linalg.vector_norm(scaled), state["norm"]
        limit = before * GROWTH_LIMIT
        limited = torch.where((before > 0) & (norm > limit), limit / norm, 1.0)
        state["norm"].copy_(norm * limited)
        return scaled.mul_(limited)


def random_projection(shape: torch.Size, seed: str) -> Tensor:
    """Return a float32 matrix [rank, size] from N(0, 1 / rank) on the CPU, the same for the same text `seed`."""
    number = int.from_bytes(sha256(seed.encode()).digest()[:8], "big") >> 1
    generator = torch.Generator().manual_seed(number)
    return torch.randn(shape, generator=generator).div_(math.sqrt(shape[0]))


def apollo_and_adamw(
    settings: Any, named_parameters: NamedParameters, roles: Roles, ranks: Callable[[Parameter], int], by_channel: bool
) -> torch.optim.Optimizer:
    """Return APOLLO over the matrices with a shorter side above their rank, and AdamW over all other parameters.

    Raises ConfigError where no matrix has one: it would be AdamW.
    """
    low, others = split_hidden(named_parameters, roles, lambda parameter: min(parameter.shape) > ranks(parameter))
    if not low:
        rank = getattr(settings, "rank", None)
        key, least = ("optimizer_class", "1") if rank is None else ("rank", f"optimizer.rank ({rank})")
        instead = "" if rank is None else "change it, leave it out for a quarter of each shorter side, or "
        raise ConfigError(
            f"optimizer.{key}: no matrix of the attention or feed-forward layers has a shorter side above {least}; "
            f"{instead}set optimizer.optimizer_class=adamw, which all of it would be"
        )
    part = Apollo(parameter_groups(settings, low, roles), ranks, settings.update_interval, settings.scale, by_channel)
    return combine([part, adamw_over(parameter_groups(settings, others, roles))])


def build_apollo(settings: ApolloSettings, named_parameters: NamedParameters, roles: Roles) -> torch.optim.Optimizer:
    """APOLLO by channel over the matrices of attention and feed-forward layers, AdamW over all other parameters."""

    def ranks(parameter: Parameter) -> int:
        return settings.rank or max(1, min(parameter.shape) // 4)

    return apollo_and_adamw(settings, named_parameters, roles, ranks, by_channel=True)
