"""Tiny runs for tests: a config of a few thousand parameters, run in this process through the real entry points."""

from pathlib import Path
from typing import Any

from pretrain.attempt import AttemptResult, resume_attempt, start_attempt
from pretrain.config import RunConfig, load
from pretrain.machine.signals import StopRequest
from pretrain.telemetry.sink import Event, StepRow

TEXT = """
run: {dir: %s}
training: {max_steps: 12, batch_size: 2, gradient_accumulation_steps: 2, threads: 1}
task: {name: text}
data:
  sequence_length: 16
  train: {letters: {source: text, path: %s, span: [0.0, 0.9]}}
  validation: {letters: {source: text, path: %s, span: [0.9, 1.0]}}
model: {name: decoder, width: 16, layers: 2, heads: 2, kv_heads: 1}
optimizer: {optimizer_class: adamw, lr: 1.0e-2}
scheduler: {scheduler_type: cosine}
checkpoint: {checkpoint_every_n_steps: 4, max_rolling_checkpoints: 2}
validation: {validate_every_n_steps: 4}
"""

IQ = """
run: {dir: %s}
training: {max_steps: 12, batch_size: 2, gradient_accumulation_steps: 2, threads: 1}
task: {name: iq, patch_samples: 8}
data:
  sequence_length: 64
  train: {signals: {source: synthetic-iq, windows: 70, span: [0.0, 0.9]}}
  validation: {signals: {source: synthetic-iq, windows: 70, span: [0.9, 1.0]}}
model: {name: decoder, width: 16, layers: 2, heads: 2, kv_heads: 1}
optimizer: {optimizer_class: adamw, lr: 1.0e-2}
scheduler: {scheduler_type: warmup_stable_decay}
checkpoint: {checkpoint_every_n_steps: 4, max_rolling_checkpoints: 2}
validation: {validate_every_n_steps: 4}
"""


def write_config(folder: Path, task: str = "text", run: str = "run") -> Path:
    """Write the tiny config of a task, and its text, into `folder`; the run's folder is `folder/run`."""
    path = folder / f"{task}.yaml"
    corpus = folder / "corpus.txt"
    if task == "text":
        corpus.write_text("".join(f"{n} green bottles hanging on the wall, {n * n % 97}.\n" for n in range(80)))
        path.write_text(TEXT % (folder / run, corpus, corpus))
    else:
        path.write_text(IQ % (folder / run))
    return path


def tiny(folder: Path, task: str = "text", *overrides: str, run: str = "run") -> RunConfig:
    """Return the tiny config of a task with these overrides."""
    return load(write_config(folder, task, run), list(overrides))


class Recorder:
    """A sink that keeps every event and asks the run to stop once `stop_after` rows have been shown."""

    def __init__(self, stop: StopRequest | None = None, stop_after: int | None = None) -> None:
        self.events: list[Event] = []
        self._stop, self._after = stop, stop_after

    @property
    def rows(self) -> list[StepRow]:
        """Return the step rows seen so far."""
        return [event for event in self.events if isinstance(event, StepRow)]

    def emit(self, event: Event) -> None:
        """Keep the event."""
        self.events.append(event)
        if self._stop is not None and self._after is not None and len(self.rows) >= self._after:
            self._stop.name = "SIGTERM"

    def close(self) -> None:
        """Nothing is open."""


def train(config: RunConfig, stop_after: int | None = None) -> AttemptResult:
    """Run attempt 0001, stopped as by a signal after `stop_after` batches."""
    stop = StopRequest()
    return start_attempt(config, stop, [Recorder(stop, stop_after)])


def go_on(run_dir: Path, *overrides: str, stop_after: int | None = None, **options: Any) -> AttemptResult:
    """Resume the newest attempt of a run."""
    stop = StopRequest()
    return resume_attempt(run_dir, list(overrides), stop, [Recorder(stop, stop_after)], **options)
