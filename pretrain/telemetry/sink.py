"""What the loop shows of itself: plain events, and the sinks that take them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class Begin:
    """An attempt is about to run its first step.

    attempt: path of the attempt's folder, as a person would type it. step: completed steps so far.
    unit: what the throughput counts. details: (label, value) lines about the model, the data, the device.
    line_every_n_steps: how often a step is worth a line where no live view is possible.
    """

    attempt: str
    step: int
    max_steps: int
    unit: Literal["tokens", "samples"]
    details: tuple[tuple[str, str], ...] = ()
    line_every_n_steps: int = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRow:
    """One step, taken or refused: the columns of telemetry.csv; None = unknown, or not measured at this step.

    step: completed steps after it, so a refused step repeats the number; before the run went back, where it did.
    action: accept, skip, roll_back or fail; after `roll_back` the next row goes on from an earlier step.
    gradient_norm: before clipping; gradient_norm_clipped: after it; clip_ratio: the second over the first.
    update_norm: of the change of the parameters.
    supervised: tokens or predicted samples that the loss is over; tokens_per_second: of the same unit.
    loss_scale: of float16. mfu: share of the device's peak, None where that is unknown. gpu_utilization: per cent.
    gpu_clock_mhz: of the streaming multiprocessors.
    block_gradient_norms: one per block in the model's order, or empty.
    seconds_left: until max_steps; for the screen, not a column.
    """

    attempt: int
    step: int
    batch: int
    loss: float
    learning_rate: float
    action: str
    gradient_norm: float | None = None
    gradient_norm_clipped: float | None = None
    clip_ratio: float | None = None
    update_norm: float | None = None
    supervised: int | None = None
    tokens_per_second: float | None = None
    data_seconds: float | None = None
    compute_seconds: float | None = None
    optimizer_seconds: float | None = None
    evidence_seconds: float | None = None
    loss_scale: float | None = None
    memory_bytes: int | None = None
    gpu_temperature_c: float | None = None
    gpu_power_w: float | None = None
    gpu_utilization: float | None = None
    gpu_clock_mhz: float | None = None
    mfu: float | None = None
    block_gradient_norms: tuple[float | None, ...] = ()
    seconds_left: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationShown:
    """One domain's validation. measures and classes: name to value (bits_per_byte, nmse; per signal class).

    baselines: what the measures must be compared with, scored on the same windows (bigram, zero, linear).
    best: whether this step now leads the best list.
    """

    step: int
    domain: str
    measures: Mapping[str, float]
    baselines: Mapping[str, float] = field(default_factory=dict)
    classes: Mapping[str, float] = field(default_factory=dict)
    best: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class MonitorShown:
    """What a monitor measured at a step: by measure, then by block, layer, expert or domain."""

    step: int
    name: str
    values: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class WentBack:
    """The run was rolled back to `step`: what was shown of later steps is undone, and comes again otherwise."""

    step: int
    undone_steps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """Something that happened, in a word and a sentence; `warning` alone asks a person to look."""

    kind: Literal["resumed", "skipped", "saved", "signal", "warning", "cleared", "paused", "unpaused"]
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """An attempt has ended. verdict: `done`, or that of outcome.json; reason and advice: why, and what to do.

    resumable: whether `resume` would go further; False where the same data and rules lead to the same end.
    times: what the time went to, in lines. run: path of the run's folder, as a person would type it, None = not known.
    incidents: how many the lineage had, and the path of the newest of their files, None = none is there.
    """

    attempt: str
    verdict: str
    step: int
    reason: str | None = None
    advice: str | None = None
    resumable: bool = True
    times: tuple[str, ...] = ()
    run: str | None = None
    incidents: int = 0
    incident: str | None = None


Event = Begin | StepRow | ValidationShown | MonitorShown | WentBack | Note | End


class Sink(Protocol):
    """Something that takes the events it cares about and ignores the others."""

    def emit(self, event: Event) -> None:
        """Take one event; the loop emits one StepRow per step, last of all that a step does."""

    def close(self) -> None:
        """Take nothing more; a second call does nothing."""
