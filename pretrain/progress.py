"""One number that grows with everything this process gets done, which is all that a watchdog looks at."""

_count = 0


def moved() -> None:
    """Something is done: a step, a micro-batch, a block of a file written or read, a look at a sensor.

    Called from several threads at once; that one of two may be lost is no matter, for the number differs all the same.
    """
    global _count
    _count += 1


def count() -> int:
    """Return the number; two that are equal, some time apart, say that nothing was done in between."""
    return _count
