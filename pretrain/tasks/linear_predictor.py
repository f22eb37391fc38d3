"""The best linear guess of the next patch from the four before it: what a model of a signal must beat."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from pretrain.errors import DataError

CONTEXT_PATCHES = 4


@dataclass(frozen=True)
class LinearPredictor:
    """weights: float64 [4 * size, size], the oldest patch of the context first."""

    weights: torch.Tensor

    def predict(self, patches: torch.Tensor) -> torch.Tensor:
        """Return the guess for patches 1 to T - 1 of windows [B, T, size]: float64 [B, T - 1, size]."""
        return _contexts(patches) @ self.weights


def fit_linear_predictor(batches: Iterable[torch.Tensor]) -> LinearPredictor:
    """Return the least-squares predictor of patches 1 to T - 1 of every window, in batches [B, T, size].

    The normal equations are summed in float64, one batch in memory at a time, and solved with the smallest
    weights where the signals leave a direction free. Raises ValueError without any window, DataError where one holds
    what is not finite: files are checked when they are opened, so that it was read wrongly, or has changed since.
    """
    gram = moments = None
    for patches in batches:
        context = _contexts(patches).flatten(0, 1)
        target = patches[:, 1:].double().flatten(0, 1)
        gram = context.T @ context if gram is None else gram + context.T @ context
        moments = context.T @ target if moments is None else moments + context.T @ target
    if gram is None or moments is None:
        raise ValueError("expected training windows to fit the linear predictor on, found none")
    if not torch.isfinite(gram).all() or not torch.isfinite(moments).all():
        raise DataError("data.train: a window that the linear predictor is fitted on holds samples that are not finite")
    return LinearPredictor(torch.linalg.lstsq(gram, moments, driver="gelsd").solution)


def _contexts(patches: torch.Tensor) -> torch.Tensor:
    """Return the four patches before each of patches 1 to T - 1, with zeros before the window's start."""
    rows, count, size = patches.shape
    padded = patches.new_zeros((rows, CONTEXT_PATCHES - 1 + count - 1, size), dtype=torch.float64)
    padded[:, CONTEXT_PATCHES - 1 :] = patches[:, :-1]
    return padded.unfold(1, CONTEXT_PATCHES, 1).transpose(2, 3).flatten(2)
