"""The parts of a decoder: matrices, rotary positions, attention, SwiGLU and the residual block."""

import math

import torch
import torch.nn.functional as F
from torch import nn

NORM_EPS = 1e-6
NORM_POSITIONS = ("pre", "post")


class Linear(nn.Linear):
    """A matrix without bias, left unset: `initialize` draws every parameter from one generator.

    The stock constructor would draw from the global generator, which belongs to the run.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def reset_parameters(self) -> None:
        """Draws nothing."""


class Embedding(nn.Embedding):
    """A table of vectors, left unset like `Linear`."""

    def reset_parameters(self) -> None:
        """Draws nothing."""


def float32_linear(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return `inputs @ weight.T` in the weight's own type, under autocast too."""
    with torch.autocast(inputs.device.type, enabled=False):
        return F.linear(inputs.to(weight.dtype), weight)


def rotary_tables(positions: int, head_size: int, base: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and signed sine of position * base^(-2 i / head_size), float32 [positions, 1, head_size].

    Su et al., RoFormer, arXiv 2104.09864, equation 15. Elements i and i + head_size / 2 are a pair, as in
    Llama; the sine of the first of them is negated. The angles are taken in float64: in float32 those of
    far positions are off in the fourth digit.
    """
    exponents = torch.arange(0, head_size, 2, dtype=torch.float64) / head_size
    angles = (torch.arange(positions, dtype=torch.float64)[:, None] * base**-exponents)[:, None, :]
    cos, sin = angles.cos().float(), angles.sin().float()
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each head, [B, T, H, D], by its position, with tables [T, 1, D].

    The tables are float32, so the products are too; the result has the type of `heads`.
    """
    # A roll by D / 2 swaps the halves, forward and backward, in half the time of cutting and joining them.
    return (heads * cos + heads.roll(heads.shape[-1] // 2, dims=-1) * sin).to(heads.dtype)


class Attention(nn.Module):
    """Causal self-attention in which each key and value head serves heads / kv_heads query heads."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.head_size = width // heads
        self.grouped = kv_heads != heads
        self.q_proj = Linear(width, heads * self.head_size)
        self.k_proj = Linear(width, kv_heads * self.head_size)
        self.v_proj = Linear(width, kv_heads * self.head_size)
        self.o_proj = Linear(heads * self.head_size, width)

    def forward(self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        query, key = self._queries_and_keys(hidden, cos, sin)
        value = self.v_proj(hidden).view(self._shape(hidden))
        mixed = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            is_causal=True,
            enable_gqa=self.grouped,
        )
        projected: torch.Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return projected

    def scores(self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        """Return the logits of some queries, [rows, heads, queries, positions], -inf for what comes after a query.

        queries: their positions, int64. The forward pass computes the same, and keeps none of it.
        """
        query, key = self._queries_and_keys(hidden, cos, sin)
        each = query.shape[2] // key.shape[2]
        query = query[:, queries].transpose(1, 2)
        key = key.repeat_interleave(each, dim=2).permute(0, 2, 3, 1)
        logits = query @ key / math.sqrt(self.head_size)
        positions = torch.arange(hidden.shape[1], device=queries.device)
        return logits.masked_fill(positions > queries[:, None], -math.inf)

    def _queries_and_keys(
        self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shape = self._shape(hidden)
        return rotate(self.q_proj(hidden).view(shape), cos, sin), rotate(self.k_proj(hidden).view(shape), cos, sin)

    def _shape(self, hidden: torch.Tensor) -> tuple[int, int, int, int]:
        return (hidden.shape[0], hidden.shape[1], -1, self.head_size)


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


class Block(nn.Module):
    """One residual block: attention, then the feed-forward layer, the norm before or after each.

    The parameters have the same names in both: of a post-norm block, `post_attention_layernorm` is the second norm.
    Xiong et al., arXiv 2002.04745, figure 1.
    """

    def __init__(self, width: int, heads: int, kv_heads: int, ffn_width: int, norm_position: str = "pre") -> None:
        super().__init__()
        self.norms_last = norm_position == "post"
        self.input_layernorm = nn.RMSNorm(width, eps=NORM_EPS)
        self.self_attn = Attention(width, heads, kv_heads)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=NORM_EPS)
        self.mlp = SwiGLU(width, ffn_width)

    def forward(self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        if self.norms_last:
            hidden = self.input_layernorm(hidden + self.self_attn(hidden, cos, sin))
            normed: torch.Tensor = self.post_attention_layernorm(hidden + self.mlp(hidden))
            return normed
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), cos, sin)
        added: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return added
