"""What is due between two steps: validation, the checkpoint that binds it, pruning, and stopping for a signal."""

from pretrain.errors import RunInterruptedError
from pretrain.loop.monitors import watch_regression
from pretrain.loop.parts import LoopParts, show, warn
from pretrain.loop.targets import forget_targets, keep_target
from pretrain.machine.disk import free_bytes
from pretrain.machine.memory import in_units
from pretrain.policy.cadence import is_due_or_last, is_on_cadence
from pretrain.policy.retention import plan, rank_best
from pretrain.telemetry.sink import Note, ValidationShown
from pretrain.validation import DomainResult, baselines_of, measures_of, ranked_value, validation_row


def finish_step(parts: LoopParts) -> None:
    """Do what is due after a completed step: validation, then the checkpoint that binds its rows, then pruning.

    Raises DivergedError, and saves nothing, when a number of the state is not finite.
    """
    config, state = parts.config, parts.state
    cadence = config.checkpoint.checkpoint_every_n_steps
    if is_due_or_last(state.step, config.validation.validate_every_n_steps, config.training.max_steps):
        with parts.spent.during("validation"):
            results = parts.validator.run(state.model, parts.stop)
        if results is None:
            return  # A signal came first: the child of this attempt begins with this validation.
        _record_validation(parts, results)
    if is_due_or_last(state.step, cadence, config.training.max_steps):
        save(parts)


def save(parts: LoopParts) -> None:
    """Save everything of RunState; once it is durable, remove the checkpoints that the retention lets go.

    Raises DataError when the data is no longer what the run is bound to: nothing is saved of what it led to; and
    DivergedError when a number of the state is not finite.
    """
    config, state, writer = parts.config, parts.state, parts.writer
    parts.spent.enter("saving")  # until the next step: no second of this one comes after its mark
    parts.check_data()
    _watch_disk(parts)
    writer.save(state.tensors(), step=state.step, batch=state.batch, scalars=state.scalars())
    parts.last_durable_step = state.step
    # Before the copies in memory, which may find none: the step survives either way.
    parts.spent.mark(state.step)
    writer.event("saved", state.step, seconds=parts.spent.seconds())
    if is_on_cadence(state.step, config.checkpoint.checkpoint_every_n_steps):
        keep_target(parts)
    show(parts, Note(kind="saved", text=f"checkpoint of step {state.step}"))
    every = config.checkpoint.checkpoint_every_n_steps
    regular = [step for step in writer.saved if is_on_cadence(step, every)]
    others = [step for step in writer.saved if not is_on_cadence(step, every)]
    gone = plan(regular, state.ledger.best, config.checkpoint, others).remove
    writer.prune(gone)
    forget_targets(parts, gone)
    if gone:
        writer.event("pruned", state.step, steps=list(gone))


def save_what_is_not_durable(parts: LoopParts) -> None:
    """Save before the attempt ends in mid run.

    A step that is durable is not saved again: refused batches after it are refused again when the run goes on. Nor is
    a state that is not finite, which the next step would have gone back from: the run comes to it again.
    """
    if parts.state.step != parts.last_durable_step and parts.state.is_finite():
        save(parts)


def stop_here(parts: LoopParts) -> None:
    """Save what is not durable yet and raise RunInterruptedError."""
    assert parts.stop.name is not None
    step = parts.state.step
    parts.writer.event("signal", step, signal=parts.stop.name)
    save_what_is_not_durable(parts)
    raise RunInterruptedError(
        f"stopped by {parts.stop.name} at step {step}; the checkpoint of step {parts.last_durable_step} is saved",
        parts.stop.name,
    )


def _watch_disk(parts: LoopParts) -> None:
    """Warn once where the file system has no room for the next checkpoint and one more, which stay side by side."""
    writer = parts.writer
    free = free_bytes(writer.folder)
    if parts.disk_is_low or free is None:
        return
    size = writer.size_of(parts.state.tensors())
    if free >= 2 * size:
        return
    parts.disk_is_low = True
    text = (
        f"{writer.folder}: {in_units(free)} are free on its file system, less than two checkpoints of {in_units(size)}:"
        " free space, or the run ends with exit code 6 when a checkpoint no longer fits"
    )
    warn(parts, text)


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
    watch_regression(parts, {domain: result.summary.loss for domain, result in results.items()})
