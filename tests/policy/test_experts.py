"""Dead experts as stories of loads: starved for a hundred steps, ended at half of an equal share, router by router."""

import copy
import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.policy.alarms import AlarmState, update_alarms
from pretrain.policy.experts import DEAD_AFTER_STEPS, judge_experts, load_entropy

NAN, INF = math.nan, math.inf
derandomised = settings(derandomize=True, deadline=None, max_examples=60)


def load(*shares, router="r"):
    return {"load": {f"{router}.{number}": share for number, share in enumerate(shares)}}


def story(looks):
    """What a loop does with (step, values): return (step, state, subject) of every change, and what is known."""
    known, state, told = {}, AlarmState(), []
    for step, values in looks:
        raised = {(alarm.name, alarm.subject) for alarm in state.raised}
        seen, known = judge_experts(values, known, raised, step)
        changes, state = update_alarms(seen, step, state)
        told += [(step, change.state, change.seen.subject) for change in changes]
    return told, known


STARVED = {"experts r.0": (100.0,)}


@pytest.mark.parametrize(
    ("share", "step", "known", "raised", "is_out", "since"),
    [
        # A quarter of an equal share of four is 1/16.
        (0.0626, 200, STARVED, (), False, None),
        (0.0625, 200, STARVED, (), False, None),
        (0.0624, 200, STARVED, (), True, 100.0),
        (0.0624, 199, STARVED, (), False, 100.0),
        (0.0624, 201, STARVED, (), True, 100.0),
        (0.0624, 200, {}, (), False, 200.0),
        (0.0, 200, STARVED, (), True, 100.0),
        # Raised, it ends at half of an equal share.
        (0.1249, 500, STARVED, {("dead_expert", "r.0")}, True, 100.0),
        (0.125, 500, STARVED, {("dead_expert", "r.0")}, False, None),
        (0.1249, 500, STARVED, {("dead_expert", "r.1")}, False, None),
        (0.1249, 500, {}, {("dead_expert", "r.0")}, True, 500.0),
        # What is not a number tells nothing: neither that it starves nor that it works.
        (NAN, 200, STARVED, (), False, 100.0),
        (NAN, 200, {}, (), False, None),
        (INF, 200, STARVED, (), False, 100.0),
    ],
)
def test_an_expert_below_a_quarter_of_an_equal_share_is_dead_after_a_hundred_steps(
    share, step, known, raised, is_out, since
):
    seen, after = judge_experts(load(share, 0.3, 0.3, 0.4), known, raised, step)
    one = next(one for one in seen if one.subject == "r.0")
    assert (one.name, one.is_out) == ("dead_expert", is_out)
    assert one.threshold == (0.125 if ("dead_expert", "r.0") in raised else 0.0625)
    assert after.get("experts r.0") == (None if since is None else (since,))
    assert len(seen) == 4


@pytest.mark.parametrize(("every", "first"), [(1, 101), (20, 120), (30, 150), (100, 200), (1000, 2000)])
def test_a_collapse_is_told_at_the_first_look_a_hundred_steps_after_the_first_that_saw_it(every, first):
    told, _ = story((step, load(0.98, 0.01, 0.005, 0.005)) for step in range(every, 3001, every))
    assert told == [(first, "raised", f"r.{expert}") for expert in (1, 2, 3)]


def test_one_healthy_look_in_between_begins_the_hundred_steps_again():
    starved, healthy = load(0.01, 0.99), load(0.2, 0.8)
    looks = [(step, healthy if step == 100 else starved) for step in range(20, 400, 20)]
    told, _ = story(looks)
    assert told == [(220, "raised", "r.0")]


def test_a_dead_expert_that_hovers_about_the_threshold_is_one_alarm_and_ends_once():
    shares = [0.01] * 10 + [0.2, 0.1, 0.2, 0.24] * 10 + [0.3] * 3 + [0.2, 0.14] * 30
    told, known = story((20 * number, load(share, 1 - share)) for number, share in enumerate(shares, 1))
    assert told == [(120, "raised", "r.0"), (20 * 51, "cleared", "r.0")]
    assert known == {}


def test_a_load_that_is_balanced_but_for_chance_raises_nothing_in_a_thousand_looks():
    drawn, known = random.Random(9), {}
    for step in range(20, 20_020, 20):
        counts = [0] * 8
        for _ in range(64):
            counts[drawn.randrange(8)] += 1
        seen, known = judge_experts(load(*(count / 64 for count in counts)), known, (), step)
        assert not any(one.is_out for one in seen)
    assert len(known) <= 8


def test_routers_are_judged_by_their_own_number_of_experts():
    values = {"load": load(0.2, 0.8, router="a.b")["load"] | load(*[0.124] * 8, 0.008, router="a.c")["load"]}
    told, _ = story((step, values) for step in (20, 120))
    assert told == [(120, "raised", "a.c.8")]  # a fifth of two is no quarter's less, 0.008 of nine is
    (first, *_), _ = judge_experts(values, {}, (), 20)
    assert (first.subject, first.threshold) == ("a.b.0", 0.125)


@pytest.mark.parametrize("values", [{"load": {}}, load(1.0)])
def test_no_expert_and_a_single_one_raise_nothing(values):
    assert story((step, values) for step in range(20, 1000, 20)) == ([], {})


@pytest.mark.parametrize(
    ("shares", "entropy"),
    [
        ([0.25] * 4, 1.0),
        ([0.5, 0.5, 0.0, 0.0], 0.5),
        ([1.0, 0.0], 0.0),
        ([1.0], 1.0),
        ([0.9, 0.1], -(0.9 * math.log2(0.9) + 0.1 * math.log2(0.1))),
    ],
)
def test_the_entropy_of_a_load_is_a_share_of_that_of_equal_loads(shares, entropy):
    found = load_entropy({"load": load(*shares)["load"] | load(0.5, 0.5, router="q")["load"]})
    assert found == {"r": pytest.approx(entropy), "q": pytest.approx(1.0)}
    assert math.copysign(1.0, found["r"]) == 1.0  # minus nothing is nothing


def test_what_is_known_goes_through_json_and_back():
    _, known = judge_experts(load(0.0, 1.0), {"of another": (2.0, 3.0)}, (), 7)
    assert repr(known) == repr({"of another": (2.0, 3.0), "experts r.0": (7.0,)})  # a float, as all that is kept
    assert {k: tuple(v) for k, v in json.loads(json.dumps(known, allow_nan=False)).items()} == known


shares = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=5)


@derandomised
@given(st.lists(st.tuples(shares, st.integers(1, 200)), max_size=12), st.sets(st.sampled_from(["r.0", "r.3"])))
def test_any_floats_are_judged_without_a_change_of_what_was_given_and_little_is_kept(looks, dead):
    known, step, raised = {}, 0, {("dead_expert", subject) for subject in dead}
    for row, further in looks:
        step += further
        values = load(*row)
        before = copy.deepcopy((values, known))
        told = judge_experts(values, known, raised, step)
        assert repr(told) == repr(judge_experts(values, known, raised, step))
        load_entropy({"load": {name: abs(share) for name, share in values["load"].items() if math.isfinite(share)}})
        assert repr((values, known)) == repr(before)
        seen, known = told
        assert len(seen) == len(row)
        assert len(known) <= 5
        assert all(len(since) == 1 and since[0] <= step for since in known.values())
        for one in seen:
            if one.is_out and one.subject not in dead:
                assert step - known[f"experts {one.subject}"][0] >= DEAD_AFTER_STEPS
