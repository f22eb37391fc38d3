"""The one training loop, top to bottom in the order of time."""

import math
from dataclasses import replace

from pretrain import progress
from pretrain.errors import DivergedError
from pretrain.evidence import rows
from pretrain.evidence.incident import name_of, short_name_of
from pretrain.faults import kept, spoil_batch, spoil_gradients
from pretrain.gradients import accumulate, block_norms, clip, clip_ratio, largest_element, read, rescue
from pretrain.loop.boundary import finish_step, save, stop_here
from pretrain.loop.incidents import (
    NOT_FINITE,
    Moment,
    Trigger,
    record_alarms,
    record_incident,
    trigger_of,
    trigger_of_refusal,
)
from pretrain.loop.monitors import Watch
from pretrain.loop.parts import LoopParts, show
from pretrain.loop.targets import roll_back
from pretrain.loop.thermal import watch_temperature
from pretrain.loop.updates import UpdateNorm
from pretrain.machine import random_state
from pretrain.machine.precision import autocast
from pretrain.models import balance, blocks
from pretrain.optimizers import set_learning_rate
from pretrain.policy.alarms import Change, spike_observations, update_alarms
from pretrain.policy.diagnosis import Diagnosis
from pretrain.policy.guard import Judgement, StepReport, judge, needs_scan
from pretrain.policy.incident import Report
from pretrain.policy.loss_scale import can_fall, on_accepted, on_overflow
from pretrain.policy.recovery import Decision, on_damage, on_healthy, on_spike
from pretrain.policy.spikes import Spike, Values, find_spikes, remember
from pretrain.telemetry.sink import Note
from pretrain.telemetry.throughput import Throughput


