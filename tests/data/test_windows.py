"""Counting windows, spans and strides, as tables of plain values."""

import pytest

from pretrain.data.windows import checked_span, checked_stride, count_windows, cut
from pretrain.errors import DataError


@pytest.mark.parametrize(
    ("elements", "length", "stride", "windows", "remainder"),
    [
        (0, 4, 4, 0, 0),
        (3, 4, 4, 0, 3),
        (4, 4, 4, 1, 0),
        (5, 4, 4, 1, 1),
        (7, 4, 4, 1, 3),
        (8, 4, 4, 2, 0),
        (9, 5, 4, 2, 0),  # text: length = sequence_length + 1
        (10, 5, 4, 2, 1),
        (10, 4, 1, 7, 0),
        (10, 4, 5, 2, 2),  # one element between the windows, one after
        (12, 4, 5, 2, 4),
        (13, 4, 9, 2, 5),
    ],
)
def test_count(elements, length, stride, windows, remainder):
    count = count_windows(elements, length, stride)
    assert (count.windows, count.remainder) == (windows, remainder)


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("stride", [1, 2, 3, 7])
def test_count_against_marking_every_element(length, stride):
    for elements in range(30):
        covered, windows, begin = set(), 0, 0
        while begin + length <= elements:
            covered.update(range(begin, begin + length))
            windows, begin = windows + 1, begin + stride
        count = count_windows(elements, length, stride)
        assert (count.windows, count.remainder) == (windows, elements - len(covered))


@pytest.mark.parametrize("total", [0, 1, 7, 10, 1000, 466_195, 10**12 + 1])
@pytest.mark.parametrize("edge", [0.1, 0.29, 1 / 3, 0.5, 0.9, 0.999])
def test_spans_that_meet_share_nothing_and_leave_nothing_out(total, edge):
    first, second = cut((0.0, edge), total), cut((edge, 1.0), total)
    assert first[0] == 0
    assert first[1] == second[0]
    assert second[1] == total


@pytest.mark.parametrize(
    "span",
    [(0.5, 0.5), (0.9, 0.1), (-0.1, 0.5), (0.0, 1.1), (0.0, float("nan")), (float("inf"), 1.0), (0.0,), (0, 1, 1)],
)
def test_spans_that_are_none(span):
    with pytest.raises(DataError, match=r"data domain speech: expected a span"):
        checked_span("speech", span)


def test_stride():
    assert checked_stride("speech", None, 128) == 128
    assert checked_stride("speech", 1, 128) == 1
    with pytest.raises(DataError, match="data domain speech: expected a stride of at least 1 or null, found 0"):
        checked_stride("speech", 0, 128)
    with pytest.raises(DataError, match="sequence_length of at least 1, found 0"):
        checked_stride("speech", None, 0)
