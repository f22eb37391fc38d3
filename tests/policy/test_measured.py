"""A measure against its own past, as tables: when it stands out, what is remembered, and how an alarm ends."""

import math
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.policy.alarms import Observation
from pretrain.policy.measured import WARMUP_STEPS, against_past

NAN, INF = math.nan, math.inf
# Any step behind the first hundred.
LATE = WARMUP_STEPS + 1
RAISED = {("wide", "a")}
derandomised = settings(derandomize=True, deadline=None, max_examples=80)


def judge(value, past, raised=(), factor=16.0):
    return against_past("wide", "a", value, "key", {"key": tuple(past)}, raised, step=LATE, factor=factor)


def looks(values, factor=16.0):
    """Judge one value after the other; return the number of each look that stands out, and what is known then."""
    known, raised, out = {}, set(), []
    for number, value in enumerate(values):
        seen, known["key"] = against_past("wide", "a", value, "key", known, raised, step=LATE, factor=factor)
        if seen and seen[0].is_out:
            out.append(number)
            raised = RAISED
        elif seen and math.isfinite(value):
            raised = set()
    return out, known["key"]


@pytest.mark.parametrize(
    ("past", "value", "raised", "allowed", "is_out"),
    [
        ([2.0] * 5, 31.9, (), 32.0, False),
        ([2.0] * 5, 32.0, (), 32.0, False),
        ([2.0] * 5, 32.1, (), 32.0, True),
        # Raised, it ends below the root of the factor.
        ([2.0] * 5, 8.1, RAISED, 8.0, True),
        ([2.0] * 5, 8.0, RAISED, 8.0, False),
        ([2.0] * 5, 7.9, RAISED, 8.0, False),
        # The alarm of another name or of another subject is none of its business.
        ([2.0] * 5, 8.1, {("wide", "b"), ("wide", None), ("narrow", "a")}, 32.0, False),
        # The median: a spike among the first looks does not hide the next.
        ([2.0, 2.0, 2.0, 1e9, 1e9], 32.1, (), 32.0, True),
        ([1.0, 1.0, 1.0, 3.0, 3.0, 3.0], 32.1, (), 32.0, True),
        # Nothing at all before: a positive value stands out, another nothing does not.
        ([0.0] * 5, 0.0, (), 1.6e-29, False),
        ([0.0] * 5, 1e-28, (), 1.6e-29, True),
        ([2.0] * 5, 0.0, (), 32.0, False),
        ([2.0] * 5, -5.0, (), 32.0, False),
        ([1e308] * 6, 1.7e308, (), INF, False),
    ],
)
def test_a_value_stands_out_beyond_so_many_times_the_median_of_its_past(past, value, raised, allowed, is_out):
    (seen,), after = judge(value, past, raised)
    assert (seen.name, seen.is_out, seen.value, seen.subject) == ("wide", is_out, value, "a")
    assert seen.threshold == pytest.approx(allowed)
    assert after == (tuple(past) if is_out else (*past, value))


@pytest.mark.parametrize("known", range(5))
@pytest.mark.parametrize("value", [0.0, 1.0, 1e300])
def test_fewer_than_five_looks_are_too_few_to_compare_with(known, value):
    assert judge(value, [1.0] * known) == ((), (*[1.0] * known, value))


@pytest.mark.parametrize("known", [0, 4, 5, 16])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_what_is_not_finite_neither_stands_out_nor_is_remembered(known, value):
    for raised in ((), RAISED):
        (seen,), after = judge(value, [1.0] * known, raised)
        assert (seen.is_out, seen.subject, after) == (False, "a", (1.0,) * known)
        assert math.isfinite(seen.value) is False


def test_sixteen_looks_are_remembered_and_the_oldest_goes_first():
    _, after = judge(17.0, [float(number) for number in range(1, 17)])
    assert after == tuple(float(number) for number in range(2, 18))
    out, known = looks([1.0] * 1000)
    assert (out, known) == ([], (1.0,) * 16)


def test_another_key_is_not_read():
    assert against_past("wide", "a", 99.0, "key", {"other": (1.0,) * 9}, (), step=LATE, factor=2.0) == ((), (99.0,))


def test_a_raised_alarm_does_not_come_and_go_at_the_threshold():
    values = [1.0] * 10 + [17.0, 15.0] * 20 + [4.1, 3.9, 15.0, 3.9]
    out, known = looks(values)
    assert out == [*range(10, 50), 50]  # 15 alone, once it has ended, raises nothing again
    assert known == (*(1.0,) * 10, 3.9, 15.0, 3.9)


def test_what_stands_out_never_becomes_the_past():
    out, known = looks([1.0] * 10 + [100.0] * 500)
    assert (out, known) == (list(range(10, 510)), (1.0,) * 10)


@pytest.mark.parametrize(
    ("growth", "factor", "first"),
    [
        # Over eight and a half looks, half of what is remembered, it may grow by the factor: 1.386 a look for 16.
        (1.02, 16.0, None),
        (1.2, 16.0, None),
        (1.38, 16.0, None),
        (1.40, 16.0, 16),
        (1.5, 16.0, 13),
        (2.0, 16.0, 8),  # at 7 it is sixteen times the median, and not more
        (3.0, 16.0, 5),
        (1.27, 8.0, None),
        (1.29, 8.0, 16),
        (2.0, 8.0, 6),
    ],
)
def test_slow_growth_is_healthy_and_an_exponential_one_is_seen_after_so_many_looks(growth, factor, first):
    out, _ = looks([0.1 * growth**number for number in range(200)], factor)
    assert (out[0] if out else None) == first
    if first is not None:
        assert out == list(range(first, 200))


@derandomised
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=40),
    st.sampled_from([(), RAISED]),
    st.sampled_from([2.0, 8.0, 16.0]),
)
def test_any_floats_are_judged_alike_each_time_and_at_most_sixteen_are_kept(values, raised, factor):
    known = {}
    for value in values:
        before = dict(known)
        seen, after = judge(value, known.get("key", ()), raised, factor)
        # By their text, since a NaN is not equal to itself.
        assert repr(judge(value, known.get("key", ()), raised, factor)) == repr((seen, after))
        assert known == before
        for one in seen:
            assert isinstance(one, Observation)
            if one.is_out:
                scale = math.sqrt(factor) if raised else factor
                assert value > max(median(before["key"]), 1e-30) * scale
                assert after == before["key"]
        assert len(after) <= 16
        assert all(math.isfinite(number) for number in after)
        known = {"key": after}


@pytest.mark.parametrize(("step", "judged"), [(1, False), (WARMUP_STEPS, False), (WARMUP_STEPS + 1, True)])
def test_in_the_first_hundred_steps_nothing_is_judged_and_all_is_remembered(step: int, judged: bool) -> None:
    past = (1.0,) * 9
    seen, after = against_past("wide", "a", 1000.0, "key", {"key": past}, (), step=step, factor=2.0)
    assert [one.is_out for one in seen] == ([True] if judged else [])
    assert after == (past if judged else (*past, 1000.0))
