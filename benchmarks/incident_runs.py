"""One plan of the benchmark through the product, with its fault or without, and what it left on record."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from safetensors.torch import load_file

from benchmarks.incident_faults import Fault, Plan
from benchmarks.incident_setup import broken, config_of, folder, probe
from pretrain.attempt import start_attempt
from pretrain.config import RunConfig
from pretrain.evidence import checkpoint
from pretrain.evidence.incident import FOLDER, read_incident
from pretrain.loop import LoopParts
from pretrain.loop import train as loop_train
from pretrain.machine.signals import StopRequest
from pretrain.policy.diagnosis import diagnose
from pretrain.policy.incident import IncidentNumbers
from pretrain.telemetry.sink import Event, StepRow


@dataclass(frozen=True)
class Incident:
    """One incident file: where it was, what was done, what fired, what was named, and the two best supported causes."""

    step: int
    batch: int
    action: str
    signal: str
    cause: str
    scores: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Guarded:
    """How a run of the product ended: its verdict, incidents, step losses and final validation loss."""

    verdict: str
    incidents: tuple[Incident, ...]
    steps: int
    final: float | None
    finite: bool
    seconds: float


class _Watch:
    """A sink that holds the live state, and changes it once where the fault says so."""

    def __init__(self, fault: Fault | None, config: RunConfig) -> None:
        self.parts: LoopParts | None = None
        self._fault, self._config, self._done = fault, config, False

    def train(self, parts: LoopParts) -> None:
        """Take the place of the loop, which is handed on to."""
        self.parts = parts
        loop_train(parts)

    def emit(self, event: Event) -> None:
        """Change the state between the step that has just been shown and the next one."""
        fault = self._fault
        if fault is None or fault.change is None or self._done or self.parts is None:
            return
        if isinstance(event, StepRow) and self.parts.state.step == fault.at:
            state = self.parts.state
            self._done = True
            fault.change(state.model, state.optimizer, self.parts.task, probe(self._config))

    def close(self) -> None:
        """Nothing is open."""


def run_guarded(plan: Plan, fault: Fault | None, *, spoiled: bool = True) -> Guarded:
    """Run a plan through the product; not `spoiled`: without the fault."""
    begun = time.perf_counter()
    with folder() as place:
        config = config_of(plan, fault, place, spoiled=spoiled)
        watch = _Watch(fault if spoiled else None, config)
        with mock.patch("pretrain.attempt.run.train", watch.train), broken(fault if spoiled else None, config):
            result = start_attempt(config, StopRequest(), [watch])
        attempt = place / "run" / "attempts" / "0001"
        rows = [json.loads(line) for line in (attempt / "metrics.jsonl").read_text().splitlines()]
        assert watch.parts is not None
        validated = [row["loss"] for row in rows if row["event"] == "validation"]
        return Guarded(
            verdict=result.verdict,
            incidents=_incidents(attempt),
            steps=sum(row["event"] == "step" for row in rows),
            final=float(validated[-1]) if validated and result.verdict == "done" else None,
            finite=watch.parts.state.is_finite() and _saved_is_finite(attempt),
            seconds=time.perf_counter() - begun,
        )


def _incidents(attempt: Path) -> tuple[Incident, ...]:
    """Return the incidents of an attempt in the order of time, from the files that it left."""
    found = [read_incident(path) for path in sorted((attempt / FOLDER).glob("incident_*.json"))]
    return tuple(
        Incident(one.numbers.step, one.batch, one.action, one.numbers.trigger, one.cause, _scores(one.numbers))
        for one in found
    )


def _scores(numbers: IncidentNumbers) -> tuple[tuple[str, float], ...]:
    """Return the two best supported causes and what speaks for them."""
    return tuple((cause, round(score, 2)) for cause, score in diagnose(numbers).scores[:2])


def _saved_is_finite(attempt: Path) -> bool:
    _, saved = checkpoint.list_checkpoints(attempt)[-1]
    tensors = [tensor for shard in saved.glob("*.safetensors") for tensor in load_file(shard).values()]
    return all(bool(tensor.isfinite().all()) for tensor in tensors if tensor.is_floating_point())
