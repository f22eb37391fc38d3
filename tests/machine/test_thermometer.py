"""When the temperature is asked for, and how a pause waits, by a clock that only the test moves."""

import pytest

from pretrain.machine.signals import StopRequest
from pretrain.machine.thermometer import Thermometer
from pretrain.policy.thermal import ThermalSettings


class Clock:
    """A clock that moves when somebody sleeps, or is set."""

    def __init__(self) -> None:
        self.now = 100.0
        self.naps: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds


def thermometer(*readings: float | None, **settings: object) -> tuple[Thermometer, Clock, list[float | None]]:
    clock, left = Clock(), list(readings)
    found = ThermalSettings(gpu_temp_guard=True, **settings)  # type: ignore[arg-type]
    return Thermometer(found, lambda: left.pop(0), clock=clock, sleep=clock.sleep), clock, left


def test_it_is_asked_at_most_once_in_an_interval() -> None:
    guard, clock, left = thermometer(70.0, 90.0, 74.0)
    for now, states in (
        (100.0, "normal"),
        (104.999, "normal"),
        (105.0, "paused"),
        (109.0, "paused"),
        (110.5, "normal"),
    ):
        clock.now = now
        assert guard.poll() == states
    assert left == []
    assert guard.temperature_c == 74.0


def test_an_injected_reading_is_due_at_once_and_only_once() -> None:
    guard, clock, left = thermometer(70.0, 70.0)
    assert guard.poll() == "normal"
    clock.now += 1
    assert guard.poll(90.0) == "paused"
    assert guard.poll() == "paused"
    assert len(left) == 1
    clock.now += 5
    assert guard.poll() == "normal"
    assert guard.paused_seconds == 5.0


def test_waiting_sleeps_in_naps_until_the_next_reading_is_due() -> None:
    guard, clock, _ = thermometer(90.0, gpu_temp_poll_interval_seconds=1.0)
    guard.poll()
    guard.wait(StopRequest())
    assert clock.now == pytest.approx(101.0)
    assert max(clock.naps) <= 0.1


def test_a_signal_ends_the_waiting_within_a_nap() -> None:
    guard, clock, _ = thermometer(90.0, gpu_temp_poll_interval_seconds=3600.0)
    guard.poll()
    stop, sleep = StopRequest(), clock.sleep

    def interrupted(seconds: float) -> None:
        sleep(seconds)
        if len(clock.naps) == 3:
            stop.name = "SIGTERM"

    guard._sleep = interrupted
    guard.wait(stop)
    assert len(clock.naps) == 3


@pytest.mark.parametrize(
    ("reading", "words"),
    [(88.0, "the GPU is at 88 °C"), (255.0, "says 255 °C, which is no temperature"), (None, "cannot be read")],
)
def test_what_was_read_is_said(reading: float | None, words: str) -> None:
    guard, _, _ = thermometer(reading)
    guard.poll()
    assert words in guard.described()
