"""The one training loop, top to bottom in the order of time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pretrain.config import RunConfig
from pretrain.errors import DivergedError, RunInterruptedError
from pretrain.evidence import rows
from pretrain.evidence.writer import AttemptWriter
from pretrain.gradients import accumulate, block_norms, clip, clip_ratio, largest_element, read, rescue
from pretrain.machine import random_state
from pretrain.machine.precision import autocast
from pretrain.machine.signals import StopRequest
from pretrain.models import blocks
from pretrain.optimizers import set_learning_rate
from pretrain.policy.cadence import is_due, is_due_or_last, is_on_cadence
from pretrain.policy.guard import StepReport, judge, needs_scan
from pretrain.policy.retention import plan, rank_best
from pretrain.state import RunState
from pretrain.tasks import Task
from pretrain.telemetry.rows import RowMaker
from pretrain.telemetry.sink import Event, Note, Sink, ValidationShown
from pretrain.telemetry.throughput import Throughput
from pretrain.validation import (
    DomainResult,
    Validator,
    baselines_of,
    measures_of,
    ranked_value,
    validation_row,
)


@dataclass
class LoopParts:
    """What the loop works with; `last_durable_step` and `results` are what it leaves behind.

    last_durable_step: the step of the newest checkpoint of this lineage. results: the newest validation, by domain.
    """

    config: RunConfig
    task: Task
    state: RunState
    learning_rate: Callable[[int], float]
    validator: Validator
    writer: AttemptWriter
    rows: RowMaker
    sinks: Sequence[Sink]
    stop: StopRequest
    check_data: Callable[[], None]
    last_durable_step: int
    results: dict[str, DomainResult]


def train(parts: LoopParts) -> None:
    """Train to `training.max_steps`; every exit but the last line leaves a durable checkpoint behind.

    Raises RunInterruptedError after saving for a signal, and DivergedError when the guard's budget is spent.
    """
    config, state, task, writer = parts.config, parts.state, parts.task, parts.writer
    max_norm, max_steps = config.training.grad_clip_max_norm, config.training.max_steps
    parameters = [parameter for parameter in state.model.parameters() if parameter.requires_grad]
    arithmetic = autocast(state.device, config.training.precision)
    clock = Throughput(state.step, max_steps)
    state.model.train()

    while state.step < max_steps:
        batch = state.loader.next_step()
        clock.lap("data")
        generators = random_state.capture(state.device)
        loss_tensor, supervised = accumulate(state.model, task, batch, state.device, arithmetic)
        by_block = _block_norms(parts)
        norm_tensor = clip(parameters, max_norm)
        loss, norm = read(loss_tensor, norm_tensor)  # the one host synchronisation of a healthy step
        if norm == float("inf"):
            norm = rescue(parameters, max_norm)
        clock.lap("compute")

        ratio = clip_ratio(norm, max_norm)
        report = StepReport(loss, norm, norm * ratio)
        if needs_scan(report, config.guard, state.step):
            report = StepReport(loss, norm, norm * ratio, largest_element(parameters))
        judgement = judge(report, state.ledger.guard, config.guard, state.step)
        state.ledger.guard = judgement.state
        batch_index, rate = state.batch, parts.learning_rate(state.step)
        state.batch += 1

        if judgement.action == "accept":
            state.optimizer.step()
            state.step += 1
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
                )
            )
            finish_step(parts)
        else:
            random_state.restore(generators, state.device)
            state.model.zero_grad(set_to_none=True)
            state.ledger.incidents += 1
            assert judgement.reason is not None
            writer.row(
                rows.skipped(
                    step=state.step,
                    batch=batch_index,
                    reason=judgement.reason,
                    loss=loss,
                    gradient_norm=norm,
                    largest=report.largest,
                    retries=judgement.retries,
                    incident=state.ledger.incidents,
                )
            )
            show(
                parts,
                Note(kind="skipped", text=f"batch {batch_index} at step {state.step}: {judgement.reason}"),
            )
        clock.lap("evidence")

        step_row = parts.rows.row(
            step=state.step,
            batch=batch_index,
            loss=loss,
            learning_rate=rate,
            gradient_norm=norm,
            clip_ratio=ratio,
            supervised=supervised,
            action=judgement.action,
            timing=clock.finish(state.step, supervised),
            block_gradient_norms=by_block,
        )
        show(parts, step_row)
        if judgement.action == "fail":
            raise DivergedError(
                f"step {state.step + 1} was refused ({judgement.reason}) after {judgement.retries} refusals and "
                f"guard.max_nan_retries is {config.guard.max_nan_retries}: the run does not recover by skipping data"
            )
        if parts.stop.name is not None:
            stop_here(parts)

    if state.step not in writer.saved:
        save(parts)


def finish_step(parts: LoopParts) -> None:
    """Do what is due after a completed step: validation, then the checkpoint that binds its rows, then pruning."""
    config, state = parts.config, parts.state
    cadence = config.checkpoint.checkpoint_every_n_steps
    if is_due_or_last(state.step, config.validation.validate_every_n_steps, config.training.max_steps):
        results = parts.validator.run(state.model, parts.stop)
        if results is None:
            return  # A signal came first: the child of this attempt begins with this validation.
        _record_validation(parts, results)
    if is_due(state.step, cadence):
        save(parts)


def save(parts: LoopParts) -> None:
    """Save everything of RunState; once it is durable, remove the checkpoints that the retention lets go.

    Raises DataError when the data is no longer what the run is bound to: nothing is saved of what it led to.
    """
    config, state, writer = parts.config, parts.state, parts.writer
    parts.check_data()
    writer.save(state.tensors(), step=state.step, batch=state.batch, scalars=state.scalars())
    parts.last_durable_step = state.step
    writer.event("saved", state.step)
    show(parts, Note(kind="saved", text=f"checkpoint of step {state.step}"))
    every = config.checkpoint.checkpoint_every_n_steps
    regular = [step for step in writer.saved if is_on_cadence(step, every)]
    others = [step for step in writer.saved if not is_on_cadence(step, every)]
    gone = plan(regular, state.ledger.best, config.checkpoint, others).remove
    writer.prune(gone)
    if gone:
        writer.event("pruned", state.step, steps=list(gone))


def stop_here(parts: LoopParts) -> None:
    """Save what is not durable yet and raise RunInterruptedError.

    A step that is durable is not saved again: refused batches after it are refused again when the run goes on.
    """
    assert parts.stop.name is not None
    parts.writer.event("signal", parts.state.step, signal=parts.stop.name)
    if parts.state.step != parts.last_durable_step:
        save(parts)
    raise RunInterruptedError(
        f"stopped by {parts.stop.name} at step {parts.state.step}; a checkpoint is saved", parts.stop.name
    )


def _record_validation(parts: LoopParts, results: dict[str, DomainResult]) -> None:
    config, state = parts.config, parts.state
    parts.results = results
    for domain, result in results.items():
        parts.writer.row(validation_row(state.step, domain, result))
    before = state.ledger.best
    if is_on_cadence(state.step, config.checkpoint.checkpoint_every_n_steps):
        value = ranked_value(results, config.validation.rank_by)
        state.ledger.best = rank_best(before, state.step, value, config.checkpoint.num_best_checkpoints)
    leads = state.ledger.best[:1] != before[:1]
    for domain, result in results.items():
        summary = result.summary
        show(
            parts,
            ValidationShown(
                step=state.step,
                domain=domain,
                measures=measures_of(summary),
                baselines=baselines_of(summary),
                classes={name: scores["nmse"] for name, scores in summary.classes.items()},
                best=leads,
            ),
        )


def _block_norms(parts: LoopParts) -> tuple[float, ...]:
    """Return the gradient norm of each block where the telemetry asks for it; they are measured before clipping."""
    if not parts.rows.wants_blocks(parts.state.step + 1):
        return ()
    return tuple(block_norms(blocks(parts.state.model)).values())


def show(parts: LoopParts, event: Event) -> None:
    """Hand an event to every sink."""
    for sink in parts.sinks:
        sink.emit(event)
