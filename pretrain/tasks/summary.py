"""What a task is built over, and what a validation pass says at its end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


class SampleSource(Protocol):
    """The two things that a task must know of the training windows."""

    @property
    def kind(self) -> str:
        """`tokens` or `complex`."""

    @property
    def vocabulary(self) -> int | None:
        """Number of token ids; None for complex samples."""


@dataclass(frozen=True)
class ValidationSummary:
    """The figures of one validation pass over one domain.

    loss: mean over the supervised units: nats per token, or squared error per complex sample.
    nmse: error power over target power, the plain mean over signal classes; None for text.
    nmse_zero: the same for a prediction of zeros.
    nmse_linear: the same for the linear predictor; None where that was not scored.
    classes: the same by signal class, with `samples`, the number of windows; empty for text.
    baselines: what the loss is to be compared with: `bigram` and `trigram` for text, in nats per token.
    """

    loss: float
    bits_per_byte: float | None = None
    nmse: float | None = None
    nmse_zero: float | None = None
    nmse_linear: float | None = None
    classes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    baselines: Mapping[str, float] = field(default_factory=dict)


def ratio(numerator: float, denominator: float) -> float:
    """Return the quotient, or NaN where there is nothing to divide by: a class of silence has no NMSE."""
    return numerator / denominator if denominator != 0 else float("nan")
