"""What is known of a step that stood out or was refused, as numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

# Batches of the history that are known.
REPORTS = 50


@dataclass(frozen=True)
class Replay:
    """What one step gave when it was run again, None where that was not measured; update_norm as in IncidentNumbers.

    step: completed steps of the state it was run from. block_gradient_norms: before clipping, first block to last.
    """

    loss: float | None = None
    gradient_norm: float | None = None
    update_norm: float | None = None
    step: int | None = None
    block_gradient_norms: tuple[float, ...] = ()


@dataclass(frozen=True)
class Report:
    """One batch of the history: `step` counts a step that was taken; what was not measured, or not used, is None.

    event: step, skipped, or overflow for a step that only the loss scale refused. update_norm: not over the rate.
    """

    event: str
    step: int
    batch: int
    loss: float
    gradient_norm: float
    learning_rate: float | None = None
    update_norm: float | None = None

    @property
    def relative_update(self) -> float | None:
        """Return the update norm over the learning rate."""
        if self.update_norm is None or not self.learning_rate:
            return None
        return self.update_norm / self.learning_rate


@dataclass(frozen=True)
class IncidentNumbers:
    """All that a diagnosis may know; losses and norms may be non-finite, and what was not measured is None or empty.

    trigger: loss, gradient, update, non_finite_loss, non_finite_norm, post_clip or non_finite_state; value, threshold:
        of that.
    step: completed steps before the incident. learning_rate: of its step, under a peak of peak_learning_rate.
    loss, gradient_norm: of its step, before clipping.
    losses, gradient_norms, update_norms: of the reports before it, at most 50, oldest first; overflows are no reports.
    update_norm: of its step, or else of the last one; every update norm here is over the learning rate.
    sample_losses: one for each sample of the batch. uniform_loss: what guessing costs (ln vocabulary; 1 for IQ).
    block_gradient_norms, block_activations: norm and largest magnitude of each block, first to last.
    moment_ratio: median over elements of sqrt(v_hat) / |g|, of the optimizer's state before the step and the clipped
        gradient. clip_max_norm: training.grad_clip_max_norm.
    loss_scales: before it, oldest first, or no more than the greatest and the newest; empty without a scaler.
    bad_input_share: of the batch's samples, those that hold a value that is not finite, or only one value.
    same_batch_from_safe: the batch of the incident from the newest rollback target.
    other_batch: another batch from the state at the incident.
    fresh_moments: the batch of the incident from the state at the incident, its moments empty.
    in_float32: the same in float32; only worth running in another precision.
    """

    trigger: str
    value: float
    threshold: float
    step: int
    warmup_steps: int
    learning_rate: float
    peak_learning_rate: float
    loss: float
    gradient_norm: float
    losses: tuple[float, ...] = ()
    gradient_norms: tuple[float, ...] = ()
    update_norms: tuple[float, ...] = ()
    update_norm: float | None = None
    sample_losses: tuple[float, ...] = ()
    uniform_loss: float | None = None
    block_gradient_norms: tuple[float, ...] = ()
    block_activations: tuple[float, ...] = ()
    moment_ratio: float | None = None
    clip_max_norm: float | None = None
    precision: str = "float32"
    loss_scales: tuple[float, ...] = ()
    bad_input_share: float | None = None
    same_batch_from_safe: Replay | None = None
    other_batch: Replay | None = None
    fresh_moments: Replay | None = None
    in_float32: Replay | None = None


def series(history: Sequence[Report]) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """Return losses, gradient_norms and update_norms of IncidentNumbers from a history, oldest first."""
    reports = [report for report in history if report.event != "overflow"]
    updates = [report.relative_update for report in reports]
    losses, norms = tuple(report.loss for report in reports), tuple(report.gradient_norm for report in reports)
    return losses, norms, tuple(update for update in updates if update is not None)


def loss_scales(scale: float, history: Sequence[Report]) -> tuple[float, ...]:
    """Return the greatest loss scale within the history, and the newest: each overflow has halved it."""
    before = scale * 2.0 ** sum(report.event == "overflow" for report in history)
    return (before, scale)
