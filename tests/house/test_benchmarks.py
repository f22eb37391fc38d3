"""The benchmarks time what the loop calls, by name: a name that has moved is found here and not by `make bench`."""

import pytest

from benchmarks import added_work, guard_cost, monitor_cost


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (owner, name)
        for _, owner, name in (
            *(*added_work._SAME, *added_work._OURS, *added_work._ADDED),
            *(*guard_cost.PIECES, guard_cost.COPIES, *guard_cost._CHECKPOINT),
            *monitor_cost.PIECES,
        )
    ],
)
def test_what_is_timed_is_there(owner: object, name: str) -> None:
    assert callable(getattr(owner, name))