def train(parts: LoopParts) -> None:
    """Train to `training.max_steps`; every exit but the last line leaves a durable checkpoint behind.

    Raises RunInterruptedError after saving for a signal, ThermalError when the GPU is too hot, and DivergedError when
    the guard's budget is spent.
    """
    config, state, task, writer = parts.config, parts.state, parts.task, parts.writer
    max_norm, max_steps = config.training.grad_clip_max_norm, config.training.max_steps
    parameters = [parameter for parameter in state.model.parameters() if parameter.requires_grad]
    arithmetic = autocast(state.device, config.training.precision)
    updates, watch = UpdateNorm(parameters), Watch(parts)
    clock = Throughput(state.step, max_steps)
    state.model.train()

    while state.step < max_steps:
        progress.moved()
        with parts.spent.during("observing"):
            parts.trace.at(state.step)
        parts.spent.enter("data")
        faults = parts.faults.due(state.batch, state.ledger.faults_fired)
        if parts.thermometer is not None and watch_temperature(parts, faults):
            arithmetic = autocast(state.device, config.training.precision)
        clock.leave_out(parts.spent.aside)  # in here, and after the row of the step before
        batch = spoil_batch(faults, state.loader.next_step())
        clock.lap("data")
        parts.spent.begin_step()
        generators = random_state.capture(state.device)
        scale = 1.0 if state.scaler is None else state.scaler.scale
        with watch.watching(state.step + 1):
            loss_tensor, supervised = accumulate(state.model, task, batch, state.device, arithmetic, scale)
        loss_tensor = spoil_gradients(faults, loss_tensor, parameters)
        by_block = _block_norms(parts)
        norm_tensor = clip(parameters, max_norm)
        loss, norm = read(loss_tensor, norm_tensor)  # the one host synchronisation of a healthy step
        if norm == float("inf"):
            norm = rescue(parameters, max_norm)
        overflowed = False
        if state.scaler is not None and can_fall(state.scaler) and math.isfinite(loss) and not math.isfinite(norm):
            # Is it the scale? The same batch says so, without one; the gradients are not used either way.
            random_state.restore(generators, state.device)
            accumulate(state.model, task, batch, state.device, arithmetic)
            spoil_gradients(faults, loss_tensor, parameters)
            overflowed = math.isfinite(rescue(parameters, None))
        clock.lap("compute")

        ratio = clip_ratio(norm, max_norm)
        report = StepReport(loss, norm, norm * ratio, overflowed=overflowed)
        if needs_scan(report, config.guard, state.step):
            report = StepReport(loss, norm, norm * ratio, largest_element(parameters))
        judgement = judge(report, state.ledger.guard, config.guard, state.step)
        state.ledger.guard = judgement.state
        batch_index, rate = state.batch, parts.learning_rate(state.step)
        state.batch += 1
        state.ledger.faults_fired += kept(faults)
        values: Values = {"loss": loss, "gradient": norm}
        spikes = find_spikes(values, state.spikes, config.spikes) if judgement.action == "accept" else ()
        decision = (
            Decision("skip", state.ledger.ladder) if overflowed else _decide(parts, judgement, spikes, batch_index)
        )

        moment = Moment(batch, batch_index, loss, norm, ratio, rate, scale)
        update_norm, trigger, diagnosis = None, NOT_FINITE, None
        if decision.action == "accept":
            updates.before(state.step + 1, wanted=watch.wants_updates(state.step + 1))
            state.optimizer.step()
            balance(state.model)
            state.step += 1
            state.scaler = None if state.scaler is None else on_accepted(state.scaler)
            update_norm = updates.after()
            set_learning_rate(state.optimizer, parts.learning_rate(state.step))
            clock.lap("optimizer")
            writer.row(
                rows.step(
                    step=state.step,
                    batch=batch_index,
                    loss=loss,
                    learning_rate=rate,
                    gradient_norm=norm,
                    clip_ratio=ratio,
                    supervised=supervised,
                    update_norm=update_norm,
                )
            )
            taken = Report("step", state.step, batch_index, loss, norm, rate, update_norm)
            moved: Values = {"update": taken.relative_update}
            if moved["update"] is not None:
                spikes += find_spikes(moved, state.spikes, config.spikes)
            changes: tuple[Change, ...] = ()
            if spikes or state.alarms.raised:
                seen = spike_observations({**values, **moved}, spikes, state.spikes, config.spikes, state.alarms)
                changes, state.alarms = update_alarms(seen, state.step, state.alarms)
            state.spikes = remember({**values, **moved}, spikes, state.spikes, config.spikes)
            damage = [spike for spike in spikes if spike.action == "roll_back"]
            if damage:  # Only an update can be: what the other signals forbid has not been taken.
                decision = on_spike(damage[0], state.ledger.ladder, list(parts.targets), batch_index, config.spikes)
            if damage or any(change.state == "raised" for change in changes):
                moment = replace(moment, update_norm=taken.relative_update)
                action = decision.action if damage else "record"
                trigger = trigger_of(*(damage or spikes))
                diagnosis = record_incident(parts, moment, trigger, action)
            record_alarms(parts, changes, batch_index, None if diagnosis is None else state.ledger.incidents)
            watch.record(batch, batch_index, ratio, updates.by_parameter)
            if not damage:
                state.ledger.ladder = on_healthy(state.ledger.ladder, config.spikes)
                try:
                    finish_step(parts)
                except DivergedError:  # The checkpoint refuses what is not finite: the damage is in the state.
                    decision = on_damage(state.ledger.ladder, list(parts.targets), batch_index, config.spikes)
                    trigger = NOT_FINITE
                    diagnosis = record_incident(parts, moment, trigger, decision.action)
        else:
            parts.spent.refuse()
            random_state.restore(generators, state.device)
            taken = Report("overflow" if overflowed else "skipped", state.step, batch_index, loss, norm)
            if state.scaler is not None and overflowed:
                state.scaler = on_overflow(state.scaler)
            else:
                trigger = trigger_of(*spikes) if spikes else trigger_of_refusal(judgement, report, config.guard)
                diagnosis = record_incident(parts, moment, trigger, decision.action)
            state.model.zero_grad(set_to_none=True)
            state.ledger.ladder = decision.state
            reason = judgement.reason or "spike"
            writer.row(
                rows.skipped(
                    step=state.step,
                    batch=batch_index,
                    reason=reason,
                    loss=loss,
                    gradient_norm=norm,
                    largest=report.largest,
                    retries=judgement.retries,
                    incident=None if overflowed else state.ledger.incidents,
                )
            )
            text = (
                f"the loss scale of {scale:g} is halved"
                if diagnosis is None
                else f"cause {diagnosis.cause}, {short_name_of(state.ledger.incidents)}"
            )
            show(parts, Note(kind="skipped", text=f"batch {batch_index} at step {state.step}: {reason}, {text}"))
        parts.history.append(taken)
        step_shown = state.step  # A step that is undone keeps its number in its row.
        if decision.action == "roll_back":
            roll_back(parts, decision)
        clock.leave_out(parts.spent.aside)  # a wait for space on the disk
        clock.lap("evidence")

        step_row = parts.rows.row(
            step=step_shown,
            batch=batch_index,
            loss=loss,
            learning_rate=rate,
            gradient_norm=norm,
            clip_ratio=ratio,
            update_norm=update_norm,
            supervised=supervised,
            loss_scale=None if state.scaler is None else scale,
            action="fail" if decision.action == "stop" else decision.action,
            timing=clock.finish(state.step, supervised),
            block_gradient_norms=by_block,
        )
        show(parts, step_row)
        if decision.action == "stop":
            raise DivergedError(_why_it_stops(parts, judgement, trigger, diagnosis))
        if parts.stop.name is not None:
            stop_here(parts)

    if state.step not in writer.saved:
        save(parts)


