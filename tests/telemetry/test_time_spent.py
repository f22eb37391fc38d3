"""Every second of an attempt under one kind, by a clock that moves by hand."""

from pretrain.telemetry.time_spent import KINDS, TimeSpent
from tests.telemetry.test_throughput import Clock


class Day:
    """An attempt whose clock moves by hand."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.spent = TimeSpent(self.clock)

    def passes(self, seconds: float) -> None:
        self.clock.now += seconds

    def step(self, seconds: float, *, refused: bool = False, data: float = 0.5) -> None:
        self.spent.enter("data")
        self.passes(data)
        self.spent.begin_step()
        self.passes(seconds)
        if refused:
            self.spent.refuse()

    def save(self, step: int, seconds: float = 1.0) -> None:
        with self.spent.during("saving"):
            self.passes(seconds)
            self.spent.mark(step)

    def found(self) -> dict[str, float]:
        """The kinds that had any time; they add up to all of it."""
        seconds = self.spent.seconds()
        assert tuple(seconds) == KINDS
        assert sum(seconds.values()) == self.clock.now - 100.0
        return {kind: value for kind, value in seconds.items() if value}


def test_every_second_is_of_one_kind() -> None:
    day = Day()
    day.passes(4.0)
    day.save(0)
    day.step(2.0)
    with day.spent.during("validation"):
        day.passes(8.0)
    day.save(1, 0.25)
    day.passes(0.125)  # the row of the step
    day.step(2.0)
    assert day.found() == {"start_up": 4.0, "data": 1.0, "steps": 4.125, "validation": 8.0, "saving": 1.25}


def test_what_passes_aside_is_of_no_step() -> None:
    day = Day()
    day.step(2.0)
    assert day.spent.aside == 0.0
    with day.spent.during("observing"):
        day.passes(16.0)
        assert day.spent.aside == 16.0
    with day.spent.during("paused"):
        day.passes(32.0)
    day.passes(1.0)
    assert day.spent.aside == 48.0
    assert day.found() == {"data": 0.5, "steps": 3.0, "observing": 16.0, "paused": 32.0}


def test_a_refused_step_is_no_step() -> None:
    day = Day()
    day.step(2.0)
    day.step(3.0, refused=True)
    with day.spent.during("incidents"):
        day.passes(7.0)
    day.passes(1.0)
    day.step(2.0)
    assert day.found() == {"data": 1.5, "steps": 4.0, "refused": 4.0, "incidents": 7.0}


def test_a_rollback_takes_steps_back_to_the_checkpoint() -> None:
    day = Day()
    for step in range(1, 6):
        day.step(float(step), data=0.0)
        if step in (2, 4):
            day.save(step, 0.0)
    day.spent.undo(2)  # at step 5, the one that showed the damage
    day.passes(0.5)
    assert day.found() == {"steps": 3.0, "undone": 12.5}
    day.step(16.0, data=0.0)
    day.save(4, 0.0)
    day.step(1.0, data=0.0)
    day.spent.undo(4)  # the new checkpoint of that step, not the one that was undone
    assert day.found() == {"steps": 19.0, "undone": 13.5}
    day.spent.undo(0)  # a checkpoint of an earlier attempt
    assert day.found() == {"undone": 32.5}


def test_a_step_refused_before_going_back_stays_refused() -> None:
    day = Day()
    day.save(0, 0.0)
    day.step(1.0, data=0.0)
    day.step(2.0, data=0.0, refused=True)
    day.spent.undo(0)
    assert day.found() == {"undone": 1.0, "refused": 2.0}


def test_steps_after_the_newest_checkpoint_are_lost_with_the_end() -> None:
    day = Day()
    day.step(1.0, data=0.0)
    day.spent.lose_the_rest()
    assert day.found() == {"undone": 1.0}  # no checkpoint of this attempt at all

    day = Day()
    day.save(0, 0.0)
    day.step(1.0, data=0.0)
    day.save(1, 0.0)
    day.step(2.0, data=0.0, refused=True)
    day.step(4.0)
    day.step(8.0)
    day.spent.lose_the_rest()
    day.passes(16.0)  # writing down that it ended
    day.spent.lose_the_rest()
    assert day.found() == {"steps": 1.0, "refused": 2.0, "data": 1.0, "undone": 28.0}


def test_what_a_rollback_removed_is_no_checkpoint_at_the_end() -> None:
    day = Day()
    for step in (1, 2):
        day.step(1.0, data=0.0)
        day.save(step, 0.0)
    day.spent.undo(1)
    day.step(2.0, data=0.0)
    day.spent.lose_the_rest()
    assert day.found() == {"steps": 1.0, "undone": 3.0}


def test_an_error_inside_ends_its_kind() -> None:
    day = Day()
    try:
        with day.spent.during("saving"):
            day.passes(1.0)
            raise KeyError
    except KeyError:
        day.passes(2.0)
    assert day.found() == {"saving": 1.0, "start_up": 2.0}
