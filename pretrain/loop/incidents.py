"""Every incident leaves a file: what fired, where the data is from, what the layers and moments show, and the cause."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pretrain.batch import Batch, StepBatch
from pretrain.build import build_optimizer, peak_learning_rate
from pretrain.errors import IntegrityError
from pretrain.evidence import checkpoint, incident, rows
from pretrain.evidence.incident import short_name_of
from pretrain.gradients import block_norms
from pretrain.loop.parts import LoopParts, show
from pretrain.machine import random_state
from pretrain.models import blocks
from pretrain.optimizers import moment_ratio
from pretrain.policy.alarms import Change
from pretrain.policy.diagnosis import Diagnosis, diagnose
from pretrain.policy.guard import GuardSettings, Judgement, StepReport
from pretrain.policy.incident import IncidentNumbers, loss_scales, series
from pretrain.policy.schedule import phase, warmup_steps
from pretrain.policy.spikes import Spike
from pretrain.replay import Conditions, Experiments, Sight, Tensors, Twin, run_experiments
from pretrain.telemetry.sink import Note

Trigger = tuple[str, float, float]
# What a checkpoint refuses.
NOT_FINITE: Trigger = ("non_finite_state", math.nan, math.inf)


@dataclass(frozen=True)
class Moment:
    """The step at which it happened, its gradients still in place, clipped by `clip_ratio`.

    update_norm: over the learning rate, None where the step was not taken or not measured.
    """

    batch: StepBatch
    index: int
    loss: float
    gradient_norm: float
    clip_ratio: float
    learning_rate: float
    scale: float
    update_norm: float | None = None


def trigger_of(spike: Spike, *_: Spike) -> Trigger:
    """Return the name, value and threshold of the strongest spike, which comes first."""
    return spike.signal, spike.value, spike.threshold


def trigger_of_refusal(judgement: Judgement, report: StepReport, settings: GuardSettings) -> Trigger:
    """Return what the guard refused; what must be finite has no threshold but infinity."""
    match judgement.reason:
        case "post_clip" if report.largest is not None:
            return "post_clip", report.largest, settings.inf_post_clip_threshold
        case "non_finite_loss":
            return "non_finite_loss", report.loss, math.inf
        case _:
            return "non_finite_norm", report.gradient_norm, math.inf


def record_incident(parts: LoopParts, moment: Moment, trigger: Trigger, action: str) -> Diagnosis:
    """Count an incident, find its cause and publish its file; nothing of the run changes but that count."""
    state = parts.state
    state.ledger.incidents += 1
    generators = random_state.capture(state.device)
    try:
        with parts.spent.during("incidents"):
            numbers = _numbers(parts, moment, trigger)
    finally:
        random_state.restore(generators, state.device)
    diagnosis = diagnose(numbers)
    parts.writer.incident(
        state.ledger.incidents,
        incident.encode(
            number=state.ledger.incidents,
            batch=moment.index,
            numbers=numbers,
            samples=state.loader.identify(moment.batch) if numbers.sample_losses else (),
            blocks=[name for name, _ in blocks(state.model)],
            history=list(parts.history),
            phase=phase(parts.config.scheduler.settings, parts.schedule, state.step, peak_learning_rate(parts.config)),
            action=action,
            diagnosis=diagnosis,
        ),
    )
    return diagnosis


def record_alarms(parts: LoopParts, changes: Sequence[Change], batch: int, incident: int | None) -> None:
    """Put on record which alarms the step that was taken raises or clears; `incident` tells of those it raises."""
    for change in changes:
        one, is_raised = change.seen, change.state == "raised"
        parts.writer.row(
            rows.alarm(
                step=parts.state.step,
                batch=batch,
                name=one.name,
                subject=one.subject,
                state=change.state,
                value=one.value,
                threshold=one.threshold,
                incident=incident if is_raised else None,
            )
        )
        side = "over" if one.value > one.threshold else "not over" if one.name.endswith("_spike") else "under"
        subject = "" if one.subject is None else f" of {one.subject}"
        told = f", {short_name_of(incident)}" if is_raised and incident is not None else ""
        text = (
            f"{one.name}{subject} {change.state} at step {parts.state.step}: {one.value:.4g} is {side} "
            f"{one.threshold:.4g}{told}"
        )
        show(parts, Note(kind="warning" if is_raised else "cleared", text=text))
        parts.writer.event("alarm_shown", parts.state.step, text=text)


def _numbers(parts: LoopParts, moment: Moment, trigger: Trigger) -> IncidentNumbers:
    config, state = parts.config, parts.state
    name, value, threshold = trigger
    sight, found = _experiments(parts, moment)
    update = moment.update_norm
    if update is None and found.again is not None:
        update = found.again.update_norm
    losses, norms, updates = series(parts.history)
    return IncidentNumbers(
        trigger=name,
        value=float(value),
        threshold=float(threshold),
        step=state.step,
        warmup_steps=warmup_steps(config.scheduler.settings),
        learning_rate=moment.learning_rate,
        peak_learning_rate=peak_learning_rate(config),
        loss=moment.loss,
        gradient_norm=moment.gradient_norm,
        update_norm=update,
        sample_losses=sight.sample_losses,
        uniform_loss=parts.task.guessing_loss,
        block_gradient_norms=tuple(norm / moment.clip_ratio for norm in block_norms(blocks(state.model)).values()),
        block_activations=sight.activations,
        moment_ratio=moment_ratio(state.optimizer),
        clip_max_norm=config.training.grad_clip_max_norm,
        precision=config.training.precision,
        loss_scales=() if state.scaler is None else loss_scales(state.scaler.scale, parts.history),
        bad_input_share=_bad_share(moment.batch.micro_batches),
        same_batch_from_safe=found.same_batch_from_safe,
        other_batch=found.other_batch,
        fresh_moments=found.fresh_moments,
        in_float32=found.in_float32,
        losses=losses,
        gradient_norms=norms,
        update_norms=updates,
    )


def _experiments(parts: LoopParts, moment: Moment) -> tuple[Sight, Experiments]:
    """Return what the batch shows and what its step gives again; nothing where the device has no room for a copy."""
    config, state = parts.config, parts.state
    conditions = Conditions(
        task=parts.task,
        device=state.device,
        precision=config.training.precision,
        rate=moment.learning_rate,
        max_norm=config.training.grad_clip_max_norm,
        scale=moment.scale,
    )
    try:
        twin = Twin(state.model, lambda model: build_optimizer(config, model), conditions)
        sight = twin.look(moment.batch)
        here = (state.step, state.state_tensors())
        return sight, run_experiments(twin, moment.batch, state.loader.elsewhere(), here, _safe_state(parts))
    except torch.OutOfMemoryError:
        text = "no room on the device for a copy of the model: the incident says nothing of its samples and replays"
        parts.writer.event("warning", state.step, text=text)
        return Sight((), ()), Experiments()


def _safe_state(parts: LoopParts) -> tuple[int, Tensors] | None:
    """Return the newest state that can be gone back to from before this one, with its completed steps."""
    state = parts.state
    earlier = [target for target in parts.targets if target.step < state.step]
    if not earlier:
        return None
    newest = max(earlier, key=lambda target: target.step)
    if newest.step in parts.memory:
        return newest.step, parts.memory[newest.step].tensors
    room = {name: torch.empty_like(tensor) for name, tensor in state.state_tensors().items()}
    try:
        checkpoint.load_checkpoint(parts.targets[newest], room, state.generators())
    except IntegrityError as error:  # It is not needed to go on; going back to it will say so again.
        parts.writer.event("warning", state.step, text=f"no experiment from the safe state: {error}")
        return None
    return newest.step, room


def _bad_share(batches: Sequence[Batch]) -> float:
    """Return the share of the samples that hold a value that is not finite, or one value throughout."""
    bad = [_is_bad(batch.samples) for batch in batches]
    return float(torch.cat(bad).double().mean())


def _is_bad(samples: torch.Tensor) -> torch.Tensor:
    same = (samples == samples[:, :1]).all(dim=1)
    if not samples.is_complex():
        return same
    return same | ~torch.isfinite(torch.view_as_real(samples)).flatten(1).all(dim=1)
