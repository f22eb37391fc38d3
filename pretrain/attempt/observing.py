"""What only looks at an attempt: a profile, a snapshot, trackers; their time is `observing`, and of no step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from pretrain.loop import LoopParts


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
