"""Goodput: the share of the wall time of a run that made steps which survived, and where the rest went."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Events = Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class Goodput:
    """seconds: by kind, over `attempts`. unended: how many of them count up to their last checkpoint alone."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    attempts: int = 0
    unended: int = 0

    @property
    def total(self) -> float:
        """Return the wall time in seconds."""
        return sum(self.seconds.values())

    @property
    def share(self) -> float:
        """Return the share of it in steps that survived; 0 where there is no time yet."""
        return self.seconds.get("steps", 0.0) / self.total if self.total > 0 else 0.0


def add_up(lineage: Sequence[Events], aside: Sequence[Events] = ()) -> Goodput:
    """Add up what the events of attempts say, each of which is read once; one that says nothing is left out.

    lineage: the youngest attempt first; what a child did not go on from is undone. aside: attempts of the run that are
    no ancestors of it, of which nothing survived. A killed attempt says nothing after its last checkpoint.
    """
    boundary: float = float("inf")
    seconds: dict[str, float] = {}
    attempts = unended = 0
    for events, is_ancestor in [*((one, True) for one in lineage), *((one, False) for one in aside)]:
        told = _read(events)
        if told is None:
            continue
        attempts += 1
        spent = dict(told.spent)
        survived = told.survived(boundary) if is_ancestor else 0.0
        spent["undone"] = spent.get("undone", 0.0) + spent.get("steps", 0.0) - survived
        spent["steps"] = survived
        for kind, value in spent.items():
            seconds[kind] = seconds.get(kind, 0.0) + value
        unended += not told.is_ended
        if is_ancestor:
            # Whether a child began there or went back to there: later steps of its ancestors are lost to it.
            boundary = min(boundary, told.lowest)
    return Goodput(seconds, attempts, unended)


@dataclass
class _Told:
    """What the events of one attempt come to.

    spent: the seconds by kind that the last of them tells. saved: step and seconds of steps of the checkpoints that it
    did not go back behind, ascending. lowest: the step that it began at, or went back to.
    """

    spent: Mapping[str, float] = field(default_factory=dict)
    saved: list[tuple[int, float]] = field(default_factory=list)
    lowest: float = float("inf")
    is_ended: bool = False

    def survived(self, boundary: float) -> float:
        """Return the seconds of the steps up to the newest checkpoint that is at most at `boundary`."""
        return max((one for one in self.saved if one[0] <= boundary), default=(0, 0.0))[1]


def _read(events: Events) -> _Told | None:
    told: _Told | None = None
    for row in events:
        told = told or _Told()
        event, step = row["event"], row["step"]
        told.spent = row.get("seconds", told.spent)
        told.is_ended |= event == "end"
        if event in ("start", "rolled_back"):
            told.lowest = min(told.lowest, step)
        if event == "rolled_back":
            while told.saved and told.saved[-1][0] > step:
                told.saved.pop()
        elif event == "saved" and "seconds" in row:
            while told.saved and told.saved[-1][0] >= step:
                told.saved.pop()
            told.saved.append((step, row["seconds"]["steps"]))
    return told
