"""What every layer is made of: matrices and tables that draw nothing, and norms."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import nn

NORM_EPS = 1e-6


class Linear(nn.Linear):
    """A matrix without bias, left unset: `initialize` draws every parameter from one generator.

    The stock constructor would draw from the global generator, which belongs to the run.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def reset_parameters(self) -> None:
        """Draws nothing."""


class Embedding(nn.Embedding):
    """A table of vectors, left unset like `Linear`."""

    def reset_parameters(self) -> None:
        """Draws nothing."""


def float32_linear(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return `inputs @ weight.T` in the weight's own type, under autocast too."""
    with torch.autocast(inputs.device.type, enabled=False):
        return F.linear(inputs.to(weight.dtype), weight)


def rms_norm(width: int) -> nn.Module:
    """Return x / sqrt(mean(x^2) + 1e-6) * scale over the last dimension: Zhang and Sennrich, arXiv 1910.07467."""
    return nn.RMSNorm(width, eps=NORM_EPS)


def layer_norm(width: int) -> nn.Module:
    """Return the norm of x - mean(x), with a scale and no bias: Ba et al., arXiv 1607.06450, equation 4."""
    return nn.LayerNorm(width, eps=NORM_EPS, bias=False)


NORMS: Mapping[str, Callable[[int], nn.Module]] = {"rmsnorm": rms_norm, "layernorm": layer_norm}


def drop(values: torch.Tensor, share: float, training: bool) -> torch.Tensor:
    """Zero a share of the elements in training and scale up the others: Srivastava et al., JMLR 15 (2014), 1929.

    The draws are of the global generator, which is part of a checkpoint; without dropout there are none.
    """
    return F.dropout(values, share, training) if share > 0 else values


# Of a thread: the backward pass of a GPU has its own, and computes again in it.
_computed_again: ContextVar[bool] = ContextVar("computed_again", default=False)


def is_computed_again() -> bool:
    """Whether this is a pass that activation checkpointing makes again, and that has been seen and counted already."""
    return _computed_again.get()


@contextmanager
def computing_again() -> Iterator[None]:
    """Say so of what is computed within."""
    token = _computed_again.set(True)
    try:
        yield
    finally:
        _computed_again.reset(token)
