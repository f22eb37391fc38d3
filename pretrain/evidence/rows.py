"""The rows of metrics.jsonl, with exactly the fields of the format; null stands for what does not apply."""

from collections.abc import Mapping
from typing import Any

SCHEMA = 1
SKIP_REASONS = ("non_finite_loss", "non_finite_norm", "post_clip", "spike", "data_corruption")


def begin(*, task: str, parameters: int) -> dict[str, Any]:
    """The first row of a stream."""
    return {"event": "begin", "schema": SCHEMA, "task": task, "parameters": parameters}


def step(
    *,
    step: int,
    batch: int,
    loss: float,
    learning_rate: float,
    gradient_norm: float,
    clip_ratio: float,
    supervised: int,
    update_norm: float | None = None,
) -> dict[str, Any]:
    """One optimizer step that was taken; `step` counts it already."""
    return {
        "event": "step",
        "step": step,
        "batch": batch,
        "loss": loss,
        "learning_rate": learning_rate,
        "gradient_norm": gradient_norm,
        "clip_ratio": clip_ratio,
        "supervised": supervised,
        "update_norm": update_norm,
    }


def skipped(
    *,
    step: int,
    batch: int,
    reason: str,
    loss: float,
    gradient_norm: float,
    largest: float | None,
    retries: int,
    incident: int | None = None,
) -> dict[str, Any]:
    """One step that was refused: loss and norms may be anything. incident: null where no file tells of it."""
    if reason not in SKIP_REASONS:
        raise ValueError(f"{reason!r} is none of {SKIP_REASONS}")
    return {
        "event": "skipped",
        "step": step,
        "batch": batch,
        "reason": reason,
        "loss": loss,
        "gradient_norm": gradient_norm,
        "largest": largest,
        "retries": retries,
        "incident": incident,
    }


def rolled_back(
    *,
    step: int,
    batch: int,
    undone_steps: int,
    rung: int,
    quarantined: tuple[int, int],
    learning_rate_factor: float,
    incident: int,
) -> dict[str, Any]:
    """The trajectory put back to `step`; `batch` is the one at which that was decided."""
    return {
        "event": "rolled_back",
        "step": step,
        "batch": batch,
        "undone_steps": undone_steps,
        "rung": rung,
        "quarantined": list(quarantined),
        "learning_rate_factor": learning_rate_factor,
        "incident": incident,
    }


def alarm(
    *,
    step: int,
    batch: int,
    name: str,
    state: str,
    value: float,
    threshold: float,
    subject: str | None = None,
    incident: int | None = None,
) -> dict[str, Any]:
    """A signal that begins to stand out (state: raised), or has not done so for a while (cleared).

    incident: null where no file tells of it.
    """
    return {
        "event": "alarm",
        "step": step,
        "batch": batch,
        "name": name,
        "subject": subject,
        "state": state,
        "value": value,
        "threshold": threshold,
        "incident": incident,
    }


def monitor(*, step: int, name: str, values: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """What a monitor measured at a step that was taken: by measure, then by what was measured."""
    return {"event": "monitor", "step": step, "name": name, "values": {key: dict(of) for key, of in values.items()}}


def mixture(*, step: int, shares: Mapping[str, float]) -> dict[str, Any]:
    """The share of each training domain in what was trained on since the row before."""
    return {"event": "mixture", "step": step, "shares": dict(shares)}


def migrated(*, step: int, keys: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """What is another run from the step after `step` on: by key, what it was and what it is; null where it was none."""
    return {"event": "migrated", "step": step, "keys": {key: list(values) for key, values in keys.items()}}


def validation(
    *,
    step: int,
    domain: str,
    samples: int,
    loss: float,
    bits_per_byte: float | None = None,
    nmse: float | None = None,
    nmse_zero: float | None = None,
    nmse_linear: float | None = None,
    classes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One validation domain, scored at `step`."""
    return {
        "event": "validation",
        "step": step,
        "domain": domain,
        "samples": samples,
        "loss": loss,
        "bits_per_byte": bits_per_byte,
        "nmse": nmse,
        "nmse_zero": nmse_zero,
        "nmse_linear": nmse_linear,
        "classes": dict(classes or {}),
    }
