"""Which checkpoints stay: the newest, the best, the rollback targets and the ones kept for ever."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pretrain.policy.recovery import TARGETS
from pretrain.registry import limited

RankedSteps = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class CheckpointSettings:
    """When a checkpoint is saved and which ones are kept.

    checkpoint_every_n_steps: optimizer steps between checkpoints; step 0 and the last step have one too.
    max_rolling_checkpoints: newest checkpoints of that cadence to keep; two stay as rollback targets anyway.
    num_best_checkpoints: checkpoints with the lowest validation loss to keep.
    keep_every_n_steps: keep every checkpoint whose step is a multiple of this; null = none.
    storage_wait_seconds: how long the run waits for space where a checkpoint, a row or a record meets a full disk or a
      quota, and tries again, before it ends with exit code 6; 0 = it ends at once. The start of an attempt, until its
      folder and its files are there, waits for nothing, since nothing is at stake yet.
    on_low_disk: what is done at the start where the disk of `run.dir` has less room than the run is estimated to need:
      `warn` says so and begins, `refuse` ends with exit code 6 before anything is written.
    """

    checkpoint_every_n_steps: int = limited(100, at_least=1)
    max_rolling_checkpoints: int = limited(3, at_least=1)
    num_best_checkpoints: int = limited(1, at_least=0)
    keep_every_n_steps: int | None = limited(None, at_least=1)
    storage_wait_seconds: float = limited(0.0, at_least=0)
    on_low_disk: str = limited("warn", choices=("warn", "refuse"))


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
    targets: int = TARGETS,
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


def most_checkpoints(settings: CheckpointSettings, validate_every: int, max_steps: int, begun_at: int = -1) -> int:
    """How many checkpoints of one attempt `plan` leaves at most, wherever the best ones fall.

    begun_at: the step of the checkpoint that the attempt goes on from, which is its parent's; -1 = a new run.
    """
    every, forever = settings.checkpoint_every_n_steps, settings.keep_every_n_steps
    # Counted, not listed: a run may have more steps than there is memory. Regular is every multiple of `every` from
    # `first` on; of these the newest stay for that, and of those before them, up to `last`, the rest of the reasons.
    first = (begun_at // every + 1) * every
    regular = max(0, max_steps // every - first // every + 1)
    newest = min(regular, max(settings.max_rolling_checkpoints, TARGETS))
    last = (max_steps // every - newest) * every
    kept_forever = _multiples(math.lcm(every, forever), first, last) if forever is not None else 0
    # The last step of the run, which is validated in any case, is among the newest.
    could_be_best = 0
    if validate_every > 0:
        validated = math.lcm(every, validate_every)
        could_be_best = _multiples(validated, max(first, 1), last)
        if forever is not None:
            could_be_best -= _multiples(math.lcm(validated, forever), max(first, 1), last)
    at_the_end = 0 if max_steps % every == 0 else 1
    return newest + at_the_end + kept_forever + min(settings.num_best_checkpoints, could_be_best)


def _multiples(of: int, first: int, last: int) -> int:
    """How many multiples of `of` there are from `first` to `last`, both among them."""
    return max(0, last // of - (first - 1) // of)


def rank_best(best: Sequence[tuple[int, float]], step: int, value: float, num: int) -> RankedSteps:
    """The best list after `step` was validated with `value` (lower is better): best first, `num` at most.

    A value that is not finite never ranks; of equal values the earlier step ranks first, so a later tie does
    not displace it. A step that was undone and is reached again replaces its own entry.
    """
    others = [(at, ranked) for at, ranked in best if at != step]
    if math.isfinite(value):
        others.append((step, value))
    return tuple(sorted(others, key=lambda entry: (entry[1], entry[0]))[:num])
