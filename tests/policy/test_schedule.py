"""Schedules as tables of multipliers, and what holds for every one of them at every step."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.policy import schedule
from pretrain.policy.schedule import (
    SCHEDULES,
    ConstantSettings,
    CosineSettings,
    LinearWarmupThenConstantSettings,
    WarmupStableDecaySettings,
)

derandomised = settings(derandomize=True, deadline=None, max_examples=60)
ratios = st.floats(0, 1)


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
            WarmupStableDecaySettings(100, 0.0, 1.0, 0.5),
            {0: 1.0, 50: 0.75, 100: 0.5, 101: 0.5},
        ),
        ("warmup_stable_decay", WarmupStableDecaySettings(100, 0.1, 0.0), {9: 1.0, 100: 1.0, 200: 1.0}),
        ("warmup_stable_decay", WarmupStableDecaySettings(3, 0.5, 0.5), {0: 0.5, 1: 1.0, 2: 1.0, 3: 0.0}),
    ],
)
def test_the_multiplier_of_the_step_about_to_run(name, chosen, table):
    assert multipliers(name, chosen, table) == pytest.approx(list(table.values()), abs=1e-12)


def test_the_table_holds_the_four_schedules_and_each_builds_from_its_defaults():
    assert list(SCHEDULES) == ["cosine", "constant", "linear_warmup_then_constant", "warmup_stable_decay"]
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
@given(total=st.integers(1, 400), warmup=ratios, decay=ratios, lowest=ratios)
def test_every_schedule_rises_then_never_rises_again_and_stays_within_the_peak(total, warmup, decay, lowest):
    for name, chosen in {
        "cosine": CosineSettings(total, warmup, lowest),
        "linear_warmup_then_constant": LinearWarmupThenConstantSettings(total, warmup),
        "warmup_stable_decay": WarmupStableDecaySettings(total, warmup, min(decay, 1 - warmup), lowest),
    }.items():
        warmup_steps = round(warmup * total)
        values = multipliers(name, chosen, range(total + 5))
        rise, rest = values[:warmup_steps], values[warmup_steps:]
        assert all(0 < value <= 1 for value in rise)
        assert rise == sorted(rise)
        assert rise[-1:] == [1.0] * bool(warmup_steps)
        assert all(value <= 1 for value in rest)
        assert rest == sorted(rest, reverse=True)
        if name == "cosine":
            assert values[total:] == [lowest] * 5
            assert all(value >= lowest - 1e-15 for value in rest)


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
