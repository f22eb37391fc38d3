"""What the wall time of a run went to, read from the events of its attempts."""

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from pretrain.errors import IntegrityError, StorageError
from pretrain.evidence import events, namespace
from pretrain.evidence.namespace import Parent
from pretrain.policy.goodput import Events, Goodput, add_up


def goodput_of(run_dir: Path, number: int) -> Goodput:
    """Return the goodput of attempt `number` and of every attempt of the run before it.

    One that is no ancestor was killed before its first checkpoint, or was left for another branch: all of its steps
    are undone here. What was removed or cannot be read is left out.
    """
    lineage = []
    above: int | None = number
    while above is not None:
        lineage.append(above)
        folder, above = namespace.attempt_folder(run_dir, above), None
        with contextlib.suppress(IntegrityError, StorageError):
            parent = Parent.parse(namespace.read_environment(folder)["parent"], str(folder))
            above = None if parent is None or parent.attempt in lineage else parent.attempt
    others: list[int] = []
    with contextlib.suppress(IntegrityError, OSError):
        others = [one for one in namespace.list_attempts(run_dir) if one < number and one not in lineage]
    return add_up(_events_of(run_dir, lineage), _events_of(run_dir, others))


def _events_of(run_dir: Path, numbers: Iterable[int]) -> list[Events]:
    """Return the events of these attempts, each of which is opened when its turn to be read comes."""
    return [events.read_events(namespace.attempt_folder(run_dir, number)) for number in numbers]


def time_lines(run_dir: Path, number: int, seconds: Mapping[str, float]) -> tuple[str, ...]:
    """Return what this attempt, and the run where it has more than one, spent its time on, a line for each."""
    run = goodput_of(run_dir, number)
    lines = [f"time of this attempt {_shares(Goodput(seconds))}"]
    if run.attempts > 1:
        killed = f", {run.unended} killed and counted up to the last checkpoint" if run.unended else ""
        lines.append(f"time of the run, {run.attempts} attempts{killed}, {_shares(run)}")
    return tuple(lines)


def _shares(spent: Goodput) -> str:
    total = spent.total or 1.0
    rest = {kind: value for kind, value in spent.seconds.items() if kind != "steps" and value >= 0.0005 * total}
    parts = [f"{kind.replace('_', '-')} {rest[kind] / total:.1%}" for kind in sorted(rest, key=rest.__getitem__)[::-1]]
    return ", ".join([f"{spent.total:.1f} s: {spent.share:.1%} in steps that count", *parts])
