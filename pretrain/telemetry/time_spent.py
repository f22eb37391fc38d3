"""What the wall time of an attempt goes to, every second of it under one kind."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

Kind = Literal[
    "start_up", "data", "steps", "refused", "undone", "incidents", "validation", "saving", "paused", "observing"
]
KINDS: tuple[Kind, ...] = get_args(Kind)


class TimeSpent:
    """A clock that always runs for one kind, so that the seconds of all add up to those since it was made.

    start_up: until the first step, the imports of the process left out. data: waiting for the loader. steps: those that
    still count. refused: of the guard. undone: taken back by a rollback, or lost with the end of the attempt.
    incidents: looking for the cause of one.
    paused: the temperature of the GPU and the wait for a hot one. observing: profile, memory snapshot, end of trackers.
    clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._last, self._kind = clock, clock(), KINDS[0]
        self._seconds: dict[Kind, float] = dict.fromkeys(KINDS, 0.0)
        self._before_step = 0.0
        self._at: dict[int, float] = {}

    def enter(self, kind: Kind) -> None:
        """From now on it is `kind`."""
        now = self._clock()
        self._seconds[self._kind] += now - self._last
        self._last, self._kind = now, kind

    @contextmanager
    def during(self, kind: Kind) -> Iterator[None]:
        """In here it is `kind`, and afterwards what it was before."""
        before = self._kind
        self.enter(kind)
        try:
            yield
        finally:
            self.enter(before)

    @property
    def aside(self) -> float:
        """Return the seconds so far that are of no step, although they may pass within one: paused and observing."""
        self.enter(self._kind)
        return self._seconds["paused"] + self._seconds["observing"]

    def begin_step(self) -> None:
        """The batch is there: from now on it is a step, which may yet be refused."""
        self.enter("steps")
        self._before_step = self._seconds["steps"]

    def refuse(self) -> None:
        """The step that has begun was refused."""
        self.enter("refused")
        self._move("refused", self._before_step)

    def mark(self, step: int) -> None:
        """The checkpoint of `step` is being saved: a rollback may come back to here."""
        self._at[step] = self._seconds["steps"]

    def undo(self, step: int) -> None:
        """The steps after the checkpoint of `step` were undone; one of an earlier attempt leaves none of this one."""
        self.enter("undone")
        self._at = {saved: seconds for saved, seconds in self._at.items() if saved <= step}
        self._move("undone", self._at.get(step, 0.0))

    def lose_the_rest(self) -> None:
        """The attempt has ended, and the steps after its newest checkpoint with it: whoever goes on does them again."""
        self.enter("undone" if self._kind == "steps" else self._kind)  # a step that broke off never ends
        self._move("undone", self._at[max(self._at)] if self._at else 0.0)

    def seconds(self) -> dict[str, float]:
        """Return the seconds of every kind so far."""
        self.enter(self._kind)
        return {kind: self._seconds[kind] for kind in KINDS}

    def _move(self, kind: Kind, kept: float) -> None:
        self._seconds[kind] += self._seconds["steps"] - kept
        self._seconds["steps"] = kept
