"""Whether a step is healthy enough to reach the weights, and how many refusals a run may take."""

import math
from dataclasses import dataclass
from typing import Literal

from pretrain.registry import limited

Action = Literal["accept", "skip", "fail"]
Reason = Literal["non_finite_loss", "non_finite_norm", "post_clip"]


@dataclass(frozen=True)
class GuardSettings:
    """When a step is refused, and how often that may happen.

    inf_post_clip_threshold: largest absolute element that a clipped gradient may hold. No element exceeds the norm, so
      that at or above `training.grad_clip_max_norm` only a value that is not finite does.
    nan_check_interval: steps between scans of the elements; the loss and the norm are checked on every step.
    max_nan_retries: refused steps that are skipped before the attempt fails with exit code 4.
    nan_retry_window_steps: a refused step is forgotten after this many steps; 0 = never.
    """

    inf_post_clip_threshold: float = limited(10.0, above=0)
    nan_check_interval: int = limited(1, at_least=1)
    max_nan_retries: int = limited(3, at_least=0)
    nan_retry_window_steps: int = limited(1000, at_least=0)


@dataclass(frozen=True)
class StepReport:
    """What the guard is told about one step, before the optimizer moves.

    loss: mean over everything supervised in the step.
    gradient_norm: global norm before clipping; clipped_norm: after it (the same without clipping).
    largest: largest absolute element of the clipped gradients (NaN if one is NaN); None = not scanned.
    overflowed: the norm is not finite because of the loss scale alone, see `policy/loss_scale.py`.
    """

    loss: float
    gradient_norm: float
    clipped_norm: float
    largest: float | None = None
    overflowed: bool = False


@dataclass(frozen=True)
class GuardState:
    """The values of `step` at which one was skipped, oldest first; in the ledger, which never goes back."""

    retries: tuple[int, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """What to do with a step: `accept` it, `skip` it, or `fail` the attempt; only `accept` has no reason.

    retries: the refusals that counted before this step (the spec's r).
    state: the guard's state after it.
    """

    action: Action
    reason: Reason | None
    retries: int
    state: GuardState


def needs_scan(report: StepReport, settings: GuardSettings, step: int) -> bool:
    """Whether the elements must be scanned before `report` can be judged; `step` = completed steps.

    No element is larger in magnitude than the norm, so a clipped norm within the threshold answers for all of
    them; a loss or a norm that is not finite is refused without a scan.
    """
    if not (math.isfinite(report.loss) and math.isfinite(report.gradient_norm)):
        return False
    on_interval = step % settings.nan_check_interval == 0
    return on_interval and not report.clipped_norm <= settings.inf_post_clip_threshold


def judge(report: StepReport, state: GuardState, settings: GuardSettings, step: int) -> Judgement:
    """Judge one step; `step` = completed steps, which a refused step does not move.

    r counts the refusals of the last `nan_retry_window_steps` steps (all of them if that is 0); those in a
    row share one value of `step`, so they always count. r >= max_nan_retries fails the attempt: with 3, three
    steps are skipped and the fourth refusal fails. A step that only overflowed is skipped and does not count.
    """
    assert report.largest is not None or not needs_scan(report, settings, step), "judged without its scan"
    remembered = _remembered(state, settings, step)
    retries = len(remembered.retries)
    reason = _unhealthy(report, settings)
    if reason is None:
        return Judgement("accept", None, retries, remembered)
    if report.overflowed:
        return Judgement("skip", reason, retries, remembered)
    if retries >= settings.max_nan_retries:
        return Judgement("fail", reason, retries, remembered)
    return Judgement("skip", reason, retries, GuardState((*remembered.retries, step)))


def warnings(settings: GuardSettings, grad_clip_max_norm: float | None) -> tuple[str, ...]:
    """What a person should know about these settings before the run starts; nothing here is an error."""
    if grad_clip_max_norm is None or settings.inf_post_clip_threshold < grad_clip_max_norm:
        return ()
    return (
        f"guard.inf_post_clip_threshold ({settings.inf_post_clip_threshold:g}) is not below"
        f" training.grad_clip_max_norm ({grad_clip_max_norm:g}): no element of a clipped gradient exceeds"
        " its norm, so this test only fires on non-finite values; set it below the norm to limit elements",
    )


def _unhealthy(report: StepReport, settings: GuardSettings) -> Reason | None:
    # Health is stated positively: NaN fails every comparison, so `largest > threshold` would let it pass.
    if not math.isfinite(report.loss):
        return "non_finite_loss"
    if not math.isfinite(report.gradient_norm):
        return "non_finite_norm"
    if report.largest is not None and not report.largest <= settings.inf_post_clip_threshold:
        return "post_clip"
    return None


def _remembered(state: GuardState, settings: GuardSettings, step: int) -> GuardState:
    # What is forgotten leaves the state, and no skip follows max_nan_retries remembered ones: it is bounded.
    if not state.retries or settings.nan_retry_window_steps == 0:
        return state
    kept = tuple(at for at in state.retries if step - at < settings.nan_retry_window_steps)
    return state if kept == state.retries else GuardState(kept)
