"""outcome.json: why an attempt that has no manifest ended by its own hand, and how to go on."""

from pathlib import Path
from typing import Any

from pretrain import files
from pretrain.evidence import canonical

SCHEMA = 1
NAME = "outcome.json"
VERDICTS = ("diverged", "thermal", "storage", "interrupted", "out_of_memory", "stalled", "failed")


def outcome_record(
    *,
    verdict: str,
    exit_code: int,
    reason: str,
    advice: str,
    step: int,
    batch: int,
    signal: str | None = None,
    checkpoint: tuple[int, str] | None = None,
    incident: int | None = None,
    resume: str | None = None,
) -> dict[str, Any]:
    """What outcome.json holds.

    verdict: one of VERDICTS. checkpoint: step and record SHA-256 of the last durable one. resume: the command
    that continues the run. step, batch: what was reached, which may be beyond the checkpoint.
    """
    if verdict not in VERDICTS:
        raise ValueError(f"{verdict!r} is none of {VERDICTS}")
    return {
        "schema": SCHEMA,
        "verdict": verdict,
        "exit_code": exit_code,
        "signal": signal,
        "reason": reason,
        "advice": advice,
        "step": step,
        "batch": batch,
        "checkpoint": None if checkpoint is None else {"step": checkpoint[0], "record_sha256": checkpoint[1]},
        "incident": incident,
        "resume": resume,
    }


def publish_outcome(attempt: Path, record: dict[str, Any]) -> None:
    """Write the record into the attempt folder. Raises StorageError: the disk may be what it reports."""
    files.publish(attempt / NAME, canonical.encode(record))
