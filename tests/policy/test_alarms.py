"""Alarms as stories: raised once, kept while the signal stands out, cleared after a stretch, and never by a NaN."""

import json
import math
import random
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.policy.alarms import (
    CLEAR_AFTER_STEPS,
    AlarmState,
    Change,
    Observation,
    RaisedAlarm,
    spike_observations,
    update_alarms,
)
from pretrain.policy.spikes import (
    SIGNALS,
    SignalSettings,
    SpikeSettings,
    SpikeState,
    find_spikes,
    remember,
    threshold_of,
)

NAN, INF = math.nan, math.inf
RECORD = SpikeSettings(loss=SignalSettings("record"), gradient=SignalSettings("record"))
derandomised = settings(derandomize=True, deadline=None, max_examples=40)


def seen(is_out, name="loss_spike", subject=None, value=None):
    return Observation(name, is_out, (9.0 if is_out else 2.0) if value is None else value, 3.0, subject)


def story(observations, state=None):
    """Feed (step, observations) to the alarms; return (step, state, name, subject) of every change, and the end."""
    state, told = state or AlarmState(), []
    for step, at_once in observations:
        changes, state = update_alarms(at_once, step, state)
        told += [(step, change.state, change.seen.name, change.seen.subject) for change in changes]
    return told, state


def steps_of(out, last, every=1, **named):
    """Observations of one signal up to step `last`, out at the steps `out`."""
    return [(step, [seen(step in out, **named)]) for step in range(every, last + 1, every)]


@pytest.mark.parametrize(
    ("out", "last", "every", "expected"),
    [
        ([], 200, 1, []),
        ([30], 49, 1, [(30, "raised")]),
        ([30], 50, 1, [(30, "raised"), (50, "cleared")]),
        ([30], 200, 1, [(30, "raised"), (50, "cleared")]),
        ([30, 31, 32, 33], 200, 1, [(30, "raised"), (53, "cleared")]),
        (range(30, 120), 200, 1, [(30, "raised"), (139, "cleared")]),
        ([30, 49, 68], 200, 1, [(30, "raised"), (88, "cleared")]),  # each within a stretch of the one before
        ([30, 50, 70], 200, 1, [(30, "raised"), (90, "cleared")]),  # a step of 20 on that stands out does not clear
        ([30, 51], 200, 1, [(30, "raised"), (50, "cleared"), (51, "raised"), (71, "cleared")]),
        ([30, 100], 200, 1, [(30, "raised"), (50, "cleared"), (100, "raised"), (120, "cleared")]),
        # Measured now and then: the first measurement that is far enough behind.
        ([30], 200, 10, [(30, "raised"), (50, "cleared")]),
        ([30, 40], 200, 10, [(30, "raised"), (60, "cleared")]),
        ([30, 50], 200, 10, [(30, "raised"), (70, "cleared")]),
        ([200], 1000, 100, [(200, "raised"), (300, "cleared")]),
    ],
)
def test_raised_once_and_cleared_once(out, last, every, expected):
    told, state = story(steps_of(out, last, every))
    assert told == [(*change, "loss_spike", None) for change in expected]
    assert bool(state.raised) is (bool(expected) and expected[-1][1] == "raised")


def test_a_change_tells_the_observation_that_made_it():
    up, state = update_alarms([Observation("loss_spike", True, 9.0, 3.0)], 5, AlarmState())
    down, after = update_alarms([Observation("loss_spike", False, 2.5, 2.75)], 25, state)
    assert up == (Change("raised", Observation("loss_spike", True, 9.0, 3.0)),)
    assert down == (Change("cleared", Observation("loss_spike", False, 2.5, 2.75)),)
    assert after == AlarmState()


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_what_is_not_finite_neither_raises_nor_clears_and_the_stretch_begins_again(value):
    bad = [seen(False, value=value)]
    assert story([(1, bad), (2, [seen(True, value=value)])]) == ([], AlarmState())
    told, state = story([(30, [seen(True)]), *((step, bad) for step in range(31, 500))])
    assert told == [(30, "raised", "loss_spike", None)]
    told, _ = story([(step, [seen(False)]) for step in range(500, 600)], state)
    assert told == [(519, "cleared", "loss_spike", None)]


def test_a_signal_that_is_not_seen_stays_as_it_is():
    told, state = story([(30, [seen(True)]), *((step, []) for step in range(31, 500))])
    assert (len(told), state.raised) == (1, (RaisedAlarm("loss_spike", None, 30),))


def test_names_and_subjects_have_alarms_of_their_own():
    told, state = story(
        [
            (1, [seen(True, "dead_expert", "layer 1, expert 3"), seen(True)]),
            (2, [seen(True, "dead_expert", "layer 0, expert 7"), seen(False, "dead_expert", "layer 1, expert 3")]),
            (21, [seen(False, "dead_expert", "layer 0, expert 7"), seen(False, "dead_expert", "layer 1, expert 3")]),
        ]
    )
    assert told == [
        (1, "raised", "dead_expert", "layer 1, expert 3"),
        (1, "raised", "loss_spike", None),
        (2, "raised", "dead_expert", "layer 0, expert 7"),
        (21, "cleared", "dead_expert", "layer 1, expert 3"),
    ]
    assert [(alarm.name, alarm.subject) for alarm in state.raised] == [
        ("dead_expert", "layer 0, expert 7"),
        ("loss_spike", None),
    ]


# What the loop does: find the spikes of a step, tell the alarms, and only then remember the step.


