"""What a layer of the drill is: a kind of fault, the points at which it can be made, and what is wrong afterwards."""

import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable


class Faults(Protocol):
    """A layer that is set up: it has counted where its fault can be made."""

    def points(self, *, whole: bool) -> Sequence[str]:
        """Return the name of every point, each enough to make its fault again; not `whole`: of a quick part of them."""

    def check(self, point: str, folder: Path) -> None:
        """Make the fault of a point in the empty `folder`, and recover; an AssertionError says what is wrong."""


@dataclass(frozen=True)
class LeftOut:
    """What of a layer this machine cannot do, and why. points: those left out, which the floor does not count."""

    what: str
    why: str
    points: int = 0


@runtime_checkable
class Partial(Protocol):
    """Faults of which this machine may not be able to make all."""

    def left_out(self, *, whole: bool) -> Sequence[LeftOut]:
        """Return the kinds of points that `points` has left out, or of looks that `check` does not take."""


@runtime_checkable
class Counting(Protocol):
    """Faults of which a point is many."""

    def counted(self) -> str:
        """Return in one line what the points that were gone through came to."""


def nothing_missing() -> str | None:
    """Return None: the fault can be made anywhere."""
    return None


@dataclass(frozen=True)
class Layer:
    """A kind of fault.

    name: L0 to L14. title: what is made to fail. least: points that a quick part must have, and a whole one; fewer mean
    that a change has gone round what the drill looks at. open: sets the layer up in an empty folder, for a seed.
    missing: returns what this machine lacks for the fault to be made, None = nothing.
    """

    name: str
    title: str
    least: tuple[int, int]
    open: Callable[[Path, int], AbstractContextManager[Faults]]
    missing: Callable[[], str | None] = nothing_missing


@dataclass(frozen=True)
class Wrong:
    """A point at which something was lost, and what; "" = the layer itself, in its whole part or its quick one."""

    layer: str
    seed: int
    point: str
    what: str
    whole: bool = True

    @property
    def command(self) -> str:
        """Return the command that makes this fault again."""
        how = f"--point {shlex.quote(self.point)} " if self.point else "" if self.whole else "--quick "
        return f"python -m tests.drill --layer {self.layer} --seed {self.seed} {how}--keep"
