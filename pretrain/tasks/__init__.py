"""How a batch becomes a loss, and a validation pass a figure; one row per task."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol

import torch
from torch import nn

from pretrain.batch import Batch, InputSpec
from pretrain.registry import Entry
from pretrain.tasks.iq import IqSettings, build_iq, prepare_iq_input
from pretrain.tasks.summary import SampleSource, ValidationSummary
from pretrain.tasks.text import TextSettings, build_text


class Task(Protocol):
    """What the loop and the validation need to know of a task.

    Rows of a batch are samples. A supervised unit is a predicted token (text) or predicted complex sample
    (IQ).
    """

    @property
    def unit(self) -> Literal["tokens", "samples"]:
        """What a supervised unit is called."""

    @property
    def input_spec(self) -> InputSpec:
        """What the model must take in at each position, and has to predict for the next one."""

    @property
    def max_positions(self) -> int:
        """How many positions the model is given."""

    @property
    def units_per_position(self) -> int:
        """How many supervised units are predicted at each position."""

    @property
    def guessing_loss(self) -> float:
        """What a model that knows nothing costs: ln of the vocabulary, or 1 for a signal of power 1."""

    def supervised(self, batch: Batch) -> int:
        """Return the number of supervised units in the batch, without touching a device."""

    def loss_sum(self, model: nn.Module, batch: Batch, device: torch.device) -> torch.Tensor:
        """Return the loss summed over the supervised units: a float32 scalar on `device`, with its graph."""

    def sample_losses(self, model: nn.Module, batch: Batch, device: torch.device) -> torch.Tensor:
        """Return the mean loss of each row: float64 [rows] on the CPU, no graph."""

    def score(self, model: nn.Module, batch: Batch, device: torch.device) -> dict[str, torch.Tensor]:
        """Return what validation adds up, per row: float64 [rows] on the CPU by name, no graph.

        `samples` is 1 for each row; the rest are sums, so any batch size gives the same totals.
        """

    def fit_reference(self, batches: Iterable[Batch]) -> Any:
        """Return the baseline that the model must be compared with, fitted on these training windows."""

    def score_reference(self, batch: Batch, reference: Any) -> dict[str, torch.Tensor]:
        """Return the baseline's sums on the positions that `score` uses, under names of its own."""

    def summarize(self, totals: Mapping[str, Mapping[str, float]]) -> ValidationSummary:
        """Return the figures of a pass from the row sums of `score` and `score_reference`, added by label."""


TASKS: dict[str, Entry[Any, Task]] = {
    "text": Entry(TextSettings, build_text),
    "iq": Entry(IqSettings, build_iq),
}

__all__ = [
    "TASKS",
    "IqSettings",
    "SampleSource",
    "Task",
    "TextSettings",
    "ValidationSummary",
    "build_iq",
    "build_text",
    "prepare_iq_input",
]