def run(reports, known=None, state=None, config=RECORD, begin=1):
    known, state, told = known or SpikeState(), state or AlarmState(), []
    for step, values in enumerate(reports, begin):
        spikes = find_spikes(values, known, config)
        changes, state = update_alarms(spike_observations(values, spikes, known, config, state), step, state)
        told += [(step, change) for change in changes]
        known = remember(values, spikes, known, config)
    return told, known, state


def test_two_spikes_far_apart_and_two_close_to_each_other():
    healthy = {"loss": 2.0, "gradient": 1.0}
    far = [healthy] * 110 + [{"loss": 9.0, "gradient": 1.0}] + [healthy] * 40 + [{"loss": 9.0}] + [healthy] * 40
    told, _, _ = run(far)
    assert [(step, change.state) for step, change in told] == [
        *((111, "raised"), (131, "cleared")),
        *((152, "raised"), (172, "cleared")),
    ]
    close = [healthy] * 110 + [{"loss": 9.0}, healthy, healthy, {"loss": 8.0}] + [healthy] * 40
    told, _, _ = run(close)
    assert [(step, change.state, change.seen.value) for step, change in told] == [
        (111, "raised", 9.0),
        (134, "cleared", 2.0),
    ]
    for _, change in told:
        assert (change.seen.value > change.seen.threshold) is (change.state == "raised")
        assert change.seen.threshold == pytest.approx(2.3)


def test_a_plateau_is_one_alarm_and_is_never_cleared():
    told, _, state = run([{"loss": 2.0}] * 110 + [{"loss": 9.0}] * 1000)
    assert [(step, change.state) for step, change in told] == [(111, "raised")]
    assert state.raised == (RaisedAlarm("loss_spike", None, 1110),)


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_steady_signal_never_raises(signal):
    drawn = random.Random(4)
    told, _, state = run([{signal: 2.0 * (1 + 0.02 * drawn.gauss(0, 1))} for _ in range(2000)])
    assert (told, state) == ([], AlarmState())


def test_a_quiet_run_asks_for_no_threshold(monkeypatch):
    monkeypatch.setattr("pretrain.policy.alarms.threshold_of", None)
    assert run([{"loss": 2.0, "gradient": 1.0, "update": 3.0}] * 300)[0] == []


@pytest.mark.parametrize("signal", SIGNALS)
def test_the_threshold_is_the_one_that_a_spike_is_told_by(signal):
    drawn = random.Random(7)
    known = SpikeState(150, **{signal: tuple(drawn.lognormvariate(0, 0.2) for _ in range(128))})
    (spike,) = find_spikes({signal: 1e6}, known, RECORD)
    assert threshold_of(signal, known, RECORD) == spike.threshold
    assert threshold_of(signal, SpikeState(99, **{signal: (1.0,) * 99}), RECORD) is None
    least = 6 if signal == "update" else 16
    assert threshold_of(signal, SpikeState(200, **{signal: (1.0,) * (least - 1)}), RECORD) is None
    assert threshold_of(signal, SpikeState(200, **{signal: (1.0,) * least}), RECORD) is not None


def test_the_state_goes_through_json_and_back_exactly():
    _, state = story([(3, [seen(True), seen(True, "dead_expert", "layer 0, expert 7")])])
    plain = json.loads(json.dumps([asdict(alarm) for alarm in state.raised], allow_nan=False))
    assert AlarmState(tuple(RaisedAlarm(**alarm) for alarm in plain)) == state


keys = st.tuples(st.sampled_from(["loss_spike", "dead_expert"]), st.sampled_from([None, "a", "b"]))
kinds = st.tuples(st.booleans(), st.sampled_from([2.0, 2.0, 2.0, NAN, INF]))
stretches = st.lists(st.tuples(st.dictionaries(keys, kinds, max_size=4), st.integers(1, 30)), max_size=40)


def observed(drawn):
    """Observations by step, every one of them held for a number of steps."""
    told = []
    for at_once, length in drawn:
        observations = [seen(out, *key, value=value) for key, (out, value) in at_once.items()]
        told += [(len(told) + 1 + more, observations) for more in range(length)]
    return told


@derandomised
@given(stretches)
def test_raised_and_cleared_alternate_and_nothing_is_cleared_early(drawn):
    observations = observed(drawn)
    told, state = story(observations)
    for key in {(one.name, one.subject) for _, at_once in observations for one in at_once}:
        own = [(step, what) for step, what, *of in told if tuple(of) == key]
        assert [what for _, what in own] == ["raised" if not at % 2 else "cleared" for at in range(len(own))]
        assert (len(own) % 2 == 1) is any((alarm.name, alarm.subject) == key for alarm in state.raised)
        by_step = {step: one for step, at_once in observations for one in at_once if (one.name, one.subject) == key}
        for step, what in own:
            assert math.isfinite(by_step[step].value)
            assert by_step[step].is_out is (what == "raised")
            if what == "cleared":
                stretch = [by_step.get(at) for at in range(step - CLEAR_AFTER_STEPS + 1, step + 1)]
                assert not any(one and (one.is_out or not math.isfinite(one.value)) for one in stretch)


@derandomised
@given(stretches, st.integers(0, 300))
def test_what_is_quiet_and_not_raised_may_be_left_out_and_the_story_cut_anywhere(drawn, cut):
    observations = observed(drawn)
    whole = story(observations)
    before, state = story(observations[:cut])
    after, end = story(observations[cut:], state)
    assert (before + after, end) == whole
    told, state = [], AlarmState()
    for step, at_once in observations:
        raised = {(alarm.name, alarm.subject) for alarm in state.raised}
        needed = [one for one in at_once if one.is_out or (one.name, one.subject) in raised]
        more, state = story([(step, needed)], state)
        told += more
    assert (told, state) == whole
