"""What caused an incident, read from numbers alone: evidence for and against each cause, and the best supported one."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pretrain.policy.figures import LEAST_BLOCKS, Figures, figures_of
from pretrain.policy.incident import IncidentNumbers

Cause = Literal[
    "high_curvature",
    "exploding_depth",
    "outlier_batch",
    "optimizer_state",
    "precision",
    "data_corruption",
    "unknown",
]
# Of the weights below, 1 is a hint and 3 nearly a proof. A cause is named when what speaks for it outweighs what speaks
# against it by this much, and any other cause by that much.
_LEAST_SCORE = 2.0
_LEAST_MARGIN = 0.75
# A loss of so many times the usual one is raised; below that, only the gradient was.
_RAISED = 1.15
_BAD_SHARE = 0.15
# A gradient norm of so many times the usual one is a jump and no rise.
_FAR = 50.0
# What the gradient norm grows by through all blocks: the least that counts, and what leaves no doubt.
_GROWN, _FAR_GROWN = 5.0, 20.0
_FLOAT16_NEAR_ITS_END = 2.0**14


@dataclass(frozen=True)
class Evidence:
    """One number that speaks for a cause or against it, and what it would be if that were the cause."""

    name: str
    value: float
    expected: str


@dataclass(frozen=True)
class Diagnosis:
    """The cause, the evidence for and against it, and what to do about it in one sentence with config keys.

    Where nothing explains the incident, the cause is `unknown`, and the evidence is that of the best supported one.
    scores: every cause that was weighed, the best supported one first.
    """

    cause: Cause
    evidence_for: tuple[Evidence, ...]
    evidence_against: tuple[Evidence, ...]
    remedy: str
    scores: tuple[tuple[Cause, float], ...]


@dataclass(frozen=True)
class _Clue:
    evidence: Evidence
    weight: float


def diagnose(numbers: IncidentNumbers) -> Diagnosis:
    """Name the cause of an incident."""
    figures = figures_of(numbers)
    clues = {
        cause: [*signature(numbers, figures), *_common(cause, figures)] for cause, signature in _SIGNATURES.items()
    }
    totals: dict[Cause, float] = {cause: sum(clue.weight for clue in found) for cause, found in clues.items()}
    scores = tuple(sorted(totals.items(), key=lambda entry: -entry[1]))
    (best, score), (_, second) = scores[:2]
    named = score >= _LEAST_SCORE and score - second >= _LEAST_MARGIN
    strongest = sorted(clues[best], key=lambda clue: -abs(clue.weight))
    return Diagnosis(
        cause=best if named else "unknown",
        evidence_for=tuple(clue.evidence for clue in strongest if clue.weight > 0),
        evidence_against=tuple(clue.evidence for clue in strongest if clue.weight < 0),
        remedy=_remedy(best if named else "unknown", numbers),
        scores=scores,
    )


def _clue(name: str, value: float | None, expected: str, holds: bool, weight: float, otherwise: float) -> list[_Clue]:
    """Return what a number says: `weight` for the cause where it holds, `otherwise` against it; nothing if None."""
    if value is None or (weight if holds else otherwise) == 0:
        return []
    return [_Clue(Evidence(name, float(value), expected), weight if holds else -otherwise)]


def _at_least(name: str, value: float | None, bound: float, weight: float, otherwise: float) -> list[_Clue]:
    return _clue(name, value, f"at least {bound:g}", value is not None and value >= bound, weight, otherwise)


def _below(name: str, value: float | None, bound: float, weight: float, otherwise: float) -> list[_Clue]:
    return _clue(name, value, f"below {bound:g}", value is not None and value < bound, weight, otherwise)


def _common(cause: Cause, figures: Figures) -> list[_Clue]:
    """Return what speaks against every cause alike, and against all but precision."""
    return [
        # What the same batch does not show a second time, from the same state, has its cause in neither.
        *_at_least("same_batch_again", figures.again, 0.3, 0.0, 2.5),
        *_at_least("same_batch_in_float32", None if cause == "precision" else figures.float32, 0.3, 0.0, 2.0),
    ]


def _high_curvature(numbers: IncidentNumbers, figures: Figures) -> list[_Clue]:
    depth, update = figures.depth, figures.recent_update
    # Where the loss stays, or any batch stands out, the safe state can lie above the same limit: it says less then.
    telling = _is_raised(figures) and not _is_anywhere(figures)
    jumped = not figures.finite or (figures.gradient is not None and figures.gradient >= _FAR)
    return [
        *_below("same_batch_from_safe_state", figures.same, 0.5, 1.5, 2.0 if telling else 0.5),
        *_at_least("other_batch", figures.other, 0.5, 2.0, 0.5),
        *_at_least("share_of_peak_learning_rate", figures.rate, 0.3, 1.0, 1.5),
        *_at_least("restless_steps_of_20", figures.unrest, 2, 1.0, 0.25),
        # A run that was calm does not jump that far by a learning rate.
        *_at_least("restless_steps_before_it", figures.unrest if jumped else None, 2, 0.0, 3.0),
        *_clue("update_over_usual", update, "0.3 to 2.5", update is not None and 0.3 <= update < 2.5, 0.5, 1.5),
        *_below("loss_over_usual", figures.loss if figures.finite else None, _RAISED, 0.75, 0.0),
        *_at_least("root_of_second_moment_over_gradient", figures.moments, 5, 1.0, 0.0),
        *_at_least("largest_activation", figures.largest_activation, 100, 0.5, 0.0),
        *_below("block_growth_towards_first", depth, _GROWN, 0.0, 1.5 + 2.0 * _far_grown(depth)),
    ]


def _exploding_depth(numbers: IncidentNumbers, figures: Figures) -> list[_Clue]:
    depth = figures.depth
    anywhere = max((share for share in (figures.same, figures.other) if share is not None), default=None)
    return [
        *_at_least("blocks", len(numbers.block_gradient_norms), LEAST_BLOCKS, 0.0, 2.5),
        *_at_least("block_growth_towards_first", depth, _GROWN, 1.5 + 2.5 * _far_grown(depth), 2.5),
        *_at_least("gradient_growth_over_steps", figures.growth, 3, 1.0, 0.0),
        *_below("step", numbers.step, max(200, 3 * numbers.warmup_steps), 0.5, 0.5),
        *_at_least("activation_growth_towards_last", figures.widening, 10, 0.5, 0.0),
        *_at_least("other_batch_or_safe_state", anywhere, 0.5, 0.5, 0.5),
    ]


def _outlier_batch(numbers: IncidentNumbers, figures: Figures) -> list[_Clue]:
    telling = _is_raised(figures) and not _is_anywhere(figures)
    return [
        *_at_least("same_batch_from_safe_state", figures.same, 0.5, 2.0 if telling else 1.0, 3.0),
        *_below("other_batch", figures.other, 0.5, 1.5, 2.0),
        *_at_least("loss_over_usual", figures.loss, _RAISED, 0.5, 1.5),
        *_below("share_of_samples_that_carry_it", figures.carriers, 0.55, 1.5, 0.0),
        *_below("restless_steps_of_20", figures.unrest, 3, 0.5, 0.5),
        *_below("block_growth_towards_first", figures.depth, _GROWN, 0.0, 1.5),
        *_below("bad_input_share", numbers.bad_input_share, _least_bad(figures), 0.0, 3.0),
        *_below("share_of_samples_worse_than_guessing", figures.guessed, 0.75, 0.0, 2.0),
        *_clue("loss", numbers.loss, "finite, and its norm", figures.finite, 0.0, 1.0),
    ]


def _optimizer_state(numbers: IncidentNumbers, figures: Figures) -> list[_Clue]:
    moments, update = figures.moments, figures.recent_update
    tiny = moments is not None and moments < 0.1
    starved = moments is not None and moments > 50 and update is not None and update < 0.3
    return [
        *_at_least("update_over_usual", update, 3, 2.5, 0.0 if starved else 1.5),
        *_at_least("update_over_that_of_fresh_moments", figures.update_of_fresh, 1.2, 2.0, 0.0 if starved else 1.0),
        *_below("root_of_second_moment_over_gradient", moments, 0.45, 2.5 if tiny else 1.5, 0.0 if starved else 1.0),
        *_at_least("root_of_second_moment_over_gradient", moments if starved else None, 50, 3.0, 0.0),
        *_below("same_batch_from_safe_state", figures.same, 0.5, 0.5, 1.5),
    ]


def _precision(numbers: IncidentNumbers, figures: Figures) -> list[_Clue]:
    half = numbers.precision == "float16"
    bits = 32 if numbers.precision == "float32" else 16
    return [
        *_clue("bits", bits, "16, of which 5 are the exponent", half, 1.0, 4.0 if bits == 32 else 1.0),
        *_below("loss_scale_over_greatest", figures.scale, 0.2, 2.0, 0.5),
        *_below("same_batch_in_float32", figures.float32, 0.5, 2.5, 3.0),
        *_clue("loss", numbers.loss, "not finite, or its norm", not figures.finite, 1.0, 1.0),
        *_at_least("largest_activation", figures.largest_activation if half else None, _FLOAT16_NEAR_ITS_END, 1.0, 0.0),
    ]


def _data_corruption(numbers: IncidentNumbers, figures: Figures) -> list[_Clue]:
    return [
        *_at_least("bad_input_share", numbers.bad_input_share, _least_bad(figures), 3.0, 1.0),
        *_at_least("share_of_samples_worse_than_guessing", figures.guessed, 0.75, 2.5, 0.5),
        *_at_least("same_batch_from_safe_state", figures.same, 0.5, 1.0, 2.0),
        *_below("other_batch", figures.other, 0.5, 1.0, 1.5),
        *_below("restless_steps_of_20", figures.unrest, 3, 0.25, 0.25),
    ]


def _far_grown(depth: float | None) -> float:
    """Return how far a growth is from the least one that counts, 0, to one that leaves no doubt, 1, in logarithms."""
    if depth is None or depth <= _GROWN:
        return 0.0
    return min(1.0, math.log(depth / _GROWN) / math.log(_FAR_GROWN / _GROWN)) if math.isfinite(depth) else 1.0


def _least_bad(figures: Figures) -> float:
    # One sample of a single value occurs in sound data: a line of dashes, a pause. One that is not finite does not.
    return _BAD_SHARE if figures.finite else 1e-9


def _is_anywhere(figures: Figures) -> bool:
    return figures.other is not None and figures.other >= 0.5


def _is_raised(figures: Figures) -> bool:
    return figures.loss is None or figures.loss >= _RAISED


_SIGNATURES: dict[Cause, Callable[[IncidentNumbers, Figures], list[_Clue]]] = {
    "high_curvature": _high_curvature,
    "exploding_depth": _exploding_depth,
    "outlier_batch": _outlier_batch,
    "optimizer_state": _optimizer_state,
    "precision": _precision,
    "data_corruption": _data_corruption,
}


def _remedy(cause: Cause, numbers: IncidentNumbers) -> str:
    peak = numbers.peak_learning_rate
    return {
        "high_curvature": f"Lower optimizer.lr from {peak:g} to about {peak / 2:g}, or warm up for longer with "
        "scheduler.scheduler_warmup_ratio.",
        "exploding_depth": "Set model.norm_position to pre and lower model.init_std, or take fewer model.layers; "
        "training.grad_clip_max_norm only hides it.",
        "outlier_batch": "Look at the samples with the highest loss in this incident; spikes.loss.action and "
        "spikes.gradient.action keep such a batch from the weights, and taking them out of data.train ends it.",
        "optimizer_state": "Go back with weights and moments together, as spikes.update.action roll_back does by "
        "itself, and raise optimizer.eps or lower the second of optimizer.betas if it returns.",
        "precision": "Set training.precision to bfloat16 where the device has it, or to float32.",
        "data_corruption": "Check what data.train reads at the samples of this incident: it cannot be learnt.",
        "unknown": "Nothing that was measured explains it: look at its samples, and watch whether it comes back; "
        "spikes.update.action roll_back finds earlier what the loss shows late.",
    }[cause]
