"""The linear predictor: least squares over four patches, on the positions that a model is scored on."""

import pytest
import torch

from pretrain.errors import DataError
from pretrain.tasks.linear_predictor import CONTEXT_PATCHES, fit_linear_predictor


def noise(rows: int = 30, count: int = 9, size: int = 6, seed: int = 1) -> torch.Tensor:
    return torch.randn(rows, count, size, generator=torch.Generator().manual_seed(seed))


def design(patches: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The context and target of every position, one at a time."""
    contexts, targets = [], []
    for window in patches.double():
        for place in range(1, len(window)):
            before = [
                window[place - back] if place >= back else torch.zeros(window.shape[1], dtype=torch.float64)
                for back in range(CONTEXT_PATCHES, 0, -1)
            ]
            contexts.append(torch.cat(before))
            targets.append(window[place])
    return torch.stack(contexts), torch.stack(targets)


@pytest.mark.parametrize("count", [2, 3, 5, 9])
def test_it_is_the_least_squares_solution_over_every_predicted_patch(count: int) -> None:
    patches = noise(count=count, rows=80)
    contexts, targets = design(patches)
    expected = torch.linalg.lstsq(contexts, targets, driver="gelsd").solution
    fitted = fit_linear_predictor(patches.split(7))
    torch.testing.assert_close(fitted.weights, expected, rtol=1e-8, atol=1e-10)
    guesses = fitted.predict(patches)
    assert guesses.shape == (80, count - 1, 6)
    assert guesses.dtype == torch.float64
    torch.testing.assert_close(guesses.flatten(0, 1), contexts @ expected, rtol=1e-8, atol=1e-10)


def test_no_guess_sees_the_patch_it_is_for_or_a_later_one() -> None:
    fitted = fit_linear_predictor([noise()])
    patches = noise(seed=2)
    changed = patches.clone()
    changed[:, 5:] += 1.0
    before, after = fitted.predict(patches), fitted.predict(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5], after[:, 5])


def test_a_tone_is_predicted_exactly_from_one_patch() -> None:
    turns = torch.rand(50, 1, generator=torch.Generator().manual_seed(3)) + 0.13 * torch.arange(24)
    tone = torch.view_as_real(torch.polar(torch.ones_like(turns), 6.2831853 * turns))
    patches = tone.reshape(50, 6, 8)
    errors = fit_linear_predictor([patches]).predict(patches) - patches[:, 1:]
    assert float(errors.abs().max()) < 1e-4


def test_silence_leaves_every_direction_free_and_predicts_silence() -> None:
    fitted = fit_linear_predictor([torch.zeros(3, 5, 4)])
    assert not fitted.weights.any()
    assert not fitted.predict(torch.zeros(2, 5, 4)).any()


def test_the_cut_into_batches_changes_nothing_but_rounding() -> None:
    patches = noise()
    whole = fit_linear_predictor([patches]).weights
    torch.testing.assert_close(fit_linear_predictor(patches.split(4)).weights, whole, rtol=1e-10, atol=1e-12)


def test_no_windows_are_an_error() -> None:
    with pytest.raises(ValueError, match="expected training windows"):
        fit_linear_predictor([])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_window_that_is_not_finite_is_named_and_not_solved(value: float) -> None:
    patches = torch.ones(2, 6, 4)
    patches[1, 3, 0] = value
    with pytest.raises(DataError, match="not finite"):
        fit_linear_predictor([patches])
