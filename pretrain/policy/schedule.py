"""The shape of the learning rate: a multiplier of its peak, a pure function of the completed steps."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pretrain.registry import Entry, limited

Multiplier = Callable[[int], float]

# What is left of a decay after a share `p` of its steps: 1 at its begin, 0 at its end. `1-sqrt` falls fast at first
# and hardly at the end (Haegele et al., arXiv 2405.18392).
DECAY_SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda p: 1 - p,
    "cosine": lambda p: 0.5 * (1 + math.cos(math.pi * p)),
    "1-sqrt": lambda p: 1 - math.sqrt(p),
}


@dataclass(frozen=True)
class CosineSettings:
    """Linear warmup, then half a cosine down to `min_lr_ratio`.

    scheduler_total_steps: steps of the whole shape; null = training.max_steps.
    scheduler_warmup_ratio: share of the total that warms up, rounded to whole steps (a half to even).
    min_lr_ratio: what is left of the peak at the end and after it.
    """

    scheduler_total_steps: int | None = limited(None, at_least=1)
    scheduler_warmup_ratio: float = limited(0.05, at_least=0, at_most=1)
    min_lr_ratio: float = limited(0.0, at_least=0, at_most=1)


@dataclass(frozen=True)
class LinearSettings:
    """Linear warmup, then a straight line down to `min_lr_ratio`.

    scheduler_total_steps: steps of the whole shape; null = training.max_steps.
    scheduler_warmup_ratio: share of the total that warms up, rounded to whole steps (a half to even).
    min_lr_ratio: what is left of the peak at the end and after it.
    """

    scheduler_total_steps: int | None = limited(None, at_least=1)
    scheduler_warmup_ratio: float = limited(0.05, at_least=0, at_most=1)
    min_lr_ratio: float = limited(0.0, at_least=0, at_most=1)


@dataclass(frozen=True)
class ConstantSettings:
    """The peak at every step; nothing to set."""


@dataclass(frozen=True)
class LinearWarmupThenConstantSettings:
    """Linear warmup, then the peak.

    scheduler_total_steps: the steps that the warmup is a share of; null = training.max_steps.
    scheduler_warmup_ratio: share of the total that warms up, rounded to whole steps (a half to even).
    """

    scheduler_total_steps: int | None = limited(None, at_least=1)
    scheduler_warmup_ratio: float = limited(0.05, at_least=0, at_most=1)


@dataclass(frozen=True)
class WarmupStableDecaySettings:
    """Linear warmup, then the peak, then a decay to `min_lr_ratio`.

    scheduler_total_steps: steps of the whole shape; null = training.max_steps.
    scheduler_warmup_ratio: share of the total that warms up, rounded to whole steps (a half to even).
    decay_ratio: share of the total that decays, rounded likewise; with the warmup at most 1.
    decay_shape: how it falls: `linear`, `cosine` (half a cosine), or `1-sqrt` (arXiv 2405.18392).
    min_lr_ratio: what is left of the peak at the end and after it.
    """

    scheduler_total_steps: int | None = limited(None, at_least=1)
    scheduler_warmup_ratio: float = limited(0.05, at_least=0, at_most=1)
    decay_ratio: float = limited(0.2, at_least=0, at_most=1)
    decay_shape: str = limited("linear", choices=tuple(DECAY_SHAPES))
    min_lr_ratio: float = limited(0.0, at_least=0, at_most=1)


@dataclass(frozen=True)
class InverseSquareRootSettings:
    """Linear warmup over W steps, then the peak times sqrt(W / n) at the n-th step (arXiv 1706.03762, section 5.3).

    scheduler_total_steps: steps of the whole shape; null = training.max_steps.
    scheduler_warmup_ratio: share of the total that warms up, rounded to whole steps (a half to even); without a warmup
      W is 1, and the rate falls from the second step on.
    decay_ratio: share of the total that cools down at the end, from what the root has left; 0 = none.
    decay_shape: how it cools down: `linear`, `cosine` (half a cosine), or `1-sqrt` (arXiv 2405.18392).
    min_lr_ratio: the least that is left of the peak after the warmup, and what is left after the cool-down.
    """

    scheduler_total_steps: int | None = limited(None, at_least=1)
    scheduler_warmup_ratio: float = limited(0.05, at_least=0, at_most=1)
    decay_ratio: float = limited(0.0, at_least=0, at_most=1)
    decay_shape: str = limited("linear", choices=tuple(DECAY_SHAPES))
    min_lr_ratio: float = limited(0.0, at_least=0, at_most=1)


def contradictions(settings: Any) -> tuple[str, ...]:
    """What is wrong with a schedule's settings that no limit of a single key can say; each names its keys."""
    if not isinstance(settings, WarmupStableDecaySettings | InverseSquareRootSettings):
        return ()
    warmup, decay = settings.scheduler_warmup_ratio, settings.decay_ratio
    # 0.7 + 0.3 is exact only by luck: what matters is that the two parts fit into the whole.
    if warmup + decay <= 1 + 1e-9:
        return ()
    return (
        f"scheduler.scheduler_warmup_ratio ({warmup:g}) + scheduler.decay_ratio ({decay:g}) is more than 1:"
        " the decay would begin before the warmup ends; lower one of them",
    )


