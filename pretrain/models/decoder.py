"""One decoder-only transformer for token ids and for patches of IQ samples, with Llama's parameter names."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from pretrain.batch import InputSpec
from pretrain.errors import ConfigError
from pretrain.models.initialization import initialize
from pretrain.models.parts import NORM_EPS, NORM_POSITIONS, Block, Embedding, Linear, float32_linear, rotary_tables
from pretrain.registry import limited

FFN_MULTIPLE = 32


@dataclass(frozen=True)
class DecoderSettings:
    """A decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases.

    width: size of the residual stream; a multiple of 2 * heads.
    layers: number of residual blocks.
    heads: query heads of each attention; must divide `width`, and leave each head an even size.
    kv_heads: key and value heads, each shared by heads / kv_heads query heads; must divide `heads`.
    ffn_width: hidden size of the feed-forward layer; null = 8/3 of `width`, rounded up to a multiple of 32.
    norm_position: `pre` normalises what a sublayer reads, `post` the sum of what it read and wrote; a deep `post` model
        needs a long warmup and a low learning rate.
    rope_base: base of the geometric series of rotary wavelengths.
    tie_embeddings: the token embedding is the prediction head too (tokens only; patches have no table).
    init_std: standard deviation of a matrix at the start; o_proj and down_proj: over sqrt(2 * layers).
    """

    width: int = limited(64, at_least=2, at_most=1 << 17)
    layers: int = limited(2, at_least=1, at_most=4096)
    heads: int = limited(4, at_least=1)
    kv_heads: int = limited(4, at_least=1)
    ffn_width: int | None = limited(None, at_least=1)
    norm_position: str = limited("pre", choices=NORM_POSITIONS)
    rope_base: float = limited(10000.0, above=1)
    tie_embeddings: bool = True
    init_std: float = limited(0.02, above=0)


def check(settings: DecoderSettings) -> None:
    """Raise ConfigError for sizes that contradict each other, naming the key of the `model` section."""
    width, heads, kv_heads = settings.width, settings.heads, settings.kv_heads
    if width % heads != 0:
        raise ConfigError(
            f"model.heads: {heads} does not divide model.width, {width}, into even sizes; choose one of "
            f"{_divisors(width // 2)}"
        )
    if (width // heads) % 2 != 0:
        raise ConfigError(
            f"model.heads: {heads} heads of model.width {width} have the odd size {width // heads}, but "
            f"rotary positions turn pairs of numbers; choose model.width as a multiple of {2 * heads}"
        )
    if heads % kv_heads != 0:
        raise ConfigError(
            f"model.kv_heads: {kv_heads} does not divide model.heads, {heads}; choose one of {_divisors(heads)}"
        )


class Trunk(nn.Module):
    """Embedding, residual blocks and final norm: [B, T] ids or [B, T, size] patches to [B, T, width]."""

    def __init__(self, settings: DecoderSettings, spec: InputSpec, max_positions: int) -> None:
        super().__init__()
        width, head_size = settings.width, settings.width // settings.heads
        if spec.kind == "tokens":
            self.embed_tokens = Embedding(spec.size, width)
        else:
            self.embed_patches = Linear(spec.size, width)
        hidden = ffn_width(settings)
        self.layers = nn.ModuleList(
            Block(width, settings.heads, settings.kv_heads, hidden, settings.norm_position)
            for _ in range(settings.layers)
        )
        self.norm = nn.RMSNorm(width, eps=NORM_EPS)
        cos, sin = rotary_tables(max_positions, head_size, settings.rope_base)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.cos: torch.Tensor
        self.sin: torch.Tensor

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        positions = inputs.shape[1]
        if positions > self.cos.shape[0]:
            raise ValueError(f"expected at most {self.cos.shape[0]} positions, found {positions}")
        # Both embeddings start the residual stream in float32, and it stays so whatever autocast does in a
        # block.
        hidden: torch.Tensor
        if inputs.is_floating_point():
            hidden = float32_linear(inputs, self.embed_patches.weight)
        else:
            hidden = self.embed_tokens(inputs)
        cos, sin = self.cos[:positions], self.sin[:positions]
        for block in self.layers:
            hidden = block(hidden, cos, sin)
        normed: torch.Tensor = self.norm(hidden)
        return normed


class Decoder(nn.Module):
    """The trunk and its prediction head.

    Tokens: int64 [B, T] to logits float32 [B, T, vocabulary]; under autocast the head multiplies in bfloat16,
    and its result is widened. Patches: float32 [B, T, size] to predictions of that shape and type; the head
    multiplies in float32 under autocast too, since 8 bits of a regression would show in its error.
    """

    def __init__(self, settings: DecoderSettings, spec: InputSpec, max_positions: int) -> None:
        super().__init__()
        self.spec = spec
        self.model = Trunk(settings, spec, max_positions)
        tied = spec.kind == "tokens" and settings.tie_embeddings
        self.lm_head = None if tied else Linear(settings.width, spec.size)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.model(inputs)
        weight = self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        if self.spec.kind == "patches":
            return float32_linear(hidden, weight)
        logits = F.linear(hidden, weight)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


def ffn_width(settings: DecoderSettings) -> int:
    """Return the hidden size of the feed-forward layer: as set, or 8/3 of the width, rounded up."""
    if settings.ffn_width is not None:
        return settings.ffn_width
    # SwiGLU has three matrices instead of two, so 8/3 keeps the parameters of a 4-fold layer (arXiv
    # 2002.05202).
    return -(-8 * settings.width // (3 * FFN_MULTIPLE)) * FFN_MULTIPLE


def build_decoder(settings: DecoderSettings, spec: InputSpec, max_positions: int, seed: int) -> Decoder:
    """Return a decoder on the CPU in float32, initialised from `seed` alone; no global generator moves.

    max_positions: the longest sequence that it will be given.
    Raises ConfigError where the sizes contradict each other.
    """
    check(settings)
    model = Decoder(settings, spec, max_positions)
    initialize(model, settings.init_std, settings.layers, torch.Generator().manual_seed(seed))
    return model


def _divisors(number: int) -> list[int]:
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]
