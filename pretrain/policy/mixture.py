"""Whether what was trained on is mixed as the configuration says: shares by domain against what chance allows."""

import math
from collections.abc import Mapping

from pretrain.policy.alarms import Observation
from pretrain.policy.measured import Known, Raised

Counts = Mapping[str, int]
# Standard deviations of a share of independent draws; windows drawn without replacement vary less.
DEVIATIONS = 5.0
# A drift that is smaller than this says nothing to anybody, however sure it is.
LEAST_DRIFT = 0.005
# The part of what is allowed to which a drift must come back.
RECOVERED = 0.6


def add_counts(counts: Counts, known: Known) -> Known:
    """Return what is known after a step that was trained on so many samples of each domain."""
    return {**known, **{_key(name): (known.get(_key(name), (0.0,))[0] + count,) for name, count in counts.items()}}


def judge_mixture(
    expected: Mapping[str, float], known: Known, raised: Raised
) -> tuple[Mapping[str, float], tuple[Observation, ...], Known]:
    """Return the shares since the last look, what the alarms see in them, and what is known: the counts begin again.

    expected: the share of each domain, of sum 1. `mixture_drift` is raised for a domain whose share is off by more
    than five standard deviations and what Bernstein's inequality adds for a rare one, of which chance draws several at
    a time more often than a normal law knows; it ends below 0.6 of that. value: how far it is off, threshold: how far
    it may be.
    """
    counts = {name: known.get(_key(name), (0.0,))[0] for name in expected}
    total = sum(counts.values())
    after = {key: value for key, value in known.items() if key not in {_key(name) for name in expected}}
    if total <= 0:
        return {}, (), after
    shares = {name: count / total for name, count in counts.items()}
    seen = []
    for name, share in expected.items():
        chance = DEVIATIONS * math.sqrt(share * (1 - share) / total) + DEVIATIONS**2 / (6 * total)
        allowed = max(chance, LEAST_DRIFT) * (RECOVERED if ("mixture_drift", name) in raised else 1)
        off = abs(shares[name] - share)
        seen.append(Observation("mixture_drift", off > allowed, off, allowed, name))
    return shares, tuple(seen), after


def _key(name: str) -> str:
    return f"mixture {name}"
