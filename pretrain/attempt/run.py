"""run_pretraining_attempt, new or resumed: config, namespace, state, loop, manifest; every end is on record."""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from pretrain import files
from pretrain.attempt.ending import publish, record_outcome, record_stall, record_unopened
from pretrain.attempt.memory import memory_explained
from pretrain.attempt.memory_snapshot import MemorySnapshot
from pretrain.attempt.migration import Keys, child_config, jump, refuse_passed_over, refuse_the_same_again
from pretrain.attempt.observing import NOTHING, Asked, Words, observed
from pretrain.attempt.origin import Origin, find_origin, find_targets
from pretrain.attempt.places import check_readable, refuse_another_folder, refuse_old_run, refuse_unusable
from pretrain.attempt.prepare import (
    Prepared,
    csv_columns,
    prepare,
    restore_or_pass_over,
    surroundings,
    utilization,
)
from pretrain.attempt.result import Answer, AttemptResult, unheard
from pretrain.attempt.show import beginning, resume_command, validation_of_row
from pretrain.attempt.standstill import standstill
from pretrain.attempt.trackers import open_feeds
from pretrain.config import RunConfig, RunSettings, to_yaml, value_text
from pretrain.errors import ConfigError, PretrainError, StorageError
from pretrain.evidence import checkpoint, metrics, namespace, rows
from pretrain.evidence.manifest_record import VERDICT
from pretrain.evidence.namespace import Parent
from pretrain.evidence.writer import AttemptWriter
from pretrain.faults import Faults
from pretrain.loop import DiskWait, LoopParts, finish_step, limit_targets, save, show, stop_here, train, warn
from pretrain.machine.signals import StopRequest
from pretrain.machine.watchdog import Watchdog
from pretrain.optimizers import set_learning_rate
from pretrain.policy.cadence import is_due_or_last
from pretrain.policy.incident import REPORTS
from pretrain.policy.recovery import Target
from pretrain.telemetry.csv_log import CsvLog
from pretrain.telemetry.csv_sink import CsvSink
from pretrain.telemetry.rows import RowMaker
from pretrain.telemetry.sink import Note, Sink
from pretrain.telemetry.time_spent import TimeSpent
from pretrain.telemetry.trace import StepTrace
from pretrain.validation import Validator


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
    with files.Lock.acquire(run_dir / namespace.LOCK, str(run_dir)):
        refuse_old_run(run_dir)
        return _run_attempt(prepared, run_dir, 1, None, [], stop, sinks, spent, asked, stalled)


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
    with files.Lock.acquire(run_dir / namespace.LOCK, str(run_dir)):
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
        return _run_attempt(
            prepared, run_dir, child, origin, reasons, stop, sinks, spent, asked, stalled, migrated, targets
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


def _run_attempt(
    prepared: Prepared,
    run_dir: Path,
    number: int,
    origin: Origin | None,
    reasons: list[str],
    stop: StopRequest,
    sinks: Sequence[Sink],
    spent: TimeSpent,
    asked: Asked,
    stalled: Answer,
    migrated: Keys = MappingProxyType({}),
    targets: Mapping[Target, Path] = MappingProxyType({}),
) -> AttemptResult:
    """Create the attempt's folder, restore the state, run the loop, and publish a manifest or an outcome."""
    parent = origin.parent if origin is not None else None
    cursor = origin.record.metrics if origin is not None and origin.record is not None else metrics.EMPTY
    with memory_explained(prepared.config, lambda: "before the attempt is there"):
        folder = _create(prepared, run_dir, number, origin, parent, reasons)
    durable_step = origin.step if origin is not None and origin.record is not None else -1
    try:
        writer = AttemptWriter(folder, number, prepared.identity, cursor)
    except StorageError as error:  # No stream is open yet, so that the outcome alone says what became of it.
        return record_unopened(folder, number, run_dir, prepared.built.state, error, sinks)
    parts = _parts(prepared, writer, durable_step, stop, sinks, reasons, spent)
    parts.trace = StepTrace(
        folder, asked.profile, lambda text: show(parts, Note(kind="saved", text=text)), partial(warn, parts)
    )
    result: AttemptResult | None = None
    watchdog = Watchdog(
        prepared.config.training.watchdog_timeout_seconds, partial(record_stall, parts, run_dir, sinks, stalled)
    )
    try:
        watchdog.start()
        with (
            contextlib.closing(CsvSink(partial(_open_csv, prepared, folder), partial(warn, parts))) as csv,
            contextlib.closing(parts.state.loader),
            observed(parts, parts.trace),
            contextlib.ExitStack() as feeds,
        ):
            snapshot = MemorySnapshot(parts, asked.memory_snapshot)
            parts.sinks = [csv, *sinks, feeds.enter_context(contextlib.closing(snapshot))]
            # Closed first, while what they have to tell can still be written.
            for feed in open_feeds(parts, prepared, run_dir, origin):
                feeds.enter_context(observed(parts, feed))
                parts.sinks = [*parts.sinks, feed]
            with memory_explained(parts.config, lambda: f"batch {parts.state.batch} at step {parts.state.step}"):
                _work(parts, prepared, origin, reasons, migrated, targets)
        parts.sinks = sinks
        stop.raise_if_asked()
        writer.event("end", parts.state.step, verdict=VERDICT, seconds=parts.spent.seconds())
        writer.close()
        stop.raise_if_asked()
        with memory_explained(
            parts.config, lambda: f"step {parts.state.step} is saved, and the manifest is to be made"
        ):
            result = publish(parts, prepared, run_dir, parent, watchdog, stalled)
    except PretrainError as error:
        parts.sinks = sinks
        result = record_outcome(parts, run_dir, error)
    finally:
        watchdog.close()
        if prepared.sensors is not None:
            prepared.sensors.close()
        if result is None:
            # Nobody expected this: it is put on record, and the traceback goes up to the command line.
            kind, fault, _ = sys.exc_info()
            parts.sinks = sinks
            lines = f"{kind.__name__ if kind else 'unknown'}: {fault}".split("\n")
            unexpected = StorageError if isinstance(fault, OSError) else PretrainError
            record_outcome(parts, run_dir, unexpected(*lines))
    return result


def _create(
    prepared: Prepared,
    run_dir: Path,
    number: int,
    origin: Origin | None,
    parent: Parent | None,
    reasons: list[str],
) -> Path:
    described = {**prepared.environment}
    config = to_yaml(prepared.config).encode()
    described["determinism"] = {**described["determinism"], "reasons": reasons}
    record = namespace.bound(
        namespace.environment_record(
            attempt=number,
            parent=parent,
            data=prepared.data.records,
            tokenizer_sha256=None,
            init=prepared.start.record,
            **described,
        ),
        config,
    )
    if origin is None or origin.record is None:
        return namespace.create(run_dir, number, config, record)
    origin.make_durable()
    prefix = metrics.verify_prefix(origin.folder / metrics.NAME, origin.record.metrics)
    return namespace.create(run_dir, number, config, record, prefix, origin.incidents)


def _parts(
    prepared: Prepared,
    writer: AttemptWriter,
    durable_step: int,
    stop: StopRequest,
    sinks: Sequence[Sink],
    reasons: list[str],
    spent: TimeSpent,
) -> LoopParts:
    config, built, device = prepared.config, prepared.built, prepared.device
    parts = LoopParts(
        config=config,
        task=built.task,
        state=built.state,
        schedule=built.learning_rate,
        validator=Validator(
            built.task,
            prepared.data.train,
            prepared.data.validation,
            config.validation.batch_size or config.training.batch_size,
            config.training.precision,
            device,
        ),
        writer=writer,
        rows=RowMaker(writer.number, config.telemetry, prepared.sensors, device, utilization(config, built, device)),
        sinks=sinks,
        stop=stop,
        faults=Faults(config.faults, writer.number),
        check_data=prepared.data.check_unchanged,
        last_durable_step=durable_step,
        domains=prepared.data.domains,
        thermometer=prepared.thermometer,
        reasons=[*reasons],
        spent=spent,
    )
    writer.patience = DiskWait(parts)
    return parts


def _open_csv(prepared: Prepared, folder: Path) -> CsvLog:
    settings, names = prepared.config.telemetry, csv_columns(prepared.config, prepared.built)
    return CsvLog(folder / settings.csv_log_path, names, rotate=settings.csv_rotate_on_schema_change)


def _work(
    parts: LoopParts,
    prepared: Prepared,
    origin: Origin | None,
    reasons: list[str],
    migrated: Keys,
    targets: Mapping[Target, Path],
) -> None:
    """Bring the state to where the run stands, do what a signal had cut short, and train to the end."""
    state, writer = parts.state, parts.writer
    run_dir, every = Path(prepared.config.run.dir), prepared.config.checkpoint.checkpoint_every_n_steps
    set_learning_rate(state.optimizer, parts.learning_rate(state.step))
    if origin is not None:
        limit_targets(parts, targets)
        parts.history.extend(metrics.history(writer.folder / metrics.NAME, writer.cursor, REPORTS))
    writer.event("start", state.step)
    writer.event("preflight", state.step, **prepared.preflight.fields())
    begin = beginning(prepared.config, prepared.data, parts, origin, prepared.start)
    show(parts, begin)
    for text in origin.warnings() if origin is not None else ():  # They were shown when they were found.
        writer.event("warning", state.step, text=text)
    stuck = standstill(run_dir, writer.number, state.step, every)
    inexact = [f"not bit for bit the run it goes on from: {reason}" for reason in reasons]
    for text in [*stuck, *inexact, *prepared.warnings()]:
        warn(parts, text)
    if migrated:
        _record_migration(parts, origin, migrated)
    if state.step == 0 and writer.cursor == metrics.EMPTY:
        parameters = sum(parameter.numel() for parameter in state.model.parameters())
        writer.row(rows.begin(task=prepared.config.task.name, parameters=parameters))
        save(parts)
    elif _validation_is_missing(parts):
        finish_step(parts)
    if parts.stop.name is not None:
        stop_here(parts)  # Not one step more: the validation that the signal has cut short again belongs before it.
    train(parts)


def _record_migration(parts: LoopParts, origin: Origin | None, keys: Keys) -> None:
    """Put on record what makes this another run from here on, before anything that follows from it."""
    assert origin is not None
    step = parts.state.step
    parts.writer.row(rows.migrated(step=step, keys=keys))
    changes = ", ".join(f"{key} {value_text(old)} -> {value_text(new)}" for key, (old, new) in keys.items())
    show(parts, Note(kind="resumed", text=f"another run from step {step} on: {changes}"))
    text = jump(origin, parts.config)
    if text is not None:
        show(parts, Note(kind="warning", text=text))
        parts.writer.event("warning", step, text=text)


def _validation_is_missing(parts: LoopParts) -> bool:
    """Whether the checkpoint was saved for a signal that came before the validation due at its step was recorded."""
    step, config = parts.state.step, parts.config
    if not is_due_or_last(step, config.validation.validate_every_n_steps, config.training.max_steps):
        return False
    # Batches refused since then, a validation loss that became worse, and a migration leave rows behind it.
    last = metrics.last_row(
        parts.writer.folder / metrics.NAME, parts.writer.cursor, besides=("skipped", "alarm", "migrated")
    )
    return last is not None and last["event"] != "validation"
