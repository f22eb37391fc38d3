"""What follows the width of a model under muP: initial values, the scale of attention, the multiplier of the head."""

import math

from pretrain.models.settings import DecoderSettings

# Yang et al., arXiv 2203.03466, table 8, the form that allows for a head which is tied to the embedding; of the router,
# whose outputs do not grow with the width, table 3. What learning rates are multiplied by stands with the optimizers.


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
    """Return the standard deviation of a matrix of this role, of which it is `std` at the base.

    ratio: m. Matrices of attention and feed-forward layers have std / sqrt(m), a router std / m, all others std.
    """
    if role in ("attention", "feed_forward"):
        return std / math.sqrt(ratio)
    return std / ratio if role == "router" else std
