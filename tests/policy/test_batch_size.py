"""How a batch grows: a table, and what holds for every warmup."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.policy.batch_size import micro_batches_at


@pytest.mark.parametrize(
    ("full", "warmup", "table"),
    [
        (4, None, {0: 4, 10: 4}),
        (4, 40, {0: 1, 9: 1, 10: 2, 19: 2, 20: 3, 29: 3, 30: 4, 39: 4, 40: 4, 10**9: 4}),
        (4, 2, {0: 1, 1: 3, 2: 4}),  # fewer samples than numbers: some are left out
        (1, 40, {0: 1, 39: 1, 40: 1}),
        (3, 10, {0: 1, 3: 1, 4: 2, 6: 2, 7: 3, 10: 3}),
    ],
)
def test_the_table(full: int, warmup: int | None, table: dict[int, int]) -> None:
    assert {position: micro_batches_at(0, position, full, warmup) for position in table} == table
    assert {micro_batches_at(1, position, full, warmup) for position in table} == {full}


@settings(derandomize=True, deadline=None, max_examples=200)
@given(full=st.integers(1, 64), warmup=st.integers(1, 5000))
def test_it_never_shrinks_and_each_number_has_an_equal_share(full: int, warmup: int) -> None:
    sizes = [micro_batches_at(0, position, full, warmup) for position in range(warmup + 2)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 1
    assert sizes[warmup:] == [full, full]
    shares = [sizes[:warmup].count(number) for number in range(1, full + 1)]
    assert all(abs(share - warmup / full) < 1 for share in shares)
