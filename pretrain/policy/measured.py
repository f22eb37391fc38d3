"""What monitors measure, and what their alarms know of the healthy steps before."""

import math
from collections.abc import Collection, Mapping
from statistics import median

from pretrain.policy.alarms import Observation

# By measure, then by subject: a block, a layer, an expert or a domain.
Measured = Mapping[str, Mapping[str, float]]
# What is remembered from one look to the next, by a key that only its own rule reads: oldest first.
Known = Mapping[str, tuple[float, ...]]
# The alarms that are raised, by name and subject.
Raised = Collection[tuple[str, str | None]]

# A look is compared with the median of this many before it, once there are so many; not in the first steps, where a
# model takes shape: what its blocks write grows tenfold in fifty of them.
_NEWEST, _LEAST = 16, 5
WARMUP_STEPS = 100
_SMALLEST = 1e-30


def against_past(
    name: str, subject: str, value: float, key: str, known: Known, raised: Raised, *, step: int, factor: float
) -> tuple[tuple[Observation, ...], tuple[float, ...]]:
    """Compare a positive value with its own newest healthy ones; return what was seen, and what is known then.

    step: completed steps. factor: how many times their median it may be. An alarm that is raised ends below the root of
    that, so that it does not come and go at the threshold. What stands out, or is not finite, is not remembered.
    """
    past = known.get(key, ())
    if not math.isfinite(value):
        return (Observation(name, False, value, math.inf, subject),), past
    longer = (*past, value)[-_NEWEST:]
    if len(past) < _LEAST or step <= WARMUP_STEPS:
        return (), longer
    allowed = max(median(past), _SMALLEST) * (math.sqrt(factor) if (name, subject) in raised else factor)
    is_out = value > allowed
    return (Observation(name, is_out, value, allowed, subject),), past if is_out else longer
