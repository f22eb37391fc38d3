"""The feed-forward layer of a block: gated by SiLU, or with one activation between two matrices."""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import nn

from pretrain.models.parts import Linear


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)): Shazeer, arXiv 2002.05202."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = Linear(width, hidden)
        self.up_proj = Linear(width, hidden)
        self.down_proj = Linear(hidden, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        down: torch.Tensor = self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return down


class FeedForward(nn.Module):
    """down(activation(up(x))), [..., width] to the same."""

    def __init__(self, width: int, hidden: int, activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.activation = activation
        self.up_proj = Linear(width, hidden)
        self.down_proj = Linear(hidden, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        down: torch.Tensor = self.down_proj(self.activation(self.up_proj(hidden)))
        return down


def gelu(values: torch.Tensor) -> torch.Tensor:
    """Return x times the normal distribution function of x, not its tanh approximation: arXiv 1606.08415."""
    return F.gelu(values)


def squared_relu(values: torch.Tensor) -> torch.Tensor:
    """Return max(x, 0)^2: So et al., Primer, arXiv 2109.08668, section 4."""
    return F.relu(values).square()


_PLAIN: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {"gelu": gelu, "squared_relu": squared_relu}
ACTIVATIONS = ("swiglu", *_PLAIN)


def build_feed_forward(width: int, hidden: int, activation: str) -> nn.Module:
    """Return the layer of one of `ACTIVATIONS`, with Llama's names; without a gate, there is no `gate_proj`."""
    if activation == "swiglu":
        return SwiGLU(width, hidden)
    return FeedForward(width, hidden, _PLAIN[activation])
