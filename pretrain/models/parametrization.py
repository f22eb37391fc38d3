"""What follows the width of a model under muP: initial values, the scale of attention, the multiplier of the head.

Yang et al., arXiv 2203.03466, table 8, which allows for a head that is tied to the embedding. With m = width / base:

| part | initial standard deviation | in the forward pass | rate of an optimizer like Adam |
|---|---|---|---|
| embeddings, norms | as it is | | as it is |
| matrices of attention and feed-forward layers | over sqrt(m) | logits of attention go with 1 / head size | over m |
| head | as it is | times 1 / m | as it is |
| router, whose outputs do not grow: table 3 | over m | | over m |

What the rates are multiplied by stands with the optimizers, since not all of them are like Adam.
"""

import math

from pretrain.models.settings import DecoderSettings


def width_ratio(settings: object) -> float:
    """Return m, how many times as wide as its base a model is; 1 for `standard`, and for any other kind of model."""
    if not isinstance(settings, DecoderSettings) or settings.parametrization == "standard":
        return 1.0
    return settings.width / settings.mup_base_width


def attention_scale(settings: DecoderSettings) -> float | None:
    """Return what the logits of attention are multiplied by; None = 1 / sqrt(d) of heads of size d, as it is usual.

    sqrt(d / m) / d, which is 1 / sqrt(d) at the base and falls with 1 / d where the width grows by the size of heads.
    """
    ratio, head_size = width_ratio(settings), settings.width // settings.heads
    return None if ratio == 1 else math.sqrt(head_size / ratio) / head_size


def initial_std(role: str, std: float, ratio: float) -> float:
    """Return the standard deviation of a matrix of this role, of which it is `std` at the base."""
    if role in ("attention", "feed_forward"):
        return std / math.sqrt(ratio)
    return std / ratio if role == "router" else std
