"""When things that happen every n steps are due, as tables."""

import pytest

from pretrain.policy.cadence import is_due, is_due_or_last, is_on_cadence


@pytest.mark.parametrize(
    ("step", "every", "due"),
    [
        (0, 10, False),
        (9, 10, False),
        (10, 10, True),
        (11, 10, False),
        (20, 10, True),
        (1, 1, True),
        (5, 0, False),
    ],
)
def test_is_due(step, every, due):
    assert is_due(step, every) is due


@pytest.mark.parametrize(
    ("step", "every", "max_steps", "due"),
    [(10, 10, 25, True), (24, 10, 25, False), (25, 10, 25, True), (25, 0, 25, False), (0, 10, 25, False)],
)
def test_is_due_or_last(step, every, max_steps, due):
    assert is_due_or_last(step, every, max_steps) is due


@pytest.mark.parametrize(("step", "on"), [(0, True), (1, False), (100, True), (150, False), (1000, True)])
def test_step_0_is_on_every_cadence(step, on):
    assert is_on_cadence(step, 100) is on
