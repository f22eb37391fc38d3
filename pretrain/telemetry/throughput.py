"""Where a step's time goes: its phases, tokens or samples per second, and the time left."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Phase = Literal["data", "compute", "optimizer", "evidence"]
_PHASES: tuple[Phase, ...] = ("data", "compute", "optimizer", "evidence")


@dataclass(frozen=True, slots=True)
class StepTiming:
    """One step in seconds, by phase; the names are those of StepRow.

    data: waiting for the batch. compute: forward, backward, clip and the synchronisation with the device.
    optimizer: the update. evidence: the metric row, validation and checkpoints.
    tokens_per_second: over the newest steps, evidence left out, so that a validation is no dip in it.
    seconds_left: until max_steps, at the mean pace of this attempt, everything in; None before a first step.
    """

    data_seconds: float
    compute_seconds: float
    optimizer_seconds: float
    evidence_seconds: float
    tokens_per_second: float | None
    seconds_left: float | None


class Throughput:
    """A stopwatch for the loop: `lap` after each phase, `finish` after the last one.

    step: completed steps at the start. window_steps: how many of the newest steps the rate is over.
    clock: seconds that never go back. A step that was refused costs time and makes no progress.
    """

    def __init__(
        self,
        step: int,
        max_steps: int,
        *,
        window_steps: int = 20,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._first, self._max_steps, self._clock = step, max_steps, clock
        self._recent: deque[tuple[int, float]] = deque(maxlen=window_steps)
        self._laps: dict[Phase, float] = dict.fromkeys(_PHASES, 0.0)
        self._begun = self._last = clock()
        self._warm: tuple[int, float] | None = None
        self._left_out = 0.0

    def lap(self, phase: Phase) -> None:
        """What passed since the last lap was `phase`; several laps of one phase add up."""
        now = self._clock()
        self._laps[phase] += now - self._last
        self._last = now

    def leave_out(self, aside: float) -> None:
        """Let what has passed aside since the last time belong to no step, nor to the time left.

        aside: seconds since the beginning, all of it so far; what is new in it has passed since the last lap.
        """
        passed, self._left_out = aside - self._left_out, aside
        self._last += passed
        self._begun += passed
        if self._warm is not None:
            self._warm = self._warm[0], self._warm[1] + passed

    def finish(self, step: int, supervised: int) -> StepTiming:
        """Close the step and begin the next; `step` = completed steps now, supervised: tokens or samples."""
        laps, self._laps = self._laps, dict.fromkeys(_PHASES, 0.0)
        self._recent.append((supervised, laps["data"] + laps["compute"] + laps["optimizer"]))
        timing = StepTiming(
            data_seconds=laps["data"],
            compute_seconds=laps["compute"],
            optimizer_seconds=laps["optimizer"],
            evidence_seconds=laps["evidence"],
            tokens_per_second=self._rate(),
            seconds_left=self._seconds_left(step),
        )
        # The first step compiles, allocates and fills caches: once there is another, it does not count.
        if self._warm is None and step > self._first:
            self._warm = step, self._last
        return timing

    def _rate(self) -> float | None:
        seconds = sum(spent for _, spent in self._recent)
        return sum(count for count, _ in self._recent) / seconds if seconds > 0 else None

    def _seconds_left(self, step: int) -> float | None:
        since, begun = self._warm or (self._first, self._begun)
        if step <= since:
            return None
        return (self._max_steps - step) * (self._last - begun) / (step - since)
