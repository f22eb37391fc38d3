"""How many samples of each training domain a step has read."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pretrain.policy.mixture import Counts


class Mixture:
    """Counts samples by domain; windows: how many each domain has, in the order in which they are numbered."""

    def __init__(self, windows: Mapping[str, int]) -> None:
        self._names = list(windows)
        self._ends = np.cumsum(list(windows.values()))
        total = int(self._ends[-1])
        self.shares = {name: count / total for name, count in windows.items()}

    def counts(self, indices: NDArray[np.int64]) -> Counts:
        """Return how many of these windows belong to each domain."""
        owners = np.searchsorted(self._ends, indices, side="right")
        found = np.bincount(owners, minlength=len(self._names))
        return dict(zip(self._names, found.tolist(), strict=True))
