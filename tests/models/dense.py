"""The decoder as the papers' formulas say, each position by itself, in float64; it shares no code with the package."""

import math
from collections.abc import Mapping

import torch

from pretrain.models import DecoderSettings

Weights = Mapping[str, torch.Tensor]


def norm(values: torch.Tensor, scale: torch.Tensor, kind: str) -> torch.Tensor:
    if kind == "layernorm":
        values = values - values.mean(-1, keepdim=True)
    return values / (values.square().mean(-1, keepdim=True) + 1e-6).sqrt() * scale


def turned(head: torch.Tensor, position: int, base: float) -> torch.Tensor:
    """One head, [B, D], as complex numbers that are multiplied by e^(i position base^(-2 k / D))."""
    half = head.shape[-1] // 2
    angles = torch.tensor([position * base ** (-k / half) for k in range(half)], dtype=torch.float64)
    pairs = torch.complex(head[:, :half], head[:, half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((pairs.real, pairs.imag), dim=-1)


def sees(row: list[int] | None, query: int, key: int, window: int | None, boundary: int | None) -> bool:
    """Whether `query` sees `key`: not later, not too far, and no document begins behind the key."""
    if key > query or (window is not None and query - key >= window):
        return False
    return boundary is None or row is None or boundary not in row[key + 1 : query + 1]


def attention(
    values: torch.Tensor,
    weights: Weights,
    name: str,
    settings: DecoderSettings,
    rows: list[list[int]] | None,
    b: int | None,
) -> torch.Tensor:
    size, each = settings.width // settings.heads, settings.heads // settings.kv_heads

    def head(kind: str, number: int, position: int) -> torch.Tensor:
        matrix = weights[f"{name}.{kind}_proj.weight"][number * size : (number + 1) * size]
        made = values[:, position] @ matrix.T
        if settings.qk_norm and kind != "v":
            made = norm(made, weights[f"{name}.{kind}_norm.weight"], "rmsnorm")
        return turned(made, position, settings.rope_base) if settings.positions == "rotary" and kind != "v" else made

    mixed = torch.zeros(*values.shape[:2], settings.width, dtype=torch.float64)
    for number in range(settings.heads):
        keys = [head("k", number // each, position) for position in range(values.shape[1])]
        contents = [head("v", number // each, position) for position in range(values.shape[1])]
        for query in range(values.shape[1]):
            asked = head("q", number, query)
            for row in range(values.shape[0]):
                ids = None if rows is None else rows[row]
                seen = [key for key in range(query + 1) if sees(ids, query, key, settings.sliding_window, b)]
                logits = torch.stack([asked[row] @ keys[key][row] for key in seen]) / math.sqrt(size)
                shares = (logits - logits.max()).exp()
                content = torch.stack([contents[key][row] for key in seen])
                mixed[row, query, number * size : (number + 1) * size] = shares / shares.sum() @ content
    return mixed @ weights[f"{name}.o_proj.weight"].T


def feed_forward(values: torch.Tensor, weights: Weights, name: str, activation: str) -> torch.Tensor:
    up = values @ weights[f"{name}.up_proj.weight"].T
    if activation == "swiglu":
        gate = values @ weights[f"{name}.gate_proj.weight"].T
        inner = gate / (1 + (-gate).exp()) * up
    elif activation == "gelu":
        inner = up * 0.5 * (1 + torch.erf(up / math.sqrt(2)))
    else:
        inner = torch.where(up > 0, up * up, 0.0)
    return inner @ weights[f"{name}.down_proj.weight"].T


def dense(
    parameters: Weights, settings: DecoderSettings, inputs: torch.Tensor, boundary: int | None = None
) -> torch.Tensor:
    """Predictions, float64 [B, T, size], of ids [B, T] or patches [B, T, size]."""
    weights = {name: parameter.detach().double() for name, parameter in parameters.items()}
    is_text = not inputs.is_floating_point()
    rows = inputs.tolist() if is_text else None
    table = weights["model.embed_tokens.weight" if is_text else "model.embed_patches.weight"]
    hidden = table[inputs] if is_text else inputs.double() @ table.T
    if settings.positions == "learned":
        hidden = hidden + weights["model.embed_positions.weight"][: inputs.shape[1]]
    for layer in range(settings.layers):
        name = f"model.layers.{layer}"
        first, second = (weights[f"{name}.{kind}_layernorm.weight"] for kind in ("input", "post_attention"))
        if settings.norm_position == "pre":
            read = norm(hidden, first, settings.norm)
            hidden = hidden + attention(read, weights, f"{name}.self_attn", settings, rows, boundary)
            read = norm(hidden, second, settings.norm)
            hidden = hidden + feed_forward(read, weights, f"{name}.mlp", settings.activation)
        else:
            written = attention(hidden, weights, f"{name}.self_attn", settings, rows, boundary)
            hidden = norm(hidden + written, first, settings.norm)
            written = feed_forward(hidden, weights, f"{name}.mlp", settings.activation)
            hidden = norm(hidden + written, second, settings.norm)
    made = norm(hidden, weights["model.norm.weight"], settings.norm) @ weights.get("lm_head.weight", table).T
    cap = settings.logit_soft_cap
    return made if cap is None else cap * torch.tanh(made / cap)
