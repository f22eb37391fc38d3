"""When a run is taken to hang: nothing has moved for so long, while the one that watches was awake."""

from dataclasses import dataclass

# A look that comes later than this many naps after the one before: the process was not there to move anything.
_NAPS_OF_A_SLEEP = 4


@dataclass(frozen=True)
class Watch:
    """What a watchdog remembers.

    progress: the number seen last. since: when it was first seen, or when the watch began anew. looked_at: the last
    look. All in seconds of one clock that does not go back.
    """

    progress: int
    since: float
    looked_at: float


def nap_seconds(timeout_seconds: float) -> float:
    """Return how long a watchdog sleeps between two looks: often enough for its timeout, and never busy."""
    return min(1.0, timeout_seconds / 10)


def look(watch: Watch, progress: int, now: float, timeout_seconds: float) -> Watch:
    """Return the watch after one look.

    A full period begins with every progress, and after a sleep of the whole process: a suspended job and a closed
    laptop did not hang, and what they wait for afterwards has as long as ever to come back.
    """
    slept = now - watch.looked_at > _NAPS_OF_A_SLEEP * nap_seconds(timeout_seconds)
    since = now if slept or progress != watch.progress else watch.since
    return Watch(progress, since, now)


def is_stalled(watch: Watch, timeout_seconds: float) -> bool:
    """Whether nothing has moved for as long as the timeout."""
    return watch.looked_at - watch.since >= timeout_seconds
