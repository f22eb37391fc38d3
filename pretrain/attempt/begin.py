"""A new run, or an attempt to go on from: whatever can be refused is refused before there is an attempt."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pretrain import files
from pretrain.attempt.memory import memory_explained
from pretrain.attempt.migration import child_config, refuse_passed_over, refuse_the_same_again
from pretrain.attempt.observing import NOTHING, Asked, Words
from pretrain.attempt.origin import Origin, find_origin
from pretrain.attempt.places import check_readable, refuse_another_folder, refuse_old_run, refuse_unusable
from pretrain.attempt.prepare import prepare, restore_or_pass_over, surroundings
from pretrain.attempt.result import Answer, AttemptResult, unheard
from pretrain.attempt.run import run_attempt
from pretrain.attempt.show import resume_command, validation_of_row
from pretrain.attempt.targets import find_targets
from pretrain.config import RunConfig, RunSettings
from pretrain.errors import ConfigError
from pretrain.evidence import checkpoint, metrics, namespace
from pretrain.evidence.manifest_record import VERDICT
from pretrain.lock import Lock
from pretrain.machine.signals import StopRequest
from pretrain.telemetry.sink import Note, Sink
from pretrain.telemetry.time_spent import TimeSpent


def start_attempt(
    config: RunConfig,
    stop: StopRequest,
    sinks: Sequence[Sink],
    words: Words = NOTHING,
    stalled: Answer = unheard,
) -> AttemptResult:
    """Run attempt 0001 of a new run.

    words: the steps to leave a profile or a memory snapshot of. stalled: given the result where the watchdog ends the
    process, so that nothing is returned.

    Raises ConfigError, DataError or StorageError with nothing written, BusyError when another process writes the run;
    once the attempt exists every expected fault is in its outcome.json and in the result.
    """
    spent = TimeSpent()
    asked = words.read(config.training.max_steps)
    run_dir = Path(config.run.dir)
    refuse_unusable(run_dir)
    refuse_old_run(run_dir)
    with stop.interrupting():
        prepared = prepare(config, config.training.threads, sinks)
    files.make_folder(run_dir, is_durable=False)
    with Lock.acquire(run_dir / namespace.LOCK, str(run_dir)) as lock:
        refuse_old_run(run_dir)
        return run_attempt(prepared, run_dir, lock, 1, None, [], stop, sinks, spent, asked, stalled)


def resume_attempt(
    path: Path,
    overrides: Sequence[str],
    stop: StopRequest,
    sinks: Sequence[Sink],
    words: Words = NOTHING,
    stalled: Answer = unheard,
    *,
    require_bit_exact: bool = False,
    expect_sha256: str | None = None,
    step: int | None = None,
    migrate: bool = False,
    require_latest: bool = False,
) -> AttemptResult:
    """Verify the attempt that `path` means, open a child and go on from its newest checkpoint, or that of `step`.

    The newest is the newest that verifies: one that is torn or damaged is passed over, and told of.
    migrate: the child may have another schedule, and so be another run from there on; a row of its stream says so.
    require_latest: refuse where something newer than that checkpoint lies there and is none, or does not verify.
    A refusal (IntegrityError, ConfigError, BusyError) creates no child and changes nothing of the parent.
    """
    spent = TimeSpent()
    run_dir, _ = namespace.resolve(path)
    with Lock.acquire(run_dir / namespace.LOCK, str(run_dir)) as lock:
        _, number = namespace.resolve(path)  # Another process may have made an attempt until the lock was free.
        damaged: dict[Path, str] = {}
        while True:
            with stop.interrupting():
                origin = find_origin(run_dir, number, expect_sha256, step, damaged)
                if require_latest:
                    refuse_passed_over(origin)
                config, migrated = child_config(origin, overrides, migrate=migrate)
                refuse_another_folder(config.run.dir, origin.config.run.dir, run_dir)
                if config.run.dir != str(run_dir):
                    config = replace(config, run=RunSettings(dir=str(run_dir)))
                    check_readable(config)
                asked = words.read(config.training.max_steps)
                if not migrated:
                    refuse_the_same_again(origin, config)
                    if origin.finished is not None and config.training.max_steps <= origin.finished.step:
                        return _nothing_to_do(run_dir, origin, sinks, asked)
                prepared = prepare(config, config.training.threads or origin.environment["threads"], sinks, origin)
                reasons = surroundings(origin, prepared)
                with memory_explained(config, partial(_while_it_is_read, origin)):
                    fault = restore_or_pass_over(prepared, origin)
            if fault is None or origin.checkpoint is None:
                break
            damaged[origin.checkpoint] = fault
            del prepared  # before there is another one: the memory may hold no more
        with stop.interrupting():
            every, ladder = config.checkpoint.checkpoint_every_n_steps, prepared.built.state.ledger.ladder
            targets, lost = find_targets(run_dir, origin, every, ladder)
            reasons += [reason for reason in lost if reason not in reasons]
            if require_bit_exact and reasons:
                raise ConfigError(f"--require-bit-exact: {'; '.join(reasons)}")
        newest = namespace.newest(run_dir) or number
        _say_what_is_left(origin, sinks)
        if newest != number:
            text = f"attempt {number:04d} is not the newest: this branches off and leaves attempt {newest:04d} as it is"
            for sink in sinks:
                sink.emit(Note(kind="warning", text=text))
        for text in origin.warnings():
            for sink in sinks:
                sink.emit(Note(kind="warning", text=text))
        child = newest + 1
        return run_attempt(
            prepared, run_dir, lock, child, origin, reasons, stop, sinks, spent, asked, stalled, migrated, targets
        )


def _while_it_is_read(origin: Origin) -> str:
    return f"{origin.checkpoint or origin.folder}, while it is read"


def _say_what_is_left(origin: Origin, sinks: Sequence[Sink]) -> None:
    """Tell that newer checkpoints of the attempt are not gone on from: what they led to stays in its folder alone."""
    if origin.left:
        text = (
            f"going on from step {origin.step}: attempt {origin.folder.name} keeps steps up to {origin.left[-1]} for "
            "itself"
        )
        for sink in sinks:
            sink.emit(Note(kind="warning", text=text))


def _nothing_to_do(run_dir: Path, origin: Origin, sinks: Sequence[Sink], asked: Asked) -> AttemptResult:
    assert origin.finished is not None
    assert origin.checkpoint is not None
    assert origin.record is not None
    origin.make_durable()  # Who hears that it is done may rely on it.
    done = origin.finished
    text = f"attempt {origin.number:04d} is done at step {done.step}: nothing to do; training.max_steps=N goes on to N"
    newest = namespace.newest(run_dir) or origin.number
    if newest != origin.number:
        saved_steps = [step for step, _ in checkpoint.list_checkpoints(namespace.attempt_folder(run_dir, newest))]
        at = f"its checkpoint of step {saved_steps[-1]}" if saved_steps else "where it began"
        text += f"; the newest attempt is {newest:04d}: `{resume_command(run_dir)}` goes on from {at}"
    for sink in sinks:
        sink.emit(Note(kind="resumed", text=text))
        for missed in asked.missed():
            sink.emit(Note(kind="warning", text=missed))
    saved = checkpoint.SavedCheckpoint(done.latest.step, done.latest.record_sha256, 0)
    path = namespace.attempt_folder(run_dir, origin.number) / metrics.NAME
    figures = {row["domain"]: validation_of_row(row) for row in metrics.validations(path, done.metrics, done.step)}
    return AttemptResult(VERDICT, 0, origin.number, done.step, origin.manifest_sha256, saved, figures)
