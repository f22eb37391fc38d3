"""What a decoder is made of: its settings, what they may not contradict, and the width that follows from them."""

from dataclasses import dataclass

from pretrain.batch import InputSpec
from pretrain.errors import ConfigError
from pretrain.models.attention import POSITIONS
from pretrain.models.experts import ExpertSettings
from pretrain.models.feedforward import ACTIVATIONS
from pretrain.models.parts import NORMS
from pretrain.models.sizes import SIZES
from pretrain.registry import limited

FFN_MULTIPLE = 32
NORM_POSITIONS = ("pre", "post")
CHECKPOINTING = ("none", "full", "selective")
PARAMETRIZATIONS = ("standard", "mup")


@dataclass(frozen=True)
class DecoderSettings:
    """A decoder: residual blocks of attention and a feed-forward layer, without biases.

    size: a model whose trunk gives `width`, `layers`, `heads`, `kv_heads`, `ffn_width`, `norm`, `activation`,
        `positions`, `rope_base` and `tie_embeddings` where they are not given here; null = the defaults below. A number
        that is given goes before it, and a warning lists it. The number in its name counts that model's own vocabulary,
        which bytes make smaller.
    width: size of the residual stream; a multiple of `heads`, and with rotary positions of 2 * heads.
    layers: number of residual blocks.
    heads: query heads of each attention; must divide `width`, with rotary positions into even sizes.
    kv_heads: key and value heads, each shared by heads / kv_heads query heads; must divide `heads`.
    ffn_width: hidden size of the feed-forward layer; null = 8/3 of `width` for swiglu, which has three matrices, else
        4 times `width`; rounded up to a multiple of 32.
    norm: `rmsnorm`, or `layernorm`, which takes the mean off too; both have a scale and no bias.
    norm_position: `pre` normalises what a sublayer reads, `post` the sum of what it read and wrote; a deep `post` model
        needs a long warmup and a low learning rate.
    activation: `swiglu`, which is gated; `gelu`, the exact one; `squared_relu`.
    positions: `rotary` turns queries and keys by their position, `learned` adds a vector of its own for each position.
    rope_base: base of the geometric series of rotary wavelengths; of no meaning with learned positions.
    qk_norm: RMSNorm over each head of the queries and keys, before they are turned.
    logit_soft_cap: c limits the final logits to c * tanh(logit / c); null = no limit. Attention has none (tokens only).
    sliding_window: positions that a position sees, itself among them; null = all before it.
    dropout: share of the embedding, and of what each sublayer writes, that is zeroed in training; none of the attention
        weights.
    tie_embeddings: the token embedding is the prediction head too (tokens only; patches have no table).
    init_std: standard deviation of a matrix at the start; o_proj and down_proj: over sqrt(2 * layers); learned
        positions: half; with `mup`, of a model of the base width.
    experts: experts in the place of each feed-forward layer, and a router that sends every position to some of them;
        null = none, and a count makes them.
    parametrization: `standard`, or `mup`, under which the best learning rate of a narrow model is that of a wide one:
        with m = width / `mup_base_width`, the matrices of attention and feed-forward layers start at `init_std` /
        sqrt(m) and take 1 / m of the learning rate (for muon 1 / sqrt(m)), logits of attention go with 1 / head size
        in the place of its root, and the final logits are multiplied by 1 / m. The width must grow by the size of the
        heads, not by their number, and `ffn_width` with it. Decay per step does not change with the width.
    mup_base_width: width at which `mup` is the same as `standard`: that of the model whose settings are carried over.
    """

    size: str | None = limited(None, choices=tuple(SIZES))
    width: int = limited(64, at_least=2, at_most=1 << 17)
    layers: int = limited(2, at_least=1, at_most=4096)
    heads: int = limited(4, at_least=1)
    kv_heads: int = limited(4, at_least=1)
    ffn_width: int | None = limited(None, at_least=1)
    norm: str = limited("rmsnorm", choices=tuple(NORMS))
    norm_position: str = limited("pre", choices=NORM_POSITIONS)
    activation: str = limited("swiglu", choices=ACTIVATIONS)
    positions: str = limited("rotary", choices=POSITIONS)
    rope_base: float = limited(10000.0, above=1)
    qk_norm: bool = False
    logit_soft_cap: float | None = limited(None, above=0)
    sliding_window: int | None = limited(None, at_least=1)
    dropout: float = limited(0.0, at_least=0, below=1)
    tie_embeddings: bool = True
    init_std: float = limited(0.02, above=0)
    experts: ExpertSettings | None = None
    parametrization: str = limited("standard", choices=PARAMETRIZATIONS)
    mup_base_width: int = limited(64, at_least=2, at_most=1 << 17)


def check(settings: DecoderSettings) -> None:
    """Raise ConfigError for sizes that contradict each other, naming the key of the `model` section."""
    width, heads, kv_heads = settings.width, settings.heads, settings.kv_heads
    is_rotary = settings.positions == "rotary"
    if width % heads != 0:
        raise ConfigError(
            f"model.heads: {heads} does not divide model.width, {width}, into {'even' if is_rotary else 'whole'} "
            f"sizes; choose one of {_divisors(width // 2 if is_rotary else width)}"
        )
    if is_rotary and (width // heads) % 2 != 0:
        raise ConfigError(
            f"model.heads: {heads} heads of model.width {width} have the odd size {width // heads}, but "
            f"rotary positions turn pairs of numbers; choose model.width as a multiple of {2 * heads}"
        )
    if heads % kv_heads != 0:
        raise ConfigError(
            f"model.kv_heads: {kv_heads} does not divide model.heads, {heads}; choose one of {_divisors(heads)}"
        )
    experts = settings.experts
    if experts is not None and settings.parametrization != "standard":
        raise ConfigError(
            f"model.parametrization: {settings.parametrization} is not known to carry a learning rate over for a model "
            "with experts, whose router has no width of its own; set it to standard, or model.experts to null"
        )
    if experts is not None and experts.top_k > experts.count:
        raise ConfigError(
            f"model.experts.top_k: {experts.top_k} experts cannot be chosen of model.experts.count, {experts.count}"
        )


def check_input(settings: DecoderSettings, spec: InputSpec) -> None:
    """Raise ConfigError for settings that mean nothing for what the model is given."""
    if spec.kind == "patches" and settings.logit_soft_cap is not None:
        raise ConfigError(
            "model.logit_soft_cap limits the logits of tokens, and a prediction of samples has none; set it to null"
        )


def ffn_width(settings: DecoderSettings) -> int:
    """Return the hidden size of the feed-forward layer: as set, or by the width, rounded up."""
    if settings.ffn_width is not None:
        return settings.ffn_width
    # SwiGLU has three matrices instead of two, so 8/3 keeps the parameters of a 4-fold layer (arXiv
    # 2002.05202).
    twelfths = 32 if settings.activation == "swiglu" else 48
    return -(-twelfths * settings.width // (12 * FFN_MULTIPLE)) * FFN_MULTIPLE


def _divisors(number: int) -> list[int]:
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]
