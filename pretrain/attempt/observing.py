"""What only looks at an attempt: a profile, a snapshot, trackers; their time is `observing`, and of no step."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from pretrain.loop import LoopParts
from pretrain.telemetry import memory_held, trace


@dataclass(frozen=True)
class Asked:
    """The steps to look at: the first and the last to leave a trace of, and the one to say what holds memory after."""

    profile: tuple[int, int] | None = None
    memory_snapshot: int | None = None

    def missed(self) -> list[str]:
        """Return what is said where none of them is taken."""
        found = [] if self.profile is None else [trace.missed(self.profile)]
        return found if self.memory_snapshot is None else [*found, memory_held.missed(self.memory_snapshot)]


@dataclass(frozen=True)
class Words:
    """What a person asked for, as it was typed; None = nothing."""

    profile: str | None = None
    memory_snapshot: str | None = None

    def read(self, max_steps: int) -> Asked:
        """Return the steps, of a run of `max_steps`; ConfigError where they are none of it."""
        return Asked(
            trace.steps_asked(self.profile, max_steps), memory_held.step_asked(self.memory_snapshot, max_steps)
        )


NOTHING = Words()


class Observer(Protocol):
    """Something whose end may take long, and does nothing for the run."""

    def close(self) -> None:
        """Leave what there is to leave."""


@contextmanager
def observed(parts: LoopParts, observer: Observer) -> Iterator[None]:
    """Close the observer after what is done in here."""
    try:
        yield
    finally:
        with parts.spent.during("observing"):
            observer.close()
