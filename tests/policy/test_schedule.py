"""Schedules as tables of multipliers, and what holds for every one of them at every step."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.policy import schedule
from pretrain.policy.schedule import (
    DECAY_SHAPES,
    SCHEDULES,
    ConstantSettings,
    CosineSettings,
    InverseSquareRootSettings,
    LinearSettings,
    LinearWarmupThenConstantSettings,
    WarmupStableDecaySettings,
)

derandomised = settings(derandomize=True, deadline=None, max_examples=60)
ratios = st.floats(0, 1)
shapes = st.sampled_from(list(DECAY_SHAPES))


def multipliers(name, chosen, steps):
    multiplier = SCHEDULES[name].build(chosen)
    return [multiplier(step) for step in steps]


@pytest.mark.parametrize(
    ("name", "chosen", "table"),
    [
        ("constant", ConstantSettings(), {0: 1.0, 1: 1.0, 10**9: 1.0}),
        (
            "cosine",
            CosineSettings(100, 0.1),
            {0: 0.1, 1: 0.2, 8: 0.9, 9: 1.0, 10: 1.0, 55: 0.5, 100: 0.0, 101: 0.0},
        ),
        ("cosine", CosineSettings(100, 0.0, 0.2), {0: 1.0, 50: 0.6, 100: 0.2, 10**9: 0.2}),
        ("cosine", CosineSettings(10, 1.0), {0: 0.1, 9: 1.0, 10: 0.0}),  # all warmup
        ("cosine", CosineSettings(10, 0.05), {0: 1.0}),  # round(0.5) is 0: no warmup
        ("cosine", CosineSettings(1, 0.0), {0: 1.0, 1: 0.0}),
        (
            "linear_warmup_then_constant",
            LinearWarmupThenConstantSettings(100, 0.04),
            {0: 0.25, 1: 0.5, 2: 0.75, 3: 1.0, 4: 1.0, 99: 1.0, 10**9: 1.0},
        ),
        (
            "warmup_stable_decay",
            WarmupStableDecaySettings(100, 0.1, 0.2),
            {0: 0.1, 9: 1.0, 10: 1.0, 80: 1.0, 90: 0.5, 99: 0.05, 100: 0.0, 10**9: 0.0},
        ),
        (
            "warmup_stable_decay",
            WarmupStableDecaySettings(100, 0.0, 1.0, min_lr_ratio=0.5),
            {0: 1.0, 50: 0.75, 100: 0.5, 101: 0.5},
        ),
        (
            "warmup_stable_decay",
            WarmupStableDecaySettings(100, 0.1, 0.2, "cosine", 0.2),
            {0: 0.1, 9: 1.0, 80: 1.0, 85: 0.2 + 0.4 * (1 + math.sqrt(0.5)), 90: 0.6, 100: 0.2, 10**9: 0.2},
        ),
        (
            "warmup_stable_decay",
            WarmupStableDecaySettings(100, 0.1, 0.2, "1-sqrt", 0.2),
            {9: 1.0, 79: 1.0, 80: 1.0, 85: 0.6, 100: 0.2, 10**9: 0.2},
        ),
        ("linear", LinearSettings(100, 0.1), {0: 0.1, 9: 1.0, 10: 1.0, 55: 0.5, 99: 1 / 90, 100: 0.0, 10**9: 0.0}),
        ("linear", LinearSettings(100, 0.0, 0.2), {0: 1.0, 50: 0.6, 100: 0.2, 101: 0.2}),
        ("linear", LinearSettings(10, 1.0), {0: 0.1, 9: 1.0, 10: 0.0}),  # all warmup
        (
            "inverse_square_root",
            InverseSquareRootSettings(100, 0.04),
            {0: 0.25, 3: 1.0, 4: math.sqrt(0.8), 15: 0.5, 63: 0.25, 99: 0.2, 399: 0.1},
        ),
        ("inverse_square_root", InverseSquareRootSettings(100, 0.0), {0: 1.0, 3: 0.5, 99: 0.1}),
        ("inverse_square_root", InverseSquareRootSettings(100, 0.04, 0.0, "linear", 0.3), {15: 0.5, 99: 0.3, 999: 0.3}),
        (
            "inverse_square_root",
            InverseSquareRootSettings(79, 0.05, 16 / 79, "linear", 0.05),  # the root has 0.25 left at step 63
            {3: 1.0, 15: 0.5, 62: math.sqrt(4 / 63), 63: 0.25, 71: 0.15, 79: 0.05, 80: 0.05},
        ),
        ("inverse_square_root", InverseSquareRootSettings(79, 0.05, 16 / 79, "1-sqrt"), {63: 0.25, 67: 0.125, 79: 0.0}),
        ("warmup_stable_decay", WarmupStableDecaySettings(100, 0.1, 0.0), {9: 1.0, 100: 1.0, 200: 1.0}),
        ("warmup_stable_decay", WarmupStableDecaySettings(3, 0.5, 0.5), {0: 0.5, 1: 1.0, 2: 1.0, 3: 0.0}),
    ],
)
def test_the_multiplier_of_the_step_about_to_run(name, chosen, table):
    assert multipliers(name, chosen, table) == pytest.approx(list(table.values()), abs=1e-12)


def test_the_table_holds_the_schedules_and_each_builds_from_its_defaults():
    assert list(SCHEDULES) == [
        *("cosine", "linear", "constant", "linear_warmup_then_constant", "warmup_stable_decay", "inverse_square_root"),
    ]
    for name, entry in SCHEDULES.items():
        chosen = entry.settings()
        if name != "constant":
            chosen = replace(chosen, scheduler_total_steps=700)
        multiplier = entry.build(chosen)
        assert all(type(multiplier(step)) is float for step in (0, 1, 350, 699, 700, 10**7))


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "constant"])
def test_the_total_is_resolved_before_a_schedule_is_built(name):
    with pytest.raises(AssertionError, match="resolved"):
        SCHEDULES[name].build(SCHEDULES[name].settings())


@derandomised
@given(total=st.integers(1, 400), warmup=ratios, decay=ratios, lowest=ratios, shape=shapes)
def test_every_schedule_rises_then_never_rises_again_and_stays_within_the_peak(total, warmup, decay, lowest, shape):
    for name, chosen in {
        "cosine": CosineSettings(total, warmup, lowest),
        "linear": LinearSettings(total, warmup, lowest),
        "linear_warmup_then_constant": LinearWarmupThenConstantSettings(total, warmup),
        "warmup_stable_decay": WarmupStableDecaySettings(total, warmup, min(decay, 1 - warmup), shape, lowest),
        "inverse_square_root": InverseSquareRootSettings(total, warmup, min(decay, 1 - warmup), shape, lowest),
    }.items():
        warmup_steps = round(warmup * total)
        values = multipliers(name, chosen, range(total + 5))
        rise, rest = values[:warmup_steps], values[warmup_steps:]
        assert all(0 < value <= 1 for value in rise)
        assert rise == sorted(rise)
        assert rise[-1:] == [1.0] * bool(warmup_steps)
        assert all(value <= 1 for value in rest)
        assert rest == sorted(rest, reverse=True)
        assert all(value >= lowest - 1e-15 for value in rest)
        if name in ("cosine", "linear"):
            assert values[total:] == [lowest] * 5


@derandomised
@given(total=st.integers(2, 3000), warmup=ratios, decay=ratios, lowest=ratios, shape=shapes)
def test_a_decay_is_what_the_papers_write(total, warmup, decay, lowest, shape):
    decay = min(decay, 1 - warmup)
    warm = round(warmup * total)
    steps = min(round(decay * total), total - warm)
    begin = total - steps

    def after(high, step):
        left = min((step - begin) / steps, 1.0)
        share = {"linear": 1 - left, "cosine": math.cos(math.pi * left / 2) ** 2, "1-sqrt": 1 - left**0.5}[shape]
        return share * high + (1 - share) * lowest

    stable = SCHEDULES["warmup_stable_decay"].build(WarmupStableDecaySettings(total, warmup, decay, shape, lowest))
    root = SCHEDULES["inverse_square_root"].build(InverseSquareRootSettings(total, warmup, decay, shape, lowest))
    for step in {warm, begin, begin + 1, (begin + total) // 2, total - 1, total, total + 7} - set(range(warm)):
        # Attention Is All You Need, equation 3, with the step counted from 1, over its value at the peak.
        count, warmed = step + 1, max(warm, 1)
        noam = min(count**-0.5, count * warmed**-1.5) * warmed**0.5
        is_decaying = steps > 0 and step >= begin
        assert stable(step) == pytest.approx(after(1.0, step) if is_decaying else 1.0, abs=1e-12)
        high = max(math.sqrt(warmed / (begin + 1)), lowest)
        assert root(step) == pytest.approx(after(high, step) if is_decaying else max(noam, lowest), abs=1e-12)


@derandomised
@given(total=st.integers(20, 2000), shape=shapes)
def test_no_shape_jumps(total, shape):
    # The steepest place of each: 1-sqrt falls by sqrt(1 / steps) in its first step, the others by a share of 1 / steps.
    steps = round(0.5 * total)
    for name, settings_ in (
        ("warmup_stable_decay", WarmupStableDecaySettings(total, 0.2, 0.5, shape)),
        ("inverse_square_root", InverseSquareRootSettings(total, 0.2, 0.5, shape)),
    ):
        values = multipliers(name, settings_, range(round(0.2 * total) - 1, total + 3))
        steepest = max(math.sqrt(1 / steps) if shape == "1-sqrt" else 1.6 / steps, 1 / round(0.2 * total))
        assert max(abs(a - b) for a, b in itertools.pairwise(values)) <= steepest + 1e-12


@pytest.mark.parametrize(
    ("name", "chosen", "table"),
    [
        ("constant", ConstantSettings(), {0: "peak", 10**6: "peak"}),
        ("cosine", CosineSettings(100, 0.1), {0: "warmup", 9: "warmup", 10: "peak", 11: "decay", 100: "decay"}),
        ("linear", LinearSettings(100, 0.1), {0: "warmup", 9: "warmup", 10: "peak", 11: "decay", 100: "decay"}),
        (
            "warmup_stable_decay",
            WarmupStableDecaySettings(100, 0.1, 0.2, "1-sqrt"),
            {9: "warmup", 10: "peak", 80: "peak", 81: "decay", 200: "decay"},
        ),
        ("inverse_square_root", InverseSquareRootSettings(100, 0.1, 0.2), {9: "warmup", 10: "decay", 90: "decay"}),
    ],
)
@pytest.mark.parametrize("peak", [1.0, 3e-3, 0.1])
def test_the_phase_of_the_step_about_to_run(name, chosen, table, peak):
    multiplier = SCHEDULES[name].build(chosen)
    found = {step: schedule.phase(chosen, lambda at: peak * multiplier(at), step, peak) for step in table}
    assert found == table
    assert schedule.warmup_steps(chosen) == (0 if name == "constant" else 10)


@pytest.mark.parametrize(
    ("scaling", "batch", "base", "expected"),
    [("none", 64, None, 0.01), ("linear", 64, 16, 0.04), ("sqrt", 64, 16, 0.02), ("sqrt", 4, 16, 0.005)],
)
def test_the_peak_that_fits_the_batch(scaling, batch, base, expected):
    assert schedule.scaled_peak(0.01, scaling, batch, base) == expected


@derandomised
@given(total=st.integers(1, 10**9), step=st.integers(0, 10**9), warmup=ratios, lowest=ratios)
def test_a_multiplier_depends_on_the_step_alone(total, step, warmup, lowest):
    # What a resumed run computes at a step is what the uninterrupted one computed there.
    chosen = CosineSettings(total, warmup, lowest)
    whole = SCHEDULES["cosine"].build(chosen)
    for earlier in (0, step // 2):
        whole(earlier)
    assert whole(step) == SCHEDULES["cosine"].build(chosen)(step)
    assert math.isfinite(whole(step))


@pytest.mark.parametrize(
    ("chosen", "wrong"),
    [
        (WarmupStableDecaySettings(100, 0.5, 0.5), False),
        (WarmupStableDecaySettings(100, 0.7, 0.3), False),
        (WarmupStableDecaySettings(100, 0.9, 0.2), True),
        (InverseSquareRootSettings(100, 0.7, 0.3), False),
        (InverseSquareRootSettings(100, 0.9, 0.2), True),
        (CosineSettings(100, 1.0), False),
        (ConstantSettings(), False),
    ],
)
def test_a_warmup_and_a_decay_that_do_not_fit_are_a_contradiction(chosen, wrong):
    found = schedule.contradictions(chosen)
    assert len(found) == wrong
    for text in found:
        assert "scheduler_warmup_ratio" in text
        assert "decay_ratio" in text
