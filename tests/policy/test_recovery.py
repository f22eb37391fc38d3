"""The ladder as stories: what is done at every spike, what it costs the run, and the way down again."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.policy.recovery import (
    GROUND,
    ROLLED_BACK,
    SKIPPED,
    SKIPS,
    SLOWED,
    Decision,
    LadderState,
    Target,
    learning_rate_multiplier,
    newest_targets,
    on_damage,
    on_healthy,
    on_spike,
)
from pretrain.policy.spikes import Spike, SpikeSettings

DEFAULT = SpikeSettings()
SHORT = SpikeSettings(healthy_steps=5, rewarm_steps=4)
TARGETS = (Target(0, 0), Target(100, 103), Target(200, 207))
LOSS = Spike("loss", "roll_back", 9.0, 3.0, 20.0)
GRADIENT = Spike("gradient", "skip", 9.0, 3.0, 20.0)
RECORDED = Spike("gradient", "record", 9.0, 3.0, 20.0)
UPDATE = Spike("update", "roll_back", 9.0, 3.0, 20.0)


def run(events, config=DEFAULT, state=None, batch=230, targets=TARGETS):
    """Feed spikes, "damage" and "healthy" to the ladder; each is one batch. Return the actions and the state."""
    state, actions = state or LadderState(), []
    for event in events:
        match event:
            case "healthy":
                state = on_healthy(state, config)
            case "damage":
                decision = on_damage(state, targets, batch, config)
                actions.append((decision.action, decision.target and decision.target.step))
                state = decision.state
            case _:
                decision = on_spike(event, state, targets, batch, config)
                actions.append((decision.action, decision.target and decision.target.step))
                state = decision.state
        batch += 1
    return actions, state


SKIP, STOP = ("skip", None), ("stop", None)


@pytest.mark.parametrize(
    ("events", "actions", "rung", "factor"),
    [
        ([RECORDED] * 50, [("accept", None)] * 50, GROUND, 1.0),
        ([LOSS], [SKIP], SKIPPED, 1.0),
        ([LOSS, "healthy", LOSS, "healthy", LOSS], [SKIP] * 3, SKIPPED, 1.0),  # single outliers
        ([LOSS] * 3, [SKIP, SKIP, ("roll_back", 200)], ROLLED_BACK, 1.0),
        (
            # The whole way up, with no healthy stretch between: back, then further back and slower, then the end.
            [LOSS] * 12,
            [SKIP, SKIP, ("roll_back", 200), *[SKIP, SKIP, ("roll_back", 100)] * 2, SKIP, SKIP, STOP],
            SLOWED,
            0.25,
        ),
        ([GRADIENT, LOSS, LOSS], [SKIP, SKIP, ("roll_back", 200)], ROLLED_BACK, 1.0),
        ([GRADIENT, GRADIENT, LOSS], [SKIP, SKIP, ("roll_back", 200)], ROLLED_BACK, 1.0),
        # A signal whose action is `skip` goes on skipping, as long as there is a budget.
        ([GRADIENT] * SKIPS, [SKIP] * SKIPS, SKIPPED, 1.0),
        ([GRADIENT] * (SKIPS + 1), [*[SKIP] * SKIPS, ("roll_back", 200)], ROLLED_BACK, 1.0),
        # So does one that is healthy in between, but never for long enough.
        ([LOSS, "healthy"] * (SKIPS + 1), [*[SKIP] * SKIPS, ("roll_back", 200)], ROLLED_BACK, 1.0),
        # The weights have moved, or hold what is not finite: skipping is too late.
        ([UPDATE], [("roll_back", 200)], ROLLED_BACK, 1.0),
        (["damage"], [("roll_back", 200)], ROLLED_BACK, 1.0),
        (["damage", "damage"], [("roll_back", 200), ("roll_back", 100)], SLOWED, 0.5),
        (["damage"] * 4, [("roll_back", 200), ("roll_back", 100), ("roll_back", 100), STOP], SLOWED, 0.25),
    ],
)
def test_the_way_up(events, actions, rung, factor):
    found, state = run(events)
    assert found == actions
    assert (state.rung, state.learning_rate_factor) == (rung, factor)


@pytest.mark.parametrize(
    ("targets", "rollbacks", "expected"),
    [
        ((), 0, None),  # nowhere to go: the end
        ((Target(0, 0),), 0, 0),
        ((Target(0, 0),), 1, 0),  # nothing further back
        (TARGETS, 0, 200),
        (TARGETS, 1, 100),
        (TARGETS, 2, 100),
        (TARGETS, 3, None),  # max_rollbacks
    ],
)
def test_where_it_goes_back_to(targets, rollbacks, expected):
    state = LadderState(rung=ROLLED_BACK, rollbacks=rollbacks)
    decision = on_damage(state, targets, 230, DEFAULT)
    if expected is None:
        assert decision == Decision("stop", state)
    else:
        assert (decision.action, decision.target.step) == ("roll_back", expected)
        assert decision.state.rollbacks == rollbacks + 1


@pytest.mark.parametrize(
    ("rewarm_from", "expected"), [(None, [30, 40]), (0, [30, 40]), (30, [30, 40]), (40, [40]), (50, [])]
)
def test_it_goes_back_to_the_newest_two_and_not_past_the_last_slowing(rewarm_from, expected):
    """Whatever else is kept, and in whichever order it is found."""
    found = [Target(step, step + 1) for step in (20, 40, 0, 30, 10)]
    assert [target.step for target in newest_targets(found, LadderState(rewarm_from=rewarm_from))] == expected


def test_without_rollbacks_the_third_spike_in_a_row_is_the_end():
    actions, _ = run([LOSS] * 3, SpikeSettings(max_rollbacks=0))
    assert actions == [SKIP, SKIP, STOP]


def test_a_rollback_forgets_the_skips_and_quarantines_what_led_there():
    _, state = run([LOSS] * 3, batch=230)
    assert state == LadderState(rung=ROLLED_BACK, rollbacks=1, quarantined=((207, 232),))
    # The second one goes further back: one window, that holds the first.
    _, state = run([LOSS] * 3, state=state, batch=240)
    assert state == LadderState(
        rung=SLOWED, rollbacks=2, learning_rate_factor=0.5, rewarm_from=100, quarantined=((103, 242),)
    )


@pytest.mark.parametrize(
    ("before", "first", "last", "after"),
    [
        ((), 5, 9, ((5, 9),)),
        (((5, 9),), 20, 30, ((5, 9), (20, 30))),
        (((20, 30),), 5, 9, ((5, 9), (20, 30))),
        (((5, 9),), 10, 12, ((5, 12),)),  # they meet
        (((5, 9),), 11, 12, ((5, 9), (11, 12))),
        (((5, 9), (20, 30)), 7, 25, ((5, 30),)),
        (((5, 30),), 7, 25, ((5, 30),)),
    ],
)
def test_quarantined_windows_are_apart_and_in_order(before, first, last, after):
    state = LadderState(quarantined=before)
    assert on_damage(state, (Target(1, first),), last, DEFAULT).state.quarantined == after


def test_a_healthy_stretch_climbs_down_one_rung_and_the_ground_ends_the_count():
    _, state = run([LOSS] * 6, SHORT)
    assert (state.rung, state.rollbacks, state.learning_rate_factor) == (SLOWED, 2, 0.5)
    seen = []
    for _ in range(20):
        state = on_healthy(state, SHORT)
        seen.append((state.rung, state.rollbacks, state.healthy))
    assert seen == [
        *((SLOWED, 2, count) for count in range(1, 5)),
        *((ROLLED_BACK, 2, count) for count in range(5)),
        *((SKIPPED, 2, count) for count in range(5)),
        *[(GROUND, 0, 0)] * 6,
    ]
    # On the ground everything is as it was, but for what the run has shown it does not bear.
    assert state == LadderState(learning_rate_factor=0.5, rewarm_from=100, quarantined=state.quarantined)
    assert on_healthy(state, SHORT) is state


def test_a_spike_ends_the_stretch_and_the_next_one_begins_anew():
    _, state = run([LOSS, *["healthy"] * 4, LOSS, *["healthy"] * 4], SHORT)
    assert (state.rung, state.skips, state.healthy) == (SKIPPED, 2, 4)
    assert on_healthy(state, SHORT) == LadderState()


def test_a_second_climb_after_the_ground_begins_with_a_plain_rollback():
    _, state = run([*[LOSS] * 6, *["healthy"] * 15], SHORT)
    decision = on_damage(state, TARGETS, 400, SHORT)
    assert (decision.target, decision.state.learning_rate_factor) == (TARGETS[-1], 0.5)
    decision = on_damage(decision.state, TARGETS, 400, SHORT)
    assert (decision.target, decision.state.learning_rate_factor) == (TARGETS[-2], 0.25)


@pytest.mark.parametrize(
    ("state", "rewarm", "table"),
    [
        (LadderState(), 50, {0: 1.0, 10**9: 1.0}),
        (LadderState(learning_rate_factor=0.5, rewarm_from=100), 4, {100: 0.125, 101: 0.25, 102: 0.375, 103: 0.5}),
        (LadderState(learning_rate_factor=0.5, rewarm_from=100), 4, {104: 0.5, 10**9: 0.5}),
        (LadderState(learning_rate_factor=0.5, rewarm_from=100), 1, {100: 0.5}),
        (LadderState(learning_rate_factor=0.5, rewarm_from=100), 0, {100: 0.5, 101: 0.5}),
        (LadderState(learning_rate_factor=0.25, rewarm_from=0), 50, {0: 0.005, 49: 0.25}),
        (LadderState(learning_rate_factor=1.0, rewarm_from=7), 2, {7: 0.5, 8: 1.0}),  # factor 1: a re-warm alone
    ],
)
def test_the_learning_rate_is_reached_again_from_zero(state, rewarm, table):
    config = SpikeSettings(rewarm_steps=rewarm)
    assert {step: learning_rate_multiplier(state, step, config) for step in table} == pytest.approx(table)


def test_the_state_goes_through_json_and_back_exactly():
    _, state = run([LOSS] * 8, SpikeSettings(learning_rate_factor=1 / 3))
    plain = json.loads(json.dumps(asdict(state), allow_nan=False))
    windows = tuple((first, last) for first, last in plain.pop("quarantined"))
    assert LadderState(**plain, quarantined=windows) == state


events = st.sampled_from([LOSS, GRADIENT, UPDATE, RECORDED, "damage", "healthy", "healthy", "healthy"])


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.lists(events, max_size=120), st.integers(0, 3), st.integers(1, 6), st.integers(0, 3))
def test_rungs_and_budgets_are_bounded_whatever_happens(happened, max_rollbacks, healthy_steps, num_targets):
    config = SpikeSettings(max_rollbacks=max_rollbacks, healthy_steps=healthy_steps, learning_rate_factor=0.5)
    targets, state = TARGETS[:num_targets], LadderState()
    for batch, event in enumerate(happened, start=300):
        before = state
        if event == "healthy":
            state = on_healthy(state, config)
        else:
            damaged = event == "damage"
            decision = (
                on_damage(state, targets, batch, config) if damaged else on_spike(event, state, targets, batch, config)
            )
            state = decision.state
            assert (decision.action == "roll_back") == (decision.target is not None)
            if decision.action == "stop":
                assert state == before
                assert state.rollbacks == max_rollbacks or not targets
                return
        assert GROUND <= state.rung <= SLOWED
        assert state.rung >= before.rung - 1
        assert 0 <= state.skips <= SKIPS
        assert 0 <= state.rollbacks <= max_rollbacks
        assert 0 <= state.healthy < healthy_steps
        assert 0 < state.learning_rate_factor <= before.learning_rate_factor
        assert 0 < learning_rate_multiplier(state, 10**6, config) <= 1
        for (_, last), (first, _) in zip(state.quarantined, state.quarantined[1:], strict=False):
            assert last + 1 < first
        if state.rung == GROUND:
            kept = LadderState(
                learning_rate_factor=state.learning_rate_factor,
                rewarm_from=state.rewarm_from,
                quarantined=state.quarantined,
            )
            assert state == kept


@pytest.mark.parametrize("spike", [LOSS, GRADIENT, UPDATE])
@pytest.mark.parametrize("healthy_between", [0, 1, 3])
def test_a_trouble_that_does_not_end_ends_the_run(spike, healthy_between):
    """Whatever a run that never has a healthy stretch does, it does it a bounded number of times."""
    state, count = LadderState(), 0
    while count < 1000:
        decision = on_spike(spike, state, TARGETS, 300 + count, SHORT)
        if decision.action == "stop":
            break
        state, count = decision.state, count + 1
        for _ in range(healthy_between):
            state = on_healthy(state, SHORT)
    assert count <= (SHORT.max_rollbacks + 1) * (SKIPS + 1)
    assert state.rollbacks == SHORT.max_rollbacks
