"""What a layer of the drill is: a kind of fault, the points at which it can be made, and what is wrong afterwards."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class Faults(Protocol):
    """A layer that is set up: it has counted where its fault can be made."""

    def points(self, *, whole: bool) -> Sequence[str]:
        """Return the name of every point, each enough to make its fault again; not `whole`: of a quick part of them."""

    def check(self, point: str, folder: Path) -> None:
        """Make the fault of a point in the empty `folder`, and recover; an AssertionError says what is wrong."""


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
    """A point at which something was lost, and what."""

    layer: str
    seed: int
    point: str
    what: str

    @property
    def command(self) -> str:
        """Return the command that makes this fault again."""
        point = "'" + self.point.replace("'", "'\\''") + "'"
        return f"python -m tests.drill --layer {self.layer} --seed {self.seed} --point {point} --keep"
