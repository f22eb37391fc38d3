"""A PyTorch profiler trace of some steps, as a Chrome trace that any trace viewer opens."""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from pretrain import files
from pretrain.errors import ConfigError, StorageError

NAME = "trace.json"


def steps_asked(text: str | None, max_steps: int) -> tuple[int, int] | None:
    """Read the FROM:TO of `--profile`, two steps of the run; ConfigError for any other text."""
    if text is None:
        return None
    words = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", text)
    if words is None or not 1 <= int(words[1]) <= int(words[2]) <= max_steps:
        raise ConfigError(
            f"--profile: expected FROM:TO, two steps of the {max_steps} of training.max_steps, such as 1:1, the second "
            f"no smaller; found {text!r}"
        )
    return int(words[1]), int(words[2])


def missed(steps: tuple[int, int]) -> str:
    """Return what is said of steps that an attempt did not take."""
    return f"--profile {steps[0]}:{steps[1]}: this attempt took none of these steps, so that there is no {NAME}"


class StepTrace:
    """Records the steps `first` to `last`, once, and publishes them in the attempt's folder; no steps = nothing.

    tell: takes one sentence, when the trace is there. warn: takes one where none of the steps was taken, or the disk
    has no room for them.
    """

    def __init__(
        self,
        folder: Path = Path(),
        steps: tuple[int, int] | None = None,
        tell: Callable[[str], None] = lambda text: None,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._path, self._steps, self._tell, self._warn = folder / NAME, steps, tell, warn
        self._profile: profile | None = None
        self._marker: Any = None
        self._recorded = 0

    def at(self, step: int) -> None:
        """Between two steps, after so many completed ones: begin, go on or end."""
        if self._steps is None:
            return
        first, last = self._steps
        self._end_step()
        if step >= last:
            self._publish()
        elif self._profile is None and step >= first - 1:
            self._profile = _start()
        if self._profile is not None:
            self._marker = record_function(f"step {step + 1}")
            self._marker.__enter__()

    def close(self) -> None:
        """Publish what was recorded, fewer steps where the attempt ends before; a second call does nothing."""
        self._publish()
        steps, self._steps = self._steps, None
        if steps is not None:
            self._warn(missed(steps))

    def _publish(self) -> None:
        running, self._profile = self._profile, None
        if running is None:
            return
        self._steps = None  # a rollback may come back to them: the first time is the one that is shown
        self._end_step()
        running.stop()
        events = running.events()  # type: ignore[no-untyped-call]
        try:
            files.publish(self._path, _encoded(events))
        except StorageError as error:  # It is for eyes, and the training goes on without it.
            self._warn(f"there is no {NAME} of this attempt: {error}")
            return
        self._tell(f"profile of {self._recorded} steps in {self._path}, for chrome://tracing or ui.perfetto.dev")

    def _end_step(self) -> None:
        marker, self._marker = self._marker, None
        if marker is not None:
            marker.__exit__(None, None, None)
            self._recorded += 1


def _start() -> profile:
    # Its C++ part writes to stderr by itself, past every sink, at its start and stop; 6 is above all that it says.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        activities.append(ProfilerActivity.CUDA)
    started = profile(activities=activities, acc_events=True)
    started.start()
    return started


def _encoded(events: Any) -> Iterator[bytes]:
    """Yield the file in pieces. PyTorch's own export writes a file itself, which is for files.py alone."""
    head = '{"displayTimeUnit":"ms","traceEvents":['
    for event in events or ():
        yield (head + json.dumps(_row(event))).encode()
        head = ",\n"
    yield ((head if head[0] == "{" else "") + "]}\n").encode()


def _row(event: FunctionEvent) -> dict[str, Any]:
    """Return a complete event; times are microseconds. A GPU has its streams as threads."""
    is_host = event.device_type == DeviceType.CPU
    return {
        "ph": "X",
        "name": event.name,
        "cat": "cpu_op" if is_host else "kernel",
        "ts": event.time_range.start,
        "dur": event.time_range.end - event.time_range.start,
        "pid": "CPU" if is_host else f"GPU {event.device_index}",
        "tid": event.thread if is_host else event.device_resource_id,
    }
