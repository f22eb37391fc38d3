"""Alarms of layers as tables: one block against the others, outputs against their past, attention against limits."""

import copy
import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.policy.layers import (
    ACTIVATION_FACTOR,
    BLOCK_FACTOR,
    LARGEST_ACTIVATION,
    LARGEST_LOGIT,
    LEAST_ENTROPY,
    judge_activations,
    judge_attention,
    judge_blocks,
)
from pretrain.policy.measured import WARMUP_STEPS

NAN, INF = math.nan, math.inf
LATE = WARMUP_STEPS + 1
derandomised = settings(derandomize=True, deadline=None, max_examples=60)


def norms(gradients, updates=None, parameters=None):
    """What the monitor of blocks measures, the rest included, which no rule reads."""
    values = {"gradient_norm": dict(enumerated(gradients), rest=1e9)}
    values["parameter_norm"] = dict(enumerated(parameters or [1.0] * len(gradients)), rest=NAN)
    if updates is not None:
        values["update_norm"] = dict(enumerated(updates), rest=INF)
    return values


def enumerated(values):
    return ((f"b{number}", value) for number, value in enumerate(values))


def out(seen):
    return [(one.name, one.subject) for one in seen if one.is_out]


def blocks_after(history, raised=(), known=None):
    """Judge one measurement after the other; return what stands out in the last, and what is known then."""
    known, seen = known or {}, ()
    for values in history:
        seen, known = judge_blocks(
            values, known, raised, LATE, tuple(f"b{n}" for n in range(len(values["gradient_norm"]) - 1))
        )
    return seen, known


HEALTHY = [norms([1.0, 2.0, 3.0, 4.0], [0.1, 0.1, 0.1, 0.1])] * 6


@pytest.mark.parametrize(
    ("gradients", "expected"),
    [
        ([1.0, 2.0, 3.0, 4.0], []),
        # The median of the others, by logarithms, is that of 2 and 4 for the third: 2.9 before, 2.9 now.
        ([1.0, 2.0, 3.0 * 15.9, 4.0], []),
        ([1.0, 2.0, 3.0 * 16.1, 4.0], ["high b2"]),
        ([1.0, 2.0, 3.0 / 15.9, 4.0], []),
        # One over all others does not make the others fall behind, nor does one that is gone make them leave it.
        ([1.0, 2.0, 3e7, 4.0], ["high b2"]),
        ([1.0, 2.0, 0.0, 4.0], ["low b2"]),
        ([1.0, 0.0, 3.0, 4.0], ["low b1"]),
        # All together are nothing here.
        ([1e6, 2e6, 3e6, 4e6], []),
        ([1e-6, 2e-6, 3e-6, 4e-6], []),
        ([0.0, 0.0, 0.0, 0.0], []),
        # Where one is not finite, nothing is compared with it.
        ([1.0, 2.0, NAN, 4e9], []),
        ([1.0, 2.0, INF, 4e9], []),
    ],
)
def test_a_block_that_leaves_the_others_behind_or_stays_behind(gradients, expected):
    seen, _ = blocks_after([*HEALTHY, norms(gradients, [0.1] * 4)])
    assert out(seen) == [(f"block_gradient_{side}", name) for side, name in (one.split() for one in expected)]


@pytest.mark.parametrize("size", [2, 4, 5, 12])
@pytest.mark.parametrize(("factor", "sides"), [(15.9, ()), (16.1, ("high",)), (1 / 15.9, ()), (1 / 16.1, ("low",))])
def test_the_threshold_is_sixteen_times_how_a_block_stood_to_the_others(size, factor, sides):
    seen, _ = blocks_after([*[norms([1.0] * size)] * 6, norms([factor, *[1.0] * (size - 1)])])
    expected = {(f"block_gradient_{side}", "b0") for side in sides}
    if size == 2:  # of two, the one is over the other as the other is under the one
        expected |= {(f"block_gradient_{'low' if side == 'high' else 'high'}", "b1") for side in sides}
    assert set(out(seen)) == expected


@pytest.mark.parametrize(
    ("updates", "parameters", "expected"),
    [
        ([0.1, 0.1, 0.1, 0.1], None, []),
        ([1.59, 0.1, 0.1, 0.1], None, []),
        ([1.61, 0.1, 0.1, 0.1], None, ["b0"]),
        ([0.1, 0.1, 0.1, 0.1], [1.0, 1.0, 1 / 16.1, 1.0], ["b2"]),  # over the weights themselves
        ([1.61, 0.1, 0.1, 0.1], [2.0, 1.0, 1.0, 1.0], []),
        ([0.0, 0.1, 0.1, 0.1], None, []),  # only upward
        ([1.6, 1.6, 1.6, 1.6], None, []),
        ([0.0, 0.0, 0.0, 0.0], None, []),
        ([0.1, 0.1, 0.1, 0.1], [0.0, 1.0, 1.0, 1.0], ["b0"]),
        ([NAN, 0.1, 0.1, 9.0], None, []),
        ([0.1, 0.1, 0.1, 9.0], [1.0, NAN, 1.0, 1.0], []),
    ],
)
def test_the_update_of_a_block_is_judged_over_its_weights(updates, parameters, expected):
    seen, _ = blocks_after([*HEALTHY, norms([1.0, 2.0, 3.0, 4.0], updates, parameters)])
    assert out(seen) == [("block_update_high", name) for name in expected]


