"""What the loop works with, and how it shows what it does."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pretrain.config import RunConfig
from pretrain.evidence.writer import AttemptWriter
from pretrain.faults import Faults
from pretrain.machine.signals import StopRequest
from pretrain.machine.thermometer import Thermometer
from pretrain.policy.incident import REPORTS, Report
from pretrain.policy.recovery import Target, learning_rate_multiplier
from pretrain.state import RunState, Snapshot
from pretrain.tasks import Task
from pretrain.telemetry.rows import RowMaker
from pretrain.telemetry.sink import Event, Note, Sink
from pretrain.telemetry.time_spent import TimeSpent
from pretrain.telemetry.trace import StepTrace
from pretrain.validation import DomainResult, Validator


@dataclass
class LoopParts:
    """What the loop works with; `last_durable_step` and `results` are what it leaves behind.

    schedule: the learning rate of the schedule alone, for the step after that many. targets: the checkpoints of the
    regular cadence in this lineage that can be gone back to, and their folders, ascending. memory: the newest of them
    as copies, by step. history: the newest batches, oldest first. last_durable_step: the step of the newest checkpoint
    of this lineage. domains: how many windows each training domain has. thermometer: None where the thermal guard is
    off. reasons: why the lineage is not bit for bit the same. results: the newest validation, by domain. spent: what
    the time goes to. trace: of the steps to profile. disk_is_low: a person was told so, which is done once.
    """

    config: RunConfig
    task: Task
    state: RunState
    schedule: Callable[[int], float]
    validator: Validator
    writer: AttemptWriter
    rows: RowMaker
    sinks: Sequence[Sink]
    stop: StopRequest
    check_data: Callable[[], None]
    faults: Faults
    last_durable_step: int
    domains: Mapping[str, int] = field(default_factory=dict)
    thermometer: Thermometer | None = None
    reasons: list[str] = field(default_factory=list)
    trace: StepTrace = field(default_factory=StepTrace)
    spent: TimeSpent = field(default_factory=TimeSpent)
    targets: dict[Target, Path] = field(default_factory=dict)
    memory: dict[int, Snapshot] = field(default_factory=dict)
    history: deque[Report] = field(default_factory=lambda: deque(maxlen=REPORTS))
    disk_is_low: bool = False
    results: dict[str, DomainResult] = field(default_factory=dict)

    def learning_rate(self, step: int) -> float:
        """Return the rate for the step after `step` completed ones: the schedule's, lowered by rollbacks."""
        return self.schedule(step) * learning_rate_multiplier(self.state.ledger.ladder, step, self.config.spikes)


def show(parts: LoopParts, event: Event) -> None:
    """Hand an event to every sink."""
    for sink in parts.sinks:
        sink.emit(event)


def warn(parts: LoopParts, text: str) -> None:
    """Ask a person to look, on the screen and in events.jsonl."""
    show(parts, Note(kind="warning", text=text))
    parts.writer.event("warning", parts.state.step, text=text)
