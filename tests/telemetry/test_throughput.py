"""The stopwatch against a clock that moves by hand."""

import pytest

from pretrain.telemetry.throughput import Throughput


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def watch(step=0, max_steps=10, window_steps=20):
    clock = Clock()
    return Throughput(step, max_steps, window_steps=window_steps, clock=clock), clock


def take(throughput, clock, step, supervised=100, **seconds):
    for phase, passed in seconds.items():
        clock.now += passed
        throughput.lap(phase)
    return throughput.finish(step, supervised)


def test_laps_are_split_by_phase_and_add_up():
    throughput, clock = watch()
    for phase, passed in (
        ("data", 1.0),
        ("compute", 2.0),
        ("optimizer", 0.5),
        ("compute", 0.5),
        ("evidence", 4.0),
    ):
        clock.now += passed
        throughput.lap(phase)
    timing = throughput.finish(1, 70)
    assert (timing.data_seconds, timing.compute_seconds) == (1.0, 2.5)
    assert (timing.optimizer_seconds, timing.evidence_seconds) == (0.5, 4.0)
    assert timing.tokens_per_second == 70 / 4.0  # evidence is no part of the rate
    assert timing.seconds_left == 9 * 8.0  # but of the time left
    again = take(throughput, clock, 2, data=1.0)
    assert (again.data_seconds, again.compute_seconds, again.evidence_seconds) == (1.0, 0.0, 0.0)


def test_the_rate_is_over_the_newest_steps():
    throughput, clock = watch(window_steps=2)
    rates = [take(throughput, clock, at + 1, compute=float(at + 1)).tokens_per_second for at in range(3)]
    assert rates == [100 / 1, 200 / 3, 200 / 5]


def test_the_first_step_counts_only_while_there_is_no_other():
    throughput, clock = watch(step=5, max_steps=10)
    left = [
        take(throughput, clock, step, compute=spent).seconds_left for step, spent in ((6, 60.0), (7, 2.0), (8, 4.0))
    ]
    assert left == [4 * 60.0, 3 * 2.0, 2 * 3.0]


def test_a_refused_step_costs_time_and_makes_no_progress():
    throughput, clock = watch()
    assert take(throughput, clock, 0, compute=1.0).seconds_left is None
    take(throughput, clock, 1, compute=1.0)
    assert take(throughput, clock, 1, compute=1.0).seconds_left is None
    assert take(throughput, clock, 2, compute=1.0).seconds_left == 8 * 2.0


def test_a_time_in_which_the_run_stood_still_is_no_part_of_anything():
    throughput, clock = watch()
    take(throughput, clock, 1, compute=1.0)
    take(throughput, clock, 2, compute=2.0)
    clock.now += 1000.25
    throughput.leave_out(1000.0)  # a quarter of a second of it is not aside
    timing = take(throughput, clock, 3, data=0.25, compute=2.0)
    assert (timing.data_seconds, timing.compute_seconds) == (0.5, 2.0)
    assert timing.seconds_left == 7 * 2.25
    assert timing.tokens_per_second == 300 / 5.5
    clock.now += 3.0
    throughput.leave_out(1000.0)  # nothing new
    assert take(throughput, clock, 4, compute=1.0).compute_seconds == 4.0


def test_a_clock_too_coarse_to_move_gives_no_rate():
    throughput, clock = watch()
    assert take(throughput, clock, 1, compute=0.0).tokens_per_second is None


def test_nothing_is_left_at_the_end():
    throughput, clock = watch(max_steps=1)
    assert take(throughput, clock, 1, compute=1.0).seconds_left == pytest.approx(0.0)
