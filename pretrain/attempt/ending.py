"""How an attempt ends: a manifest when it is done, an outcome when it ends otherwise by its own hand."""

import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pretrain.attempt.ancestry import find_record
from pretrain.attempt.goodput import time_lines
from pretrain.attempt.prepare import Prepared
from pretrain.attempt.result import Answer, AttemptResult
from pretrain.attempt.show import resume_command, validation_answer
from pretrain.errors import (
    DivergedError,
    IntegrityError,
    PretrainError,
    RunInterruptedError,
    StalledError,
    StorageError,
)
from pretrain.evidence import incident, manifest, outcome
from pretrain.evidence.checkpoint import SavedCheckpoint
from pretrain.evidence.manifest_record import VERDICT, Best, Latest
from pretrain.evidence.namespace import Parent
from pretrain.evidence.writer import AttemptWriter, at_once
from pretrain.loop import LoopParts, show
from pretrain.machine.watchdog import Watchdog
from pretrain.state import RunState
from pretrain.telemetry.sink import End, Note, Sink


def publish(
    parts: LoopParts,
    prepared: Prepared,
    run_dir: Path,
    parent: Parent | None,
    watchdog: Watchdog,
    stalled: Answer,
) -> AttemptResult:
    """Make the manifest, the last file of an attempt that is done. stalled: as of `record_stall`."""
    state, writer = parts.state, parts.writer
    writer.check_place()
    found = []
    for step, value in state.ledger.best:
        try:
            found.append((step, value, find_record(run_dir, writer.number, step)))
        except IntegrityError as error:  # An ancestor's, damaged since: the run is done all the same, without it.
            show(parts, Note(kind="warning", text=f"step {step} is not among the best of the manifest: {error}"))
    newest = writer.saved[state.step]
    record = manifest.build_manifest(
        writer.folder,
        number=writer.number,
        step=state.step,
        batch=state.batch,
        identity_sha256=prepared.identity,
        bit_exact=not parts.reasons,
        reasons=parts.reasons,
        validation="held out" if prepared.data.held_out else "training data",
        parent=parent,
        latest=Latest(newest.step, newest.record_sha256),
        best=[Best(step, value, sha256) for step, value, sha256 in found if sha256 is not None],
        metrics_cursor=writer.cursor,
        faults=prepared.config.faults.inject,
    )
    parts.check_data()
    parts.stop.raise_if_asked()  # Hashing may have taken long; from here on the attempt is done.
    # A manifest that is being made public, and an outcome beside it, must not be: a rename in flight may land yet.
    watchdog.say_instead(partial(tell_stall, parts, run_dir, parts.sinks, stalled))
    writer.check_place()
    sha256 = writer.patience(lambda: manifest.publish_manifest(writer.folder, record))
    times = time_lines(run_dir, writer.number, parts.spent.seconds())
    show(
        parts,
        End(
            attempt=str(writer.folder),
            verdict=VERDICT,
            step=state.step,
            times=times,
            run=str(run_dir),
            incidents=state.ledger.incidents,
            incident=_last_incident(parts),
        ),
    )
    return AttemptResult(VERDICT, 0, writer.number, state.step, sha256, newest, validation_answer(parts.results))


def record_outcome(parts: LoopParts, run_dir: Path, error: PretrainError) -> AttemptResult:
    """Put the end of an attempt without a manifest on record, as far as the disk lets us, and show it."""
    state, writer = parts.state, parts.writer
    parts.spent.lose_the_rest()
    newest = _newest(writer)
    record = _outcome(state, run_dir, error, newest)
    writer.patience = at_once  # There is nothing more to lose that a resume would not have back.
    told: list[Callable[[], None]] = []
    # Where the manifest is there, and only the fsync of its name failed, the attempt is done: resume makes it sure.
    if not os.path.lexists(writer.folder / manifest.NAME):
        told.append(partial(writer.publish_outcome, record))
    if not writer.closed:  # a signal or a full disk may come while the manifest is made
        end = partial(writer.event, "end", state.step, verdict=error.verdict, seconds=parts.spent.seconds())
        told = [end, writer.close, *told]
    lost = []
    for tell in told:  # each for itself: what has no room in one file may have it in another
        try:
            tell()
        except StorageError as fault:
            lost.append(str(fault))
    if lost:
        text = f"the end of this attempt could not be put on record, which a resume does without: {lost[-1]}"
        show(parts, Note(kind="warning", text=text))
    show(
        parts,
        End(
            attempt=str(writer.folder),
            verdict=error.verdict,
            step=state.step,
            reason=str(error),
            advice=_advice(error),
            resumable=error.resumable,
            times=time_lines(run_dir, writer.number, parts.spent.seconds()),
            run=str(run_dir),
            incidents=state.ledger.incidents,
            incident=_last_incident(parts),
        ),
    )
    return AttemptResult(
        error.verdict,
        error.exit_code,
        writer.number,
        state.step,
        None,
        newest,
        validation_answer(parts.results),
    )


