"""The scale of the loss: halved by an overflow, doubled by a long stretch without, between its two ends."""

import pytest

from pretrain.policy import loss_scale
from pretrain.policy.loss_scale import INITIAL, LARGEST, LEAST, LossScale, can_fall, on_accepted, on_overflow


def test_it_begins_high() -> None:
    assert LossScale() == LossScale(INITIAL, 0)


def test_it_doubles_after_every_growth_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL", 3)
    state, found = LossScale(8.0), []
    for _ in range(7):
        state = on_accepted(state)
        found.append((state.scale, state.growth_tracker))
    assert found == [(8.0, 1), (8.0, 2), (16.0, 0), (16.0, 1), (16.0, 2), (32.0, 0), (32.0, 1)]


def test_an_overflow_halves_it_and_begins_the_interval_again() -> None:
    assert on_overflow(LossScale(8.0, 1999)) == LossScale(4.0, 0)


def test_it_stays_between_its_ends() -> None:
    assert on_accepted(LossScale(LARGEST, loss_scale.GROWTH_INTERVAL - 1)) == LossScale(LARGEST, 0)
    assert on_overflow(LossScale(LEAST, 5)) == LossScale(LEAST, 0)
    assert (can_fall(LossScale(LEAST)), can_fall(LossScale(2 * LEAST))) == (False, True)


def test_every_scale_is_a_power_of_two_so_that_unscaling_is_exact() -> None:
    state = LossScale(LARGEST)
    while can_fall(state):
        assert (1.0 / state.scale) * state.scale == 1.0
        assert state.scale.hex().startswith("0x1.0000000000000p")
        state = on_overflow(state)
    assert state.scale == LEAST