def warmup_steps(settings: Any) -> int:
    """Return the steps over which a schedule warms up; 0 for one that does not."""
    ratio: float = getattr(settings, "scheduler_warmup_ratio", 0.0)
    return round(ratio * _total(settings)) if ratio else 0


def phase(settings: Any, rate: Multiplier, step: int, peak: float = 1.0) -> str:
    """Return where in its schedule the step after `step` completed ones stands: warmup, peak or decay.

    rate: what the schedule makes of `peak` at a step. An inverse square root decays from the end of its warmup on.
    """
    if step < warmup_steps(settings):
        return "warmup"
    return "peak" if rate(step) == peak else "decay"


def scaled_peak(lr: float, scaling: str, batch: int, base: int | None) -> float:
    """Return the peak rate of a run whose steps take `batch` samples, for an `lr` that was found with `base`.

    scaling: `linear` as in Goyal et al. (arXiv 1706.02677), `sqrt` as in Krizhevsky (arXiv 1404.5997), or `none`.
    """
    if scaling == "none" or base is None:
        return lr
    ratio = batch / base
    return lr * (ratio if scaling == "linear" else math.sqrt(ratio))


def _total(settings: Any) -> int:
    total = settings.scheduler_total_steps
    assert isinstance(total, int), "scheduler_total_steps is resolved to training.max_steps before build"
    return total


def _constant(settings: ConstantSettings) -> Multiplier:
    return lambda step: 1.0


def _linear_warmup_then_constant(settings: LinearWarmupThenConstantSettings) -> Multiplier:
    warmup = round(settings.scheduler_warmup_ratio * _total(settings))
    return lambda step: (step + 1) / warmup if step < warmup else 1.0


def _cosine(settings: CosineSettings) -> Multiplier:
    total, lowest = _total(settings), settings.min_lr_ratio
    warmup = round(settings.scheduler_warmup_ratio * total)

    def multiplier(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if step >= total:
            return lowest
        progress = (step - warmup) / (total - warmup)
        return lowest + (1 - lowest) * 0.5 * (1 + math.cos(math.pi * progress))

    return multiplier


def _linear(settings: LinearSettings) -> Multiplier:
    total, lowest = _total(settings), settings.min_lr_ratio
    warmup = round(settings.scheduler_warmup_ratio * total)

    def multiplier(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if step >= total:
            return lowest
        return 1.0 if step == warmup else lowest + (1 - lowest) * (total - step) / (total - warmup)

    return multiplier


def _warmup_stable_decay(settings: WarmupStableDecaySettings) -> Multiplier:
    total, lowest = _total(settings), settings.min_lr_ratio
    warmup, decay = warmup_steps(settings), _decay_steps(settings)

    def multiplier(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        # Without a decay nothing falls, past the end either: a plain warmup and a plateau.
        if step <= total - decay or decay == 0:
            return 1.0
        if settings.decay_shape == "linear":
            return lowest + (1 - lowest) * max(total - step, 0) / decay
        return _decayed(settings, 1.0, step, total - decay, decay)

    return multiplier


def _inverse_square_root(settings: InverseSquareRootSettings) -> Multiplier:
    total, lowest = _total(settings), settings.min_lr_ratio
    warmup, decay = warmup_steps(settings), _decay_steps(settings)

    def root(step: int) -> float:
        return max(math.sqrt(max(warmup, 1) / (step + 1)), lowest)

    def multiplier(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if step < total - decay or decay == 0:
            return root(step)
        return _decayed(settings, root(total - decay), step, total - decay, decay)

    return multiplier


def _decay_steps(settings: WarmupStableDecaySettings | InverseSquareRootSettings) -> int:
    # Two ratios that fit can round to one step too many; the warmup keeps its steps.
    return min(round(settings.decay_ratio * _total(settings)), _total(settings) - warmup_steps(settings))


def _decayed(
    settings: WarmupStableDecaySettings | InverseSquareRootSettings, highest: float, step: int, begin: int, steps: int
) -> float:
    """Return what is left at `step` of a decay over `steps` steps from `highest`, which it still has at `begin`."""
    lowest, shape = settings.min_lr_ratio, DECAY_SHAPES[settings.decay_shape]
    return lowest if step >= begin + steps else lowest + (highest - lowest) * shape((step - begin) / steps)


# `build(settings)` gives the multiplier of the peak for the step about to run; its argument is the number of
# completed steps, so a warmup over W steps gives 1/W for the first one and 1 at W - 1.
SCHEDULES: dict[str, Entry[Any, Multiplier]] = {
    "cosine": Entry(CosineSettings, _cosine),
    "linear": Entry(LinearSettings, _linear),
    "constant": Entry(ConstantSettings, _constant),
    "linear_warmup_then_constant": Entry(LinearWarmupThenConstantSettings, _linear_warmup_then_constant),
    "warmup_stable_decay": Entry(WarmupStableDecaySettings, _warmup_stable_decay),
    "inverse_square_root": Entry(InverseSquareRootSettings, _inverse_square_root),
}
