"""Which experts of a mixture get no work: their share of a router's choices, look after look."""

import math
from collections.abc import Mapping

from pretrain.policy.alarms import Observation
from pretrain.policy.measured import Known, Measured, Raised

# Below this part of an equal share an expert is starved; it is called dead once it has been for so many steps.
STARVED = 0.25
DEAD_AFTER_STEPS = 100


def judge_experts(values: Measured, known: Known, raised: Raised, step: int) -> tuple[tuple[Observation, ...], Known]:
    """Raise `dead_expert` for one whose share has been below a quarter of an equal one for a hundred steps.

    values: `load` by expert, named ROUTER.NUMBER; one that is not finite tells nothing. Raised, it ends once the share
    is at least half of an equal one.
    """
    seen: list[Observation] = []
    after = dict(known)
    for router, shares in _by_router(values["load"]).items():
        for expert, share in shares.items():
            key = f"experts {router}.{expert}"
            is_raised = ("dead_expert", f"{router}.{expert}") in raised
            least = STARVED * (2 if is_raised else 1) / len(shares)
            if not math.isfinite(share):
                seen.append(Observation("dead_expert", False, share, least, f"{router}.{expert}"))
                continue
            if share >= least:
                after.pop(key, None)
                seen.append(Observation("dead_expert", False, share, least, f"{router}.{expert}"))
                continue
            (since,) = after.setdefault(key, (float(step),))
            is_out = is_raised or step - since >= DEAD_AFTER_STEPS
            seen.append(Observation("dead_expert", is_out, share, least, f"{router}.{expert}"))
    return tuple(seen), after


def load_entropy(values: Measured) -> dict[str, float]:
    """Return the entropy of each router's load as a share of that of equal loads: 1 where all work alike."""
    found = {}
    for router, shares in _by_router(values["load"]).items():
        entropy = math.fsum(-share * math.log(share) for share in shares.values() if share > 0)
        found[router] = entropy / math.log(len(shares)) if len(shares) > 1 else 1.0
    return found


def _by_router(load: Mapping[str, float]) -> dict[str, dict[str, float]]:
    routers: dict[str, dict[str, float]] = {}
    for subject, share in load.items():
        router, _, expert = subject.rpartition(".")
        routers.setdefault(router, {})[expert] = share
    return routers
