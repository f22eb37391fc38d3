"""Causal self-attention, the rotary positions in it, and the mask of what a position sees."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from pretrain.models.parts import Linear, rms_norm

POSITIONS = ("rotary", "learned")


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


def attention_mask(inputs: torch.Tensor, window: int | None, boundary: int | None) -> torch.Tensor | None:
    """Return what each position sees, true at [query, key]: [T, T], or [B, 1, T, T] where documents cut it.

    None is what needs no mask: every position sees itself and all before it.
    inputs: [B, T, ...]; ids where there is a boundary. window: a position sees this many, itself among them.
    boundary: the token that stands between two documents. It begins the one behind it: what is behind a boundary sees
    that boundary and nothing before, so that no token is predicted from another document but by the boundary.
    """
    length = inputs.shape[1]
    if boundary is None and (window is None or window >= length):
        return None
    places = torch.arange(length, device=inputs.device)
    distance = places[:, None] - places
    visible = distance >= 0
    if window is not None:
        visible &= distance < window
    if boundary is None:
        return visible
    documents = (inputs == boundary).cumsum(dim=1)
    return ((documents[:, :, None] == documents[:, None, :]) & visible)[:, None]


class Attention(nn.Module):
    """Causal self-attention in which each key and value head serves heads / kv_heads query heads.

    qk_norm: RMSNorm over each head of queries and keys before they are turned, as in Qwen3: Henry et al., arXiv
    2010.04245, with the norm of Dehghani et al., arXiv 2302.05442.
    scale: what the logits are multiplied by; None = 1 / sqrt(head size).
    cos, sin: tables of `rotary_tables` for these positions; None = queries and keys are not turned.
    mask: of `attention_mask`; None = plainly causal.
    """

    def __init__(
        self, width: int, heads: int, kv_heads: int, qk_norm: bool = False, scale: float | None = None
    ) -> None:
        super().__init__()
        self.scale = scale
        self.head_size = width // heads
        self.grouped, self.queries_of_each = kv_heads != heads, heads // kv_heads
        self.q_proj = Linear(width, heads * self.head_size)
        self.k_proj = Linear(width, kv_heads * self.head_size)
        self.v_proj = Linear(width, kv_heads * self.head_size)
        self.o_proj = Linear(heads * self.head_size, width)
        self.q_norm = rms_norm(self.head_size) if qk_norm else None
        self.k_norm = rms_norm(self.head_size) if qk_norm else None

    def forward(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor | None,
        sin: torch.Tensor | None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        query, key = self._queries_and_keys(hidden, cos, sin)
        value = self.v_proj(hidden).view(self._shape(hidden))
        if mask is not None:
            # No fused kernel of CUDA takes a mask and shared heads together; in plain products each head would need
            # the logits of all pairs of positions.
            key, value = self._for_each_query(key), self._for_each_query(value)
        mixed = F.scaled_dot_product_attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            attn_mask=mask,
            is_causal=mask is None,
            scale=self.scale,
            enable_gqa=self.grouped and mask is None,
        )
        projected: torch.Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return projected

    def scores(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor | None,
        sin: torch.Tensor | None,
        mask: torch.Tensor | None,
        queries: torch.Tensor,
    ) -> torch.Tensor:
        """Return the logits of some queries, [rows, heads, queries, positions], -inf for what a query does not see.

        hidden: the first rows of what a forward pass reads, and the rest of its arguments as they are there.
        queries: their positions, int64. The forward pass computes the same, and keeps none of it.
        """
        query, key = self._queries_and_keys(hidden, cos, sin)
        query = query[:, queries].transpose(1, 2)
        key = self._for_each_query(key).permute(0, 2, 3, 1)
        logits = query @ key
        logits = logits / math.sqrt(self.head_size) if self.scale is None else logits * self.scale
        if mask is None:
            visible = torch.arange(hidden.shape[1], device=queries.device) <= queries[:, None]
        else:
            visible = mask[..., queries, :]
            if visible.dim() == 4:
                visible = visible[: hidden.shape[0]]
        return logits.masked_fill(~visible, -math.inf)

    def _queries_and_keys(
        self, hidden: torch.Tensor, cos: torch.Tensor | None, sin: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shape = self._shape(hidden)
        query = self._placed(self.q_proj(hidden).view(shape), self.q_norm, cos, sin)
        return query, self._placed(self.k_proj(hidden).view(shape), self.k_norm, cos, sin)

    @staticmethod
    def _placed(
        heads: torch.Tensor, norm: nn.Module | None, cos: torch.Tensor | None, sin: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the heads normed and turned, in the type that they came in; both are done in float32."""
        kind = heads.dtype
        if norm is not None:
            heads = norm(heads.to(torch.promote_types(kind, torch.float32)))
        if cos is not None and sin is not None:
            heads = rotate(heads, cos, sin)
        return heads.to(kind)

    def _for_each_query(self, heads: torch.Tensor) -> torch.Tensor:
        """Repeat key or value heads, [B, T, kv_heads, D] to [B, T, heads, D]."""
        return heads.repeat_interleave(self.queries_of_each, dim=2) if self.grouped else heads

    def _shape(self, hidden: torch.Tensor) -> tuple[int, int, int, int]:
        return (hidden.shape[0], hidden.shape[1], -1, self.head_size)
