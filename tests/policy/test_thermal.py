"""The thermal state machine against a plain reference, over seeded temperatures with every odd one among them."""

import math
import random
from itertools import pairwise

import pytest

from pretrain.policy.thermal import ThermalSettings, ThermalState, contradictions, is_known, next_state

GUARDED = ThermalSettings(gpu_temp_guard=True)
AT = (75.0, 85.0, 95.0)
ODD = (None, math.nan, math.inf, -math.inf, 0.0, 255.0, -1.0, 0.999, 150.001)


def reference(temperatures: list[float | None], on_unreadable: str) -> list[str]:
    """The states after each temperature: resume below 75, pause above 85, abort above 95, by the letter of the spec."""
    states, now = [], "normal"
    for degrees in temperatures:
        unreadable = degrees is None or not math.isfinite(degrees) or degrees < 1 or degrees > 150
        if now == "aborted":
            pass
        elif unreadable and on_unreadable == "stop":
            now = "aborted"
        elif unreadable and on_unreadable == "pause":
            now = "paused"
        elif unreadable:
            pass
        elif degrees > 95:
            now = "aborted"
        elif now == "normal" and degrees > 85:
            now = "paused"
        elif now == "paused" and degrees < 75:
            now = "normal"
        states.append(now)
    return states


def temperatures_of(seed: int) -> list[float | None]:
    """A walk of a GPU that warms and cools, with the thresholds themselves, odd readings and a device that is lost."""
    draw = random.Random(seed)
    found: list[float | None] = []
    degrees = draw.uniform(40, 90)
    odd_share = draw.choice((0.0, 0.0, 0.02, 0.2))
    for _ in range(draw.randint(1, 80)):
        degrees = min(97.0 if draw.random() < 0.1 else 95.0, max(30.0, degrees + draw.uniform(-12, 12)))
        pick = draw.random()
        if pick < odd_share:
            found.append(draw.choice(ODD))
        elif pick < odd_share + 0.25:
            found.append(draw.choice(AT))
        elif pick < odd_share + 0.35:
            found.append(math.nextafter(draw.choice(AT), draw.choice((0.0, 200.0))))
        else:
            found.append(draw.choice((degrees, float(round(degrees)))))
    if draw.random() < 0.2:
        found += [None] * 5  # the device is lost, and stays so
    return found


def states_of(temperatures: list[float | None], settings: ThermalSettings) -> list[ThermalState]:
    states: list[ThermalState] = ["normal"]
    for degrees in temperatures:
        states.append(next_state(states[-1], degrees, settings))
    return states[1:]


@pytest.mark.parametrize("on_unreadable", ["pause", "stop", "ignore"])
def test_a_thousand_sequences_as_the_reference_has_them(on_unreadable: str) -> None:
    settings = ThermalSettings(gpu_temp_guard=True, on_unreadable=on_unreadable)
    seen: set[tuple[str, str]] = set()
    for seed in range(1000):
        temperatures = temperatures_of(seed)
        states = states_of(temperatures, settings)
        assert states == reference(temperatures, on_unreadable), (seed, temperatures)
        seen |= set(pairwise(["normal", *states]))
    every = {(one, other) for one in ("normal", "paused") for other in ("normal", "paused", "aborted")}
    assert seen == every | {("aborted", "aborted")}


@pytest.mark.parametrize(
    ("state", "degrees", "beyond", "then"),
    [("paused", 75.0, 74.0, "normal"), ("normal", 85.0, 86.0, "paused"), ("paused", 95.0, 96.0, "aborted")],
)
def test_at_a_threshold_itself_nothing_changes(
    state: ThermalState, degrees: float, beyond: float, then: ThermalState
) -> None:
    assert next_state(state, degrees, GUARDED) == state
    assert next_state(state, math.nextafter(degrees, beyond), GUARDED) == next_state(state, beyond, GUARDED) == then


@pytest.mark.parametrize("degrees", ODD)
@pytest.mark.parametrize("state", ["normal", "paused"])
def test_what_no_gpu_has_is_never_cool(state: ThermalState, degrees: float | None) -> None:
    assert not is_known(degrees)
    for word, expected in (("pause", "paused"), ("stop", "aborted"), ("ignore", state)):
        assert next_state(state, degrees, ThermalSettings(on_unreadable=word)) == expected


@pytest.mark.parametrize("degrees", [1.0, 150.0])
def test_the_ends_of_the_range_are_temperatures(degrees: float) -> None:
    assert is_known(degrees)
    assert next_state("paused", degrees, GUARDED) == ("normal" if degrees == 1.0 else "aborted")


@pytest.mark.parametrize("degrees", [None, 20.0, 75.0, 96.0, math.nan])
def test_what_has_ended_stays_so(degrees: float | None) -> None:
    assert next_state("aborted", degrees, GUARDED) == "aborted"


def test_contradictions_name_their_keys() -> None:
    assert contradictions(ThermalSettings()) == contradictions(GUARDED) == ()
    upside_down = ThermalSettings(
        gpu_temp_resume_threshold_c=90.0, gpu_temp_critical_threshold_c=80.0, switch_on_thermal=True
    )
    found = contradictions(upside_down)
    assert [line.partition(" ")[0] for line in found] == [
        "thermal.gpu_temp_resume_threshold_c",
        "thermal.gpu_temp_pause_threshold_c",
        "thermal.switch_on_thermal",
    ]