def _block_norms(parts: LoopParts) -> tuple[float, ...]:
    """Return the gradient norm of each block where the telemetry asks for it; they are measured before clipping."""
    if not parts.rows.wants_blocks(parts.state.step + 1):
        return ()
    return tuple(block_norms(blocks(parts.state.model)).values())


def _decide(parts: LoopParts, judgement: Judgement, spikes: tuple[Spike, ...], batch: int) -> Decision:
    """Put together what the guard and the spikes say, and what the ladder makes of it."""
    ladder, settings = parts.state.ledger.ladder, parts.config.spikes
    if judgement.action == "accept":
        return (
            on_spike(spikes[0], ladder, list(parts.targets), batch, settings) if spikes else Decision("accept", ladder)
        )
    if not parts.state.is_finite():  # The refusal is not of this batch: the weights or the moments are at fault.
        return on_damage(ladder, list(parts.targets), batch, settings)
    return Decision("stop" if judgement.action == "fail" else "skip", ladder)


def _why_it_stops(parts: LoopParts, judgement: Judgement, trigger: Trigger, diagnosis: Diagnosis | None) -> str:
    state, settings = parts.state, parts.config
    name, value, threshold = trigger
    bound = f"and {threshold:.4g} is what it may be" if math.isfinite(threshold) else "and it must be finite"
    what = f"batch {state.batch - 1} at step {state.step}: {name} is {value:.4g}, {bound}"
    if judgement.action == "fail":
        why = (
            f"that is a refusal too many after {judgement.retries}, since guard.max_nan_retries is "
            f"{settings.guard.max_nan_retries}: the run does not recover by skipping data"
        )
    elif not parts.targets:
        why = "there is no checkpoint to go back to"
    else:
        why = (
            f"spikes.max_rollbacks is {settings.spikes.max_rollbacks}, and {state.ledger.ladder.rollbacks} were made: "
            "the run does not recover by going back"
        )
    found = f"; {name_of(state.ledger.incidents)} says {diagnosis.cause}: {diagnosis.remedy}" if diagnosis else ""
    return f"{what}; {why}{found}"
