"""Shares of domains as tables: what chance allows, for common domains and for rare ones, and where counts begin."""

import copy
import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.policy.mixture import add_counts, judge_mixture

derandomised = settings(derandomize=True, deadline=None, max_examples=60)


def judged(counts, expected, raised=()):
    return judge_mixture(expected, add_counts(counts, {}), raised)


def out(seen):
    return [one.subject for one in seen if one.is_out]


def test_counts_are_added_up_until_the_look_and_begin_again_after_it():
    known = add_counts({"a": 3, "b": 1}, {"of another": (5.0,)})
    known = add_counts({"a": 1, "b": 0}, known)
    assert known == {"of another": (5.0,), "mixture a": (4.0,), "mixture b": (1.0,)}
    shares, _, after = judge_mixture({"a": 0.5, "b": 0.5}, known, ())
    assert (shares, after) == ({"a": 0.8, "b": 0.2}, {"of another": (5.0,)})
    assert judge_mixture({"a": 0.5, "b": 0.5}, after, ()) == ({}, (), after)


@pytest.mark.parametrize(
    ("total", "expected", "allowed"),
    [
        # Five standard deviations, and 25/6 of a sample.
        (10_000, 0.5, 5 * 0.005 + 25 / 6 / 10_000),
        (10_000, 0.1, 5 * 0.003 + 25 / 6 / 10_000),
        (100, 0.5, 5 * 0.05 + 25 / 6 / 100),
        (10**9, 0.5, 0.005),  # a drift of less says nothing, however sure it is
        (1, 0.5, 2.5 + 25 / 6),
    ],
)
def test_a_share_may_be_off_by_what_chance_allows_and_comes_back_to_three_fifths_of_it(total, expected, allowed):
    for raised, limit in (((), allowed), ({("mixture_drift", "a")}, 0.6 * allowed)):
        for off in (-1.001, -0.999, 0.0, 0.999, 1.001):
            # Counts are whole in a run; here they say to the point where the threshold is.
            known = {
                "mixture a": (total * (expected + off * limit),),
                "mixture b": (total * (1 - expected - off * limit),),
            }
            shares, seen, _ = judge_mixture({"a": expected, "b": 1 - expected}, known, raised)
            assert shares["a"] == pytest.approx(expected + off * limit)
            assert (seen[0].name, seen[0].subject) == ("mixture_drift", "a")
            assert seen[0].threshold == pytest.approx(limit)
            assert seen[0].value == pytest.approx(abs(off) * limit)
            assert seen[0].is_out is (abs(off) > 1)


@pytest.mark.parametrize("total", [1000, 10**7])
def test_a_raised_drift_does_not_come_and_go_at_the_threshold(total):
    expected = {"a": 0.5, "b": 0.5}
    _, (seen, _), _ = judged({"a": total // 2, "b": total // 2}, expected)
    near = [math.ceil(total * (0.5 + seen.threshold * factor)) for factor in (1.01, 0.99)]
    drifts = [{"a": count, "b": total - count} for count in near]
    assert [out(judged(counts, expected)[1]) for counts in drifts] == [["a", "b"], []]
    raised = {("mixture_drift", "a"), ("mixture_drift", "b")}
    assert [out(judged(counts, expected, raised)[1]) for counts in drifts] == [["a", "b"]] * 2


@pytest.mark.parametrize(
    ("counts", "expected", "drifted"),
    [
        ({"a": 1000}, {"a": 1.0}, []),  # one domain is all of it
        ({"a": 1000, "b": 0}, {"a": 1.0, "b": 0.0}, []),
        ({"a": 900, "b": 100}, {"a": 1.0, "b": 0.0}, ["a", "b"]),  # what should not be there at all
        ({"a": 1000, "b": 0}, {"a": 0.9, "b": 0.1}, ["a", "b"]),  # what should be there
        ({"a": 1000}, {"a": 0.9, "b": 0.1}, ["a", "b"]),
        ({"a": 500, "b": 400, "c": 100}, {"a": 0.5, "b": 0.3, "c": 0.2}, ["b", "c"]),
        ({"a": 1, "b": 0}, {"a": 0.5, "b": 0.5}, []),  # a few say nothing
        ({"a": 10, "b": 0}, {"a": 0.5, "b": 0.5}, []),
        ({}, {"a": 0.5, "b": 0.5}, []),
        ({}, {}, []),
    ],
)
def test_domains_that_drift_are_named(counts, expected, drifted):
    _, seen, _ = judged(counts, expected)
    assert out(seen) == drifted


@pytest.mark.parametrize("rare", [1e-5, 1e-4, 1e-3, 1e-2, 0.3])
@pytest.mark.parametrize("total", [100, 400, 3200])
def test_chance_raises_less_than_one_false_alarm_in_ten_thousand_looks_for_a_rare_domain_too(rare, total):
    _, seen, _ = judged({"a": total, "b": 0}, {"a": 1 - rare, "b": rare})
    least = rare + seen[1].threshold
    count = math.floor(least * total) + 1
    chance = sum(
        math.exp(
            math.lgamma(total + 1)
            - math.lgamma(k + 1)
            - math.lgamma(total - k + 1)
            + k * math.log(rare)
            + (total - k) * math.log1p(-rare)
        )
        for k in range(count, min(total, count + 400))
    )
    assert chance < 1e-4 / 2


def test_draws_of_a_mixture_of_common_and_rare_domains_raise_nothing_in_a_thousand_looks():
    drawn, expected = random.Random(11), {"a": 0.9, "b": 0.0985, "c": 0.0015}
    for _ in range(1000):
        picked = drawn.choices(list(expected), list(expected.values()), k=200)
        _, seen, _ = judged({name: picked.count(name) for name in expected}, expected)
        assert not out(seen)


def test_what_is_known_goes_through_json_and_back():
    known = add_counts({"a": 2**40, "b": 0}, {})
    assert {k: tuple(v) for k, v in json.loads(json.dumps(known, allow_nan=False)).items()} == known
    assert all(type(count) is float for (count,) in known.values())


@derandomised
@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 10**12)), max_size=6),
    st.lists(st.integers(1, 10**6), min_size=3, max_size=3),
    st.sets(st.tuples(st.just("mixture_drift"), st.sampled_from("abc"))),
)
def test_any_counts_are_judged_without_a_change_of_what_was_given_and_nothing_of_them_is_kept(steps, sizes, raised):
    expected, known = {name: size / sum(sizes) for name, size in zip("abc", sizes, strict=True)}, {}
    for counts in steps:
        before = copy.deepcopy((counts, known))
        after = add_counts(counts, known)
        assert (counts, known) == before
        known = after
        assert len(known) <= 3
    before = dict(known)
    told = judge_mixture(expected, known, raised)
    assert told == judge_mixture(expected, known, raised)
    assert known == before
    assert told[2] == {}
    assert math.isclose(sum(told[0].values()), 1.0) or not told[0]
