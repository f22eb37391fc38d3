"""The figures that the cause of an incident is read from: its numbers, put beside what was usual before it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from pretrain.policy.incident import REPORTS, IncidentNumbers, Replay

# Growth from block to block can be told from chance in this many of them.
LEAST_BLOCKS = 4
_RECENT = 20
_SMALLEST = 1e-300
_LAST = 3


@dataclass(frozen=True)
class Figures:
    """What the causes are told apart by; a ratio is to what was usual, and None where there is nothing to take it from.

    finite: whether loss, norm and state of the incident are. loss, gradient: of the incident.
    same, other, again, float32: how far the replays of the same batch from the safe state, of another batch, of the
    same batch and of it in float32 stand out: 0 = as usual, 1 = as the incident; again is from the state at the
    incident.
    unrest: reports among the last 20 that stood out themselves. growth: of the gradient norm over the steps before,
    while it only rose.
    recent_update: greatest of the newest updates, the incident's included. update_of_fresh: that update over the one
    of fresh moments. moments: moment_ratio as it would be with the usual gradient.
    carriers: share of the samples that carry four fifths of the loss above the usual one. guessed: share of the samples
    that the model does worse on than guessing.
    depth: what the gradient norm grows by from block to block towards the first one, 1 where it does not; None with
    fewer than four blocks.
    widening: largest activation of the last block over the first one's.
    scale: newest loss scale over the greatest.
    """

    finite: bool
    loss: float | None
    gradient: float | None
    same: float | None
    other: float | None
    again: float | None
    float32: float | None
    unrest: int | None
    growth: float | None
    rate: float | None
    recent_update: float | None
    update_of_fresh: float | None
    moments: float | None
    carriers: float | None
    guessed: float | None
    depth: float | None
    widening: float | None
    largest_activation: float | None
    scale: float | None


def figures_of(numbers: IncidentNumbers) -> Figures:
    """Return the figures of an incident."""
    usual_loss, usual_norm = _usual(numbers.losses), _usual(numbers.gradient_norms)
    usual_update = _usual(numbers.update_norms)
    finite = all(map(math.isfinite, (numbers.loss, numbers.gradient_norm))) and numbers.trigger != "non_finite_state"
    loss, gradient = _ratio(numbers.loss, usual_loss), _ratio(numbers.gradient_norm, usual_norm)

    def standing(replay: Replay | None) -> float | None:
        if replay is None:
            return None
        found = (_ratio(replay.loss, usual_loss), _ratio(replay.gradient_norm, usual_norm))
        # What the incident itself did not show is measured by what would be one: 1.5 times the loss, 5 times the norm.
        of_loss = _share(found[0], max(loss or 0.0, 1.5))
        of_norm = _share(found[1], max(gradient or 0.0, 5.0))
        known = [share for share in (of_loss, of_norm) if share is not None]
        return max(known, default=None)

    # The step of an update that stands out had nothing else to show a second time.
    stood_out = not finite or (loss is not None and loss > 1.1) or (gradient is not None and gradient > 2)
    newest = (*numbers.update_norms[-_LAST:], numbers.update_norm)
    updates = [norm for norm in newest if norm is not None and math.isfinite(norm)]
    fresh = numbers.fresh_moments.update_norm if numbers.fresh_moments else None
    activations = numbers.block_activations
    scales = numbers.loss_scales
    return Figures(
        finite=finite,
        loss=loss,
        gradient=gradient,
        same=standing(numbers.same_batch_from_safe),
        other=standing(numbers.other_batch),
        again=standing(numbers.fresh_moments) if stood_out else None,
        float32=standing(numbers.in_float32),
        unrest=_unrest(numbers),
        growth=_growth(numbers.gradient_norms),
        rate=_ratio(numbers.learning_rate, numbers.peak_learning_rate),
        recent_update=_ratio(max(updates), usual_update) if updates else None,
        update_of_fresh=_ratio(numbers.update_norm, fresh),
        moments=_moments(numbers, usual_norm),
        carriers=_carriers(numbers.sample_losses, usual_loss) if loss is not None and loss > 1.1 else None,
        guessed=_guessed(numbers.sample_losses, numbers.uniform_loss, usual_loss),
        depth=_depth(numbers.block_gradient_norms),
        widening=_ratio(activations[-1], activations[0]) if len(activations) > 1 else None,
        largest_activation=max((math.inf if math.isnan(one) else one for one in activations), default=None),
        scale=_ratio(scales[-1], max(scales)) if scales else None,
    )


def _usual(values: Sequence[float], last: int = _RECENT) -> float | None:
    finite = [value for value in values[-last:] if math.isfinite(value)]
    return median(finite) if finite else None


def _ratio(value: float | None, usual: float | None) -> float | None:
    """Return value / usual; what is not finite is infinitely far."""
    if value is None or usual is None or not usual > 0:
        return None
    return value / usual if math.isfinite(value) else math.inf


def _share(ratio: float | None, whole: float) -> float | None:
    """Return how much of a jump by `whole` a jump by `ratio` is, by their logarithms: 0 = none of it, 1 = all of it."""
    if ratio is None:
        return None
    if ratio <= 1:
        return 0.0
    if math.isinf(ratio) or math.isinf(whole):
        # All of what is not finite; of a finite one, twice the loss or norm is a third, and eight times is all.
        return 1.0 if math.isinf(ratio) else min(1.0, math.log(ratio) / math.log(8))
    return min(1.0, math.log(ratio) / math.log(whole))


def _unrest(numbers: IncidentNumbers) -> int | None:
    """Return how many of the newest reports stood out from what was usual then, by loss or by norm.

    By 1.25 times the loss or 2.5 times the norm, or three robust deviations where batches differ by more than that.
    """
    if len(numbers.losses) < _LAST:
        return None
    most_loss = _unusual(numbers.losses, 1.25)
    most_norm = _unusual(numbers.gradient_norms, 2.5)
    if most_loss is None or most_norm is None:
        return None
    recent = zip(numbers.losses[-_RECENT:], numbers.gradient_norms[-_RECENT:], strict=True)
    return sum(not (one <= most_loss and other <= most_norm) for one, other in recent)


def _unusual(values: Sequence[float], factor: float) -> float | None:
    """Return the greatest value that is still usual, None where none is finite.

    What batches differ by is read off those below the middle, since the steps that stand out are above it.
    """
    logs = sorted(math.log(max(value, _SMALLEST)) for value in values[-REPORTS:] if math.isfinite(value))
    if not logs:
        return None
    middle = median(logs)
    deviation = (middle - logs[len(logs) // 4]) / 0.6745
    return math.exp(min(middle + max(math.log(factor), 3 * deviation), 700.0))


def _growth(norms: Sequence[float]) -> float | None:
    """Return the norm's newest value over the one that its last unbroken rise began at."""
    if len(norms) < _LAST:
        return None
    begin = len(norms) - 1
    while begin > 0 and not norms[begin - 1] >= norms[begin]:
        begin -= 1
    return _ratio(norms[-1], norms[begin])


