"""Which checkpoints stay: the newest, the best, the rollback targets and the ones kept for ever."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pretrain.registry import limited

RankedSteps = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class CheckpointSettings:
    """When a checkpoint is saved and which ones are kept.

    checkpoint_every_n_steps: optimizer steps between checkpoints; step 0 and the last step have one too.
    max_rolling_checkpoints: newest checkpoints of that cadence to keep; two stay as rollback targets anyway.
    num_best_checkpoints: checkpoints with the lowest validation loss to keep.
    keep_every_n_steps: keep every checkpoint whose step is a multiple of this; null = none.
    """

    checkpoint_every_n_steps: int = limited(100, at_least=1)
    max_rolling_checkpoints: int = limited(3, at_least=1)
    num_best_checkpoints: int = limited(1, at_least=0)
    keep_every_n_steps: int | None = limited(None, at_least=1)


@dataclass(frozen=True)
class Plan:
    """What to keep and why, and what to remove, by step; both ascend, so the oldest is removed first.

    A reason is one of newest, rolling, target, best, keep_every.
    """

    keep: dict[int, tuple[str, ...]]
    remove: tuple[int, ...]


def plan(
    regular: Collection[int],
    best: Sequence[tuple[int, float]],
    settings: CheckpointSettings,
    off_cadence: Collection[int] = (),
    targets: int = 2,
) -> Plan:
    """Plan the retention of one attempt's durable checkpoints; steps are compared as numbers, never as names.

    regular: steps saved on the regular cadence (step 0 is one).
    best: (step, value), best first, as `rank_best` gives it; a step not in `regular` is an ancestor's.
    off_cadence: steps saved for a signal, or at the end between two of the cadence. Such a checkpoint stays
    only while it is the newest and is never a rollback target, so that an interrupted run goes back to the
    same places as an untouched one.
    targets: how many of the newest regular checkpoints stay for rolling back.
    """
    ascending = sorted(set(regular))
    saved = sorted({*regular, *off_cadence})
    reasons: dict[int, list[str]] = {step: [] for step in saved}
    if saved:
        reasons[saved[-1]].append("newest")
    for step in ascending[-settings.max_rolling_checkpoints :]:
        reasons[step].append("rolling")
    for step in ascending[-targets:] if targets > 0 else ():
        reasons[step].append("target")
    ranked = {step for step, _ in best[: settings.num_best_checkpoints]}
    for step in ascending:
        if step in ranked:
            reasons[step].append("best")
        if settings.keep_every_n_steps is not None and step % settings.keep_every_n_steps == 0:
            reasons[step].append("keep_every")
    return Plan(
        keep={step: tuple(why) for step, why in reasons.items() if why},
        remove=tuple(step for step, why in reasons.items() if not why),
    )


def rank_best(best: Sequence[tuple[int, float]], step: int, value: float, num: int) -> RankedSteps:
    """The best list after `step` was validated with `value` (lower is better): best first, `num` at most.

    A value that is not finite never ranks; of equal values the earlier step ranks first, so a later tie does
    not displace it. A step that was undone and is reached again replaces its own entry.
    """
    others = [(at, ranked) for at, ranked in best if at != step]
    if math.isfinite(value):
        others.append((step, value))
    return tuple(sorted(others, key=lambda entry: (entry[1], entry[0]))[:num])
