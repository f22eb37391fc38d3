"""Goodput: the share of the wall time of a run that made steps which survived, and where the rest went."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Events = Sequence[Mapping[str, Any]]


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
    """Add up what the events of attempts say.

    lineage: the youngest attempt first; what a child did not go on from is undone. aside: attempts of the run that are
    no ancestors of it, of which nothing survived. A killed attempt says nothing after its last checkpoint.
    """
    boundary: float = float("inf")
    seconds: dict[str, float] = {}
    unended = 0
    for events, is_ancestor in [*((one, True) for one in lineage), *((one, False) for one in aside)]:
        told = [row["seconds"] for row in events if "seconds" in row]
        spent = dict(told[-1]) if told else {}
        survived = _survived(events, boundary) if is_ancestor else 0.0
        spent["undone"] = spent.get("undone", 0.0) + spent.get("steps", 0.0) - survived
        spent["steps"] = survived
        for kind, value in spent.items():
            seconds[kind] = seconds.get(kind, 0.0) + value
        unended += not any(row["event"] == "end" for row in events)
        if is_ancestor:
            # Whether a child began there or went back to there: later steps of its ancestors are lost to it.
            places = [row["step"] for row in events if row["event"] in ("start", "rolled_back")]
            boundary = min([boundary, *places])
    return Goodput(seconds, len(lineage) + len(aside), unended)


def _survived(events: Events, boundary: float) -> float:
    """Return the seconds of the steps up to the newest checkpoint that is at most at `boundary`."""
    at: dict[int, float] = {}
    for row in events:
        if row["event"] == "saved" and "seconds" in row:
            at[row["step"]] = row["seconds"]["steps"]
        elif row["event"] == "rolled_back":
            at = {step: seconds for step, seconds in at.items() if step <= row["step"]}
    kept = [step for step in at if step <= boundary]
    return at[max(kept)] if kept else 0.0