def test_updates_that_were_not_measured_are_not_judged_and_what_is_known_of_them_stays():
    _, before = blocks_after(HEALTHY)
    seen, after = blocks_after([norms([1.0, 2.0, 3.0, 4.0])], known=before)
    assert {one.name for one in seen} == {"block_gradient_high", "block_gradient_low"}
    key = "blocks block_update_high b0"
    assert after[key] == before[key]


@pytest.mark.parametrize("blocks", [(), ("b0",)])
def test_one_block_alone_has_nothing_to_stand_out_from(blocks):
    seen, known = (), {}
    for value in [1.0] * 8 + [1e9]:
        seen, known = judge_blocks(norms([value], [value]), known, (), LATE, blocks)
    assert (seen, known) == ((), {})


def test_a_raised_block_ends_below_four_times_and_does_not_flap_in_between():
    raised = {("block_gradient_high", "b0")}
    for factor, is_out in ((15.0, True), (4.1, True), (3.9, False)):
        seen, _ = blocks_after(HEALTHY)[1], None
        found, _ = judge_blocks(norms([factor, 2.0, 3.0, 4.0]), seen, raised, LATE, ("b0", "b1", "b2", "b3"))
        assert (("block_gradient_high", "b0") in out(found)) is is_out
        assert ("block_gradient_low", "b0") not in out(found)


def test_blocks_that_drift_apart_slowly_raise_nothing_and_an_exponential_one_does():
    for growth, first in ((1.05, None), (1.3, None), (2.0, 8)):
        known, told = {}, []
        for look in range(100):
            values = norms([min(growth**look, 1e25), 1.0, 1.0, 1.0])
            seen, known = judge_blocks(values, known, (), LATE, ("b0", "b1", "b2", "b3"))
            told += [(look, *one) for one in out(seen)]
        assert (told[0] if told else None) == (None if first is None else (first, "block_gradient_high", "b0"))


def test_noise_of_a_healthy_run_raises_nothing():
    drawn = random.Random(5)
    history = (norms(*[[drawn.lognormvariate(0, 0.4) for _ in range(6)] for _ in range(2)]) for _ in range(1000))
    known = {}
    for values in history:
        seen, known = judge_blocks(values, known, (), LATE, tuple(f"b{number}" for number in range(6)))
        assert not out(seen)
    assert {len(past) for past in known.values()} == {16}
    assert len(known) == 18


def shape(rms, largest=1.0):
    return {"rms": {"b0": rms, "b1": 1.0}, "largest": {"b0": largest, "b1": 1.0}}


def activations_after(values, known=None, raised=(), precision="float32"):
    known, seen = known or {}, ()
    for one in values:
        seen, known = judge_activations(one, known, raised, LATE, precision)
    return seen, known


@pytest.mark.parametrize(
    ("rms", "raised", "is_out"),
    [
        (15.9, (), False),
        (16.0, (), False),
        (16.1, (), True),
        (5.7, {("activation_explosion", "b0")}, True),  # sqrt(8) = 2.83 times 2
        (5.6, {("activation_explosion", "b0")}, False),
        (5.7, {("activation_explosion", "b1")}, False),
        (0.0, (), False),
        (NAN, (), False),
        (INF, (), False),
    ],
)
def test_an_output_explodes_beyond_eight_times_its_past(rms, raised, is_out):
    _, known = activations_after([shape(2.0)] * 6)
    seen, after = activations_after([shape(rms)], known, raised)
    assert out(seen) == [("activation_explosion", "b0")] * is_out
    assert len(after["activations b0"]) == (6 if is_out or not math.isfinite(rms) else 7)


@pytest.mark.parametrize(
    ("growth", "first"), [(1.001, None), (1.01, None), (1.25, None), (1.29, 16), (1.5, 10), (2.0, 6)]
)
def test_activations_that_grow_slowly_are_healthy_and_an_explosion_is_seen_looks_ahead_of_the_overflow(growth, first):
    known, told, overflow = {}, [], None
    for look in range(200):
        value = growth**look
        if overflow is None and value > 65504:
            overflow = look
        seen, known = judge_activations(shape(value), known, (), LATE, "float32")
        told += [look] * bool(out(seen))
    assert (told[0] if told else None) == first
    if first is not None:
        assert overflow - first >= 10


