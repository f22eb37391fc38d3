"""Alarms of what is measured layer by layer: norms of blocks, activations, attention."""

import math
from collections.abc import Mapping
from statistics import median

from pretrain.policy.alarms import Observation
from pretrain.policy.measured import Known, Measured, Raised, against_past

Judged = tuple[tuple[Observation, ...], Known]

# How far a block may leave the others behind, or stay behind them, against how it stood to them before.
BLOCK_FACTOR = 16.0
# How many times its own past the root mean square of a block's output may be.
ACTIVATION_FACTOR = 8.0
# The largest magnitude that leaves room in a type with few exponents: a quarter of what float16 can hold.
LARGEST_ACTIVATION: Mapping[str, float] = {"float16": 65504.0 / 4}
# The entropy of attention, as a share of attending everywhere alike, below which a layer looks at single positions.
LEAST_ENTROPY = 0.05
# Logits beyond this make a softmax that is 1 in one place, whose gradient is lost.
LARGEST_LOGIT = 100.0
_SMALLEST, _GREATEST = 1e-30, 1e30


def judge_blocks(values: Measured, known: Known, raised: Raised, step: int, blocks: tuple[str, ...]) -> Judged:
    """Compare every block with the median of the others, and that with how it was before.

    What all blocks do together, as at a new learning rate, is nothing here. Of two blocks, one that leaves the other
    behind is one that the other stays behind; of four and more, one alone cannot move the median.

    gradient_norm: `block_gradient_high` and `block_gradient_low`; update_norm over parameter_norm: `block_update_high`.
    """
    seen: list[Observation] = []
    after = dict(known)
    gradients = _against_others({name: values["gradient_norm"][name] for name in blocks})
    watched = {
        "block_gradient_high": gradients,
        "block_gradient_low": {name: 1 / value for name, value in gradients.items()},
    }
    if "update_norm" in values:
        watched["block_update_high"] = _against_others(
            {name: values["update_norm"][name] / max(values["parameter_norm"][name], _SMALLEST) for name in blocks}
        )
    for alarm, of_block in watched.items():
        for name, value in of_block.items():
            key = f"blocks {alarm} {name}"
            found, after[key] = against_past(alarm, name, value, key, known, raised, step=step, factor=BLOCK_FACTOR)
            seen += found
    return tuple(seen), after


def judge_activations(values: Measured, known: Known, raised: Raised, step: int, precision: str) -> Judged:
    """Compare the output of every block with its own past, and with what the precision can hold."""
    seen: list[Observation] = []
    after = dict(known)
    for name, value in values["rms"].items():
        key = f"activations {name}"
        found, after[key] = against_past(
            "activation_explosion", name, value, key, known, raised, step=step, factor=ACTIVATION_FACTOR
        )
        seen += found
    limit = LARGEST_ACTIVATION.get(precision)
    if limit is not None:
        for name, value in values["largest"].items():
            seen.append(_over("activation_range", name, value, limit, raised))
    return tuple(seen), after


def judge_attention(values: Measured, known: Known, raised: Raised) -> Judged:
    """Compare the entropy of every layer, and its largest logit, with what they may be; nothing is remembered."""
    seen: list[Observation] = []
    for name, value in values["entropy"].items():
        least = LEAST_ENTROPY * (2 if ("attention_entropy", name) in raised else 1)
        seen.append(Observation("attention_entropy", value < least, value, least, name))
    for name, value in values["largest_logit"].items():
        seen.append(_over("attention_logit", name, value, LARGEST_LOGIT, raised))
    return tuple(seen), known


def _over(alarm: str, subject: str, value: float, limit: float, raised: Raised) -> Observation:
    """Compare with a fixed limit; an alarm that is raised ends at half of it."""
    allowed = limit / 2 if (alarm, subject) in raised else limit
    return Observation(alarm, value > allowed, value, allowed, subject)


def _against_others(values: Mapping[str, float]) -> dict[str, float]:
    """Return each value over the median of the others, by their logarithms, so that of two it is the geometric mean.

    Nothing for one alone, or where one is not finite.
    """
    if len(values) < 2 or not all(math.isfinite(value) for value in values.values()):
        return {}
    # Within bounds whose ratio, and one over it, are numbers.
    logs = {name: math.log(min(max(value, _SMALLEST), _GREATEST)) for name, value in values.items()}
    return {
        name: math.exp(own - median(log for other, log in logs.items() if other != name)) for name, own in logs.items()
    }
