"""Several optimizers, each over its own parameters, that are one to whoever steps, saves or restores them."""

from collections.abc import Callable, Sequence

import torch


class Combined(torch.optim.Optimizer):
    """The groups and the state of every part, which stay those of the parts: a change of one is a change of both."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = tuple(parts)
        for part in parts:
            self.state.update(part.state)
            part.state = self.state

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Let each part take its step; TypeError for a closure, which each part would run again."""
        if closure is not None:
            raise TypeError("expected no closure: the gradients are there already")
        for part in self.parts:
            part.step()


def combine(parts: Sequence[torch.optim.Optimizer | None]) -> torch.optim.Optimizer:
    """Return one optimizer for all parts that are there; the part itself where there is one only."""
    given = [part for part in parts if part is not None]
    return given[0] if len(given) == 1 else Combined(given)