@pytest.mark.parametrize(
    ("precision", "largest", "raised", "is_out"),
    [
        ("float16", 16375.9, (), False),
        ("float16", 16376.0, (), False),
        ("float16", 16376.1, (), True),
        ("float16", 8188.1, {("activation_range", "b0")}, True),
        ("float16", 8188.0, {("activation_range", "b0")}, False),
        ("float16", 8188.1, {("activation_range", "b1")}, False),
        ("float16", NAN, (), False),
        ("float16", 0.0, (), False),
        ("float32", 1e30, (), False),
        ("bfloat16", 1e30, (), False),
    ],
)
def test_the_range_of_float16_is_watched_from_the_first_look_and_of_no_other_type(precision, largest, raised, is_out):
    seen, _ = judge_activations(shape(1.0, largest), {}, raised, LATE, precision)
    assert out(seen) == [("activation_range", "b0")] * is_out
    assert any(one.name == "activation_range" for one in seen) is (precision == "float16")


@pytest.mark.parametrize(
    ("entropy", "logit", "raised", "expected"),
    [
        (0.051, 99.9, (), []),
        (0.05, 100.0, (), []),
        (0.049, 100.1, (), ["attention_entropy", "attention_logit"]),
        (0.0, 0.0, (), ["attention_entropy"]),
        (1.0, 1e30, (), ["attention_logit"]),
        (NAN, NAN, (), []),
        # Raised, they end at twice the entropy and at half of the logit.
        (0.099, 50.1, {("attention_entropy", "a"), ("attention_logit", "a")}, ["attention_entropy", "attention_logit"]),
        (0.1, 50.0, {("attention_entropy", "a"), ("attention_logit", "a")}, []),
        (0.099, 50.1, {("attention_entropy", "b"), ("attention_logit", "b")}, []),
        (0.099, 50.1, {("attention_entropy", "a")}, ["attention_entropy"]),
    ],
)
def test_attention_is_judged_by_fixed_limits(entropy, logit, raised, expected):
    known = {"of another": (1.0,)}
    values = {"entropy": {"a": entropy, "c": 0.5}, "largest_logit": {"a": logit, "c": 1.0}}
    seen, after = judge_attention(values, known, raised)
    assert out(seen) == [(name, "a") for name in expected]
    assert after == known
    assert len(seen) == 4


def test_the_threshold_of_every_observation_is_the_one_it_was_compared_with():
    seen, _ = judge_attention({"entropy": {"a": 0.01}, "largest_logit": {"a": 120.0}}, {}, ())
    assert [one.threshold for one in seen] == [LEAST_ENTROPY, LARGEST_LOGIT]
    (_, _, wide, _), _ = activations_after([shape(1.0)] * 7, precision="float16")
    assert (wide.value, wide.threshold) == (1.0, LARGEST_ACTIVATION["float16"])
    (first, *_), _ = activations_after([shape(1.0)] * 7)
    assert first.threshold == ACTIVATION_FACTOR
    assert blocks_after([norms([1.0, 1.0])] * 7)[0][0].threshold == pytest.approx(BLOCK_FACTOR)


def test_what_is_known_goes_through_json_and_back():
    _, known = blocks_after(HEALTHY)
    _, known = activations_after([shape(1.0)] * 7, known)
    plain = json.loads(json.dumps({key: list(past) for key, past in known.items()}, allow_nan=False))
    assert {key: tuple(past) for key, past in plain.items()} == known
    assert all(type(value) is float for past in known.values() for value in past)


numbers = st.floats(allow_nan=True, allow_infinity=True)
rows = st.lists(numbers, min_size=3, max_size=3)
alarms = st.sets(
    st.tuples(st.sampled_from(["block_gradient_high", "activation_explosion", "attention_entropy"]), st.just("b0"))
)


@derandomised
@given(st.lists(st.tuples(rows, rows, rows), min_size=1, max_size=24), alarms, st.sampled_from(["float32", "float16"]))
def test_any_floats_are_judged_without_a_change_of_what_was_given_and_little_is_kept(history, raised, precision):
    known, names = {}, ("b0", "b1", "b2")
    for first, second, third in history:
        blocks = norms(first, second, third)
        flat = {"rms": dict(zip(names, first, strict=True)), "largest": dict(zip(names, second, strict=True))}
        looked = {"entropy": flat["rms"], "largest_logit": flat["largest"]}
        given_in, given_raised = copy.deepcopy((blocks, flat, looked, known)), frozenset(raised)

        def all_rules(known=known, blocks=blocks, flat=flat, looked=looked):
            seen, known = judge_blocks(blocks, known, raised, LATE, names)
            more, known = judge_activations(flat, known, raised, LATE, precision)
            last, known = judge_attention(looked, known, raised)
            return (*seen, *more, *last), known

        told = all_rules()
        assert repr(told) == repr(all_rules())
        assert (repr((blocks, flat, looked, known)), raised) == (repr(given_in), given_raised)
        seen, known = told
        assert len({(one.name, one.subject) for one in seen}) == len(seen)
        assert len(known) <= 12
        assert all(len(past) <= 16 and all(map(math.isfinite, past)) for past in known.values())
