"""What a tracker is told and what it does: the one thing that a feed knows of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pretrain.registry import Entry

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """Whose rows they are.

    folder: the run's folder; a tracker may make a folder of its own in it, and writes nothing below its attempts.
    identity: SHA-256 of what makes two runs the same. attempt: its number. step: completed steps when it begins.
    goes_on: whether an attempt came before, so that rows of later steps may be there which no attempt goes on from.
    config: every setting by its full name.
    """

    folder: Path
    identity: str
    attempt: int
    step: int
    goes_on: bool
    config: Mapping[str, Any]


class Tracker(Protocol):
    """Shows numbers by step; built by `build(settings, run)`, and each call comes from one thread of its own.

    Any of them may take long and may raise what it likes: a feed stands between it and the training.
    """

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Show what was measured at a step, by name; a value may be nan or infinite, and a step may come again."""

    def went_back(self, step: int) -> None:
        """Take back what was shown of the steps after `step`, or mark it: they come again otherwise."""

    def close(self) -> None:
        """Let nothing be lost of what was shown."""


@dataclass(frozen=True)
class TrackerEntry(Entry[S, Tracker]):
    """A row of the table of trackers; library: what `build` imports, and nothing else does.

    shown_by: the command that shows what it leaves, from its settings and the run's folder; None = nothing to type.
    """

    library: str
    shown_by: Callable[[S, Path], str] | None = None
