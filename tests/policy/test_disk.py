"""How much of a disk a run will need, as tables."""

import pytest

from pretrain.policy.disk import Looks, is_short, need_of

RUN = {
    "checkpoint_bytes": 1_000_000,
    "kept": 3,
    "steps": 1000,
    "checkpoint_every": 100,
    "validate_every": 100,
    "domains": 1,
}


def test_checkpoints_and_the_one_that_is_being_saved() -> None:
    need, more = need_of(**RUN), need_of(**{**RUN, "kept": 4})
    assert need.checkpoints == 4
    assert need.bytes > 4 * 1_000_000
    assert 1_000_000 < more.bytes - need.bytes < 1_030_000  # whole blocks, the record, the folder
    assert more.files - need.files == 3


@pytest.mark.parametrize(
    ("change", "at_least", "at_most"),
    [
        ({"steps": 2000}, 200 * 1000, 400 * 1000),
        ({"domains": 3}, 2 * 11 * 400, 2 * 11 * 2000),
        ({"prefix_bytes": 12345}, 12345, 12345),
        ({"csv_cells": 0}, 200 * 1000, 400 * 1000),
        ({"csv_cells": 10}, 400 * 1000, 900 * 1000),
        ({"monitors": [Looks(10, 20)]}, 100 * 20 * 30, 100 * 20 * 80),
        ({"monitors": [Looks(0, 20), Looks(1001, 20)]}, 0, 0),
        ({"checkpoint_bytes": 1_000_001}, 0, 4 * 4096),
    ],
)
def test_rows(change: dict[str, object], at_least: int, at_most: int) -> None:
    more = need_of(**{**RUN, **change}).bytes - need_of(**RUN).bytes
    assert at_least <= more <= at_most


def test_a_child_at_its_last_step_needs_a_checkpoint_all_the_same() -> None:
    assert need_of(**{**RUN, "steps": 1, "kept": 1}).bytes > 2_000_000


@pytest.mark.parametrize(
    ("needed", "free", "short"), [(10, 9, True), (10, 10, False), (10, 11, False), (10, None, False)]
)
def test_is_short(needed: int, free: int | None, short: bool) -> None:
    assert is_short(needed, free) is short
