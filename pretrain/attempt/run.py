"""run_pretraining_attempt, new or resumed: config, namespace, state, loop, manifest; every end is on record."""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

from pretrain.attempt.ending import publish, record_outcome, record_stall, record_unopened
from pretrain.attempt.memory import memory_explained
from pretrain.attempt.memory_snapshot import MemorySnapshot
from pretrain.attempt.migration import Keys, jump
from pretrain.attempt.observing import Asked, observed
from pretrain.attempt.origin import Origin
from pretrain.attempt.prepare import Prepared, csv_columns, utilization
from pretrain.attempt.result import Answer, AttemptResult
from pretrain.attempt.show import beginning
from pretrain.attempt.standstill import standstill
from pretrain.attempt.trackers import open_feeds
from pretrain.config import to_yaml, value_text
from pretrain.errors import PretrainError, StorageError
from pretrain.evidence import metrics, namespace, rows
from pretrain.evidence.manifest_record import VERDICT
from pretrain.evidence.namespace import Parent
from pretrain.evidence.writer import AttemptWriter
from pretrain.faults import Faults
from pretrain.lock import Lock
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


def run_attempt(
    prepared: Prepared,
    run_dir: Path,
    lock: Lock,
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
        writer = AttemptWriter(folder, number, prepared.identity, cursor, lock)
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
