"""Validation losses against their own best, as tables: 3 % raises, 1 % ends, and only a number is ever the best."""

import copy
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.policy.alarms import AlarmState, update_alarms
from pretrain.policy.regression import judge_regression

NAN, INF = math.nan, math.inf
RAISED = {("validation_regression", "d")}
derandomised = settings(derandomize=True, deadline=None, max_examples=80)


def story(losses, every=100):
    """What a loop does with a loss of each validation: return (number, state) of every change, and what is known."""
    known, state, told = {}, AlarmState(), []
    for number, loss in enumerate(losses):
        raised = {(alarm.name, alarm.subject) for alarm in state.raised}
        seen, known = judge_regression({"d": loss}, known, raised)
        changes, state = update_alarms(seen, every * (number + 1), state)
        told += [(number, change.state) for change in changes]
    return told, known


@pytest.mark.parametrize(
    ("best", "loss", "raised", "allowed", "is_out"),
    [
        (2.0, 2.0, (), 2.06, False),
        (2.0, 2.0599, (), 2.06, False),
        (2.0, 2.0601, (), 2.06, True),
        (2.0, 2.0201, RAISED, 2.02, True),
        (2.0, 2.0199, RAISED, 2.02, False),
        (2.0, 2.0201, {("validation_regression", "e")}, 2.06, False),
        (2.0, 1.0, (), 2.06, False),
        (2.0, 1.0, RAISED, 2.02, False),
        # A loss that can be negative, and one that is all gone: anything is worse than nothing.
        (-2.0, -1.9401, (), -1.94, False),
        (-2.0, -1.9399, (), -1.94, True),
        (0.0, 0.0, (), 0.0, False),
        (0.0, 1e-9, (), 0.0, True),
        (2.0, NAN, (), 2.06, False),
        (2.0, 1e300, (), 2.06, True),
    ],
)
def test_a_loss_regresses_beyond_three_percent_of_its_best_and_recovers_within_one(best, loss, raised, allowed, is_out):
    (seen,), after = judge_regression({"d": loss}, {"regression d": (best,)}, raised)
    assert (seen.name, seen.subject, seen.is_out) == ("validation_regression", "d", is_out)
    assert seen.threshold == pytest.approx(allowed)
    assert after == {"regression d": (loss if loss < best else best,)}


@pytest.mark.parametrize("loss", [NAN, INF, -INF])
def test_a_loss_that_is_not_finite_is_never_the_best(loss):
    assert judge_regression({"d": loss}, {}, ()) == ((), {})
    (_,), after = judge_regression({"d": loss}, {"regression d": (2.0,)}, ())
    assert after == {"regression d": (2.0,)}
    assert story([2.0, loss, 1.9, loss, 1.8, 2.5])[0] == [(5, "raised")]


def test_the_first_validation_is_compared_with_nothing():
    assert judge_regression({"d": 9.0}, {}, ()) == ((), {"regression d": (9.0,)})
    assert judge_regression({}, {"regression d": (9.0,)}, ()) == ((), {"regression d": (9.0,)})


def test_domains_have_a_best_of_their_own():
    known = {"regression d": (1.0,), "regression e": (2.0,), "blocks x": (3.0,)}
    seen, after = judge_regression({"d": 1.1, "e": 1.9}, known, ())
    assert [(one.subject, one.is_out) for one in seen] == [("d", True), ("e", False)]
    assert after == {"regression d": (1.0,), "regression e": (1.9,), "blocks x": (3.0,)}


def test_a_plateau_with_noise_raises_nothing_and_a_slow_rise_does_once_it_is_three_percent():
    assert story([3.0 * 0.97**n for n in range(60)] + [0.5 * (1 + 0.02 * (n % 2)) for n in range(200)])[0] == []
    told, known = story([2.0, *(2.0 * 1.001**n for n in range(1, 60))])
    assert told == [(30, "raised")]
    assert known == {"regression d": (2.0,)}


def test_a_loss_that_hovers_about_the_threshold_is_one_alarm():
    told, _ = story([2.0, 2.07, 2.05, 2.07, 2.03, 2.05, 2.07, 2.01, 2.05, 2.05, 2.07])
    assert told == [(1, "raised"), (7, "cleared"), (10, "raised")]


def test_a_new_best_ends_it_too():
    assert story([2.0, 2.5, 1.5, 1.54, 1.55])[0] == [(1, "raised"), (2, "cleared"), (4, "raised")]


def test_what_is_known_goes_through_json_and_back():
    _, known = judge_regression({"d": 0.1, "e": NAN, "f": -INF, "g": INF}, {}, ())
    assert {k: tuple(v) for k, v in json.loads(json.dumps(known, allow_nan=False)).items()} == {"regression d": (0.1,)}


losses = st.dictionaries(st.sampled_from("de"), st.floats(allow_nan=True, allow_infinity=True))


@derandomised
@given(st.lists(losses, max_size=20), st.sampled_from([(), RAISED]))
def test_any_losses_are_judged_without_a_change_of_what_was_given_and_the_best_only_falls(validations, raised):
    known = {}
    for row in validations:
        before = copy.deepcopy((row, known))
        told = judge_regression(row, known, raised)
        assert repr(told) == repr(judge_regression(row, known, raised))
        assert repr((row, known)) == repr(before)
        for key, (best,) in known.items():
            assert told[1][key][0] <= best
        known = told[1]
        assert len(known) <= 2
        assert all(len(best) == 1 and math.isfinite(best[0]) for best in known.values())
