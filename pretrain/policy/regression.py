"""Whether a validation loss has become worse than it once was, domain by domain."""

import math
from collections.abc import Mapping

from pretrain.policy.alarms import Observation
from pretrain.policy.measured import Known, Raised

# How much worse than its best a loss may be before it has regressed, and to where it must come back.
REGRESSED, RECOVERED = 0.03, 0.01


def judge_regression(
    losses: Mapping[str, float], known: Known, raised: Raised
) -> tuple[tuple[Observation, ...], Known]:
    """Raise `validation_regression` for a domain whose loss is 3 % above its best; it ends within 1 % of it.

    losses: of one validation, by domain. A loss that is not finite is never the best.
    """
    seen = []
    after = dict(known)
    for name, loss in losses.items():
        key = f"regression {name}"
        best = known[key][0] if key in known else math.inf
        if math.isfinite(best):
            share = RECOVERED if ("validation_regression", name) in raised else REGRESSED
            allowed = best + share * abs(best)
            seen.append(Observation("validation_regression", loss > allowed, loss, allowed, name))
        if math.isfinite(loss) and loss < best:
            after[key] = (loss,)
    return tuple(seen), after