def _moments(numbers: IncidentNumbers, usual_norm: float | None) -> float | None:
    if numbers.moment_ratio is None or not math.isfinite(numbers.moment_ratio) or usual_norm is None:
        return None
    if not math.isfinite(numbers.gradient_norm):
        return None
    limit = math.inf if numbers.clip_max_norm is None else numbers.clip_max_norm
    of_usual = _ratio(min(numbers.gradient_norm, limit), min(usual_norm, limit))
    return None if of_usual is None else numbers.moment_ratio * of_usual


def _carriers(losses: Sequence[float], usual: float | None) -> float | None:
    if usual is None or len(losses) < 4:
        return None
    above = sorted((max(loss - usual, 0.0) if math.isfinite(loss) else math.inf for loss in losses), reverse=True)
    if math.isinf(above[0]):
        return sum(map(math.isinf, above)) / len(above)
    carried, needed = 0.0, 0.8 * sum(above)
    for count, excess in enumerate(above, start=1):
        carried += excess
        if carried >= needed:
            return count / len(above)
    return 1.0


def _guessed(losses: Sequence[float], uniform: float | None, usual: float | None) -> float | None:
    # A model that has learnt little is no better than guessing on sound data either.
    finite = [loss for loss in losses if math.isfinite(loss)]
    if not finite or uniform is None or usual is None or usual > 0.8 * uniform:
        return None
    return sum(loss >= uniform for loss in finite) / len(finite)


def _depth(norms: Sequence[float]) -> float | None:
    """Return what the norm grows by from the block with the least of it to the first one; 1 where it is no such growth.

    A growth takes half of the depth or more, rises over most of its blocks, and not by one of them alone.
    """
    if len(norms) < LEAST_BLOCKS:
        return None
    # What is not finite is more than what is, and as much as what is not.
    logs = [math.log(max(norm, _SMALLEST)) if math.isfinite(norm) else math.inf for norm in norms]
    least = logs.index(min(logs))
    rises = [0.0 if first == second else first - second for first, second in pairwise(logs[: least + 1])]
    if math.isinf(logs[least]) or 2 * least < len(norms) - 1 or sum(rise >= 0 for rise in rises) < 0.7 * len(rises):
        return None if math.isinf(logs[least]) else 1.0
    whole = logs[0] - logs[least]
    if math.isinf(whole):
        return math.inf
    return math.exp(min(whole, 700.0)) if max(rises) <= 0.6 * whole else 1.0
