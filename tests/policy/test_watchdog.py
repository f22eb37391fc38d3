"""What a watchdog makes of a number and a clock."""

import pytest

from pretrain.policy.watchdog import Watch, is_stalled, look, nap_seconds

TIMEOUT = 60.0


def seen(*looks: tuple[float, int]) -> Watch:
    """Return the watch after looks at (time, progress), the first of which begins it."""
    (now, progress), *others = looks
    watch = Watch(progress, now, now)
    for now, progress in others:
        watch = look(watch, progress, now, TIMEOUT)
    return watch


def every_second(begin: int, end: int, progress: int) -> list[tuple[float, int]]:
    return [(float(now), progress) for now in range(begin, end)]


@pytest.mark.parametrize(("timeout", "nap"), [(0.5, 0.05), (5, 0.5), (10, 1), (86400, 1)])
def test_it_looks_ten_times_in_its_timeout_and_at_least_every_second(timeout: float, nap: float) -> None:
    assert nap_seconds(timeout) == nap


@pytest.mark.parametrize(
    ("looks", "stalled"),
    [
        (every_second(0, 60, 5), False),  # 59 s
        (every_second(0, 61, 5), True),
        ([*every_second(0, 60, 5), *every_second(60, 120, 6)], False),
        ([*every_second(0, 60, 5), *every_second(60, 121, 6)], True),
        # What counts is that the number is another one.
        ([*every_second(0, 60, 5), *every_second(60, 120, 4)], False),
        # A day without a look, and a minute but a second after it: the process slept, and begins anew.
        ([*every_second(0, 60, 5), *every_second(86400, 86460, 5)], False),
        ([*every_second(0, 60, 5), *every_second(86400, 86461, 5)], True),
        # Looks that come somewhat late are those of a machine that has much to do, and count.
        ([(float(now), 5) for now in range(0, 61, 4)], True),
        ([(float(now), 5) for now in range(0, 600, 5)], False),
        ([(0.0, 5)], False),
    ],
)
def test_when_a_run_is_taken_to_hang(looks: list[tuple[float, int]], stalled: bool) -> None:
    assert is_stalled(seen(*looks), TIMEOUT) is stalled