def record_stall(
    parts: LoopParts,
    run_dir: Path,
    sinks: Sequence[Sink],
    answer: Answer,
    error: StalledError,
    stacks: str,
) -> None:
    """Put on record what hangs, from a thread beside it: nothing of what the main thread may hold is closed or awaited.

    answer: is given the result that the main thread cannot return.
    """
    state, writer = parts.state, parts.writer
    with contextlib.suppress(StorageError):  # The disk may be what it hangs on; stderr has been told.
        writer.publish_outcome(_outcome(state, run_dir, error, _newest(writer)))
        if not writer.closed:
            writer.event("warning", state.step, text=stacks)
            # Without it the attempt would count as killed; the time it hung is undone, as all after a checkpoint.
            writer.event("end", state.step, verdict=error.verdict, seconds=parts.spent.seconds())
    tell_stall(parts, run_dir, sinks, answer, error)


def tell_stall(
    parts: LoopParts, run_dir: Path, sinks: Sequence[Sink], answer: Answer, error: StalledError, stacks: str = ""
) -> None:
    """Tell of it on stdout and the screen, and leave nothing on the disk; stderr has the stacks already."""
    state, writer = parts.state, parts.writer
    end = End(
        attempt=str(writer.folder),
        verdict=error.verdict,
        step=state.step,
        reason=str(error),
        advice=error.advice,
        run=str(run_dir),
    )
    answer(AttemptResult(error.verdict, error.exit_code, writer.number, state.step, None, _newest(writer)))
    for sink in sinks:
        sink.emit(end)


def _advice(error: PretrainError) -> str | None:
    """Return the advice to show: what the disk said comes with its own, behind a semicolon."""
    return None if isinstance(error, StorageError) and "; " in str(error) else error.advice


def _newest(writer: AttemptWriter) -> SavedCheckpoint | None:
    return writer.saved[max(writer.saved)] if writer.saved else None


def _last_incident(parts: LoopParts) -> str | None:
    """Return the path of the newest incident's file, None where there was none, or its file is gone."""
    count = parts.state.ledger.incidents
    path = parts.writer.folder / incident.name_of(count)
    return str(path) if count and path.is_file() else None


def _outcome(state: RunState, run_dir: Path, error: PretrainError, newest: SavedCheckpoint | None) -> dict[str, Any]:
    return outcome.outcome_record(
        verdict=error.verdict,
        exit_code=error.exit_code,
        reason=str(error),
        advice=error.advice,
        step=state.step,
        batch=state.batch,
        signal=error.signal_name if isinstance(error, RunInterruptedError) else None,
        checkpoint=None if newest is None else (newest.step, newest.record_sha256),
        incident=state.ledger.incidents if isinstance(error, DivergedError) and state.ledger.incidents else None,
        resume=resume_command(run_dir) if error.resumable else None,
    )


def record_unopened(
    folder: Path, number: int, run_dir: Path, state: RunState, error: StorageError, sinks: Sequence[Sink]
) -> AttemptResult:
    """Put on record, as far as the disk lets us, that the streams of a new attempt could not be opened."""
    with contextlib.suppress(StorageError):
        outcome.publish_outcome(folder, _outcome(state, run_dir, error, None))
    end = End(
        attempt=str(folder),
        verdict=error.verdict,
        step=state.step,
        reason=str(error),
        advice=_advice(error),
        run=str(run_dir),
    )
    for sink in sinks:
        sink.emit(end)
    return AttemptResult(error.verdict, error.exit_code, number, state.step)
