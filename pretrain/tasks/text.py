"""Next-token prediction: mean cross-entropy, whole or in chunks, beside bigram and trigram tables of the text."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from pretrain.batch import Batch, InputSpec
from pretrain.errors import ConfigError
from pretrain.registry import limited
from pretrain.tasks.cross_entropy import cross_entropy
from pretrain.tasks.ngram import NgramTables, fit_ngrams
from pretrain.tasks.summary import SampleSource, ValidationSummary


@dataclass(frozen=True)
class TextSettings:
    """Next-token prediction: mean cross-entropy in nats.

    chunk_tokens: positions whose logits are made at a time, and made again for the backward pass, so that those of the
        whole batch never stand in memory; 0 = all at once.
    z_loss: weight of the mean of log(Z)^2, Z being the sum over exp(logits), in the loss that is optimised and shown
        for each step; validation is without it.
    """

    chunk_tokens: int = limited(0, at_least=0)
    z_loss: float = limited(0.0, at_least=0)


@dataclass(frozen=True)
class TextTask:
    """Every token of a window but the first is predicted from those before it: L of [B, L + 1] ids.

    What is optimised has the z-loss in it, as `TextSettings` says; the losses of samples and scores have not.
    """

    vocabulary: int
    max_positions: int
    chunk_tokens: int = 0
    z_loss: float = 0.0

    @property
    def unit(self) -> Literal["tokens", "samples"]:
        return "tokens"

    @property
    def input_spec(self) -> InputSpec:
        return InputSpec("tokens", self.vocabulary)

    @property
    def units_per_position(self) -> int:
        return 1

    @property
    def guessing_loss(self) -> float:
        return math.log(self.vocabulary)

    def supervised(self, batch: Batch) -> int:
        rows, length = batch.samples.shape
        return rows * (length - 1)

    def loss_sum(self, model: nn.Module, batch: Batch, device: torch.device) -> torch.Tensor:
        return self._cross_entropy(model, batch, device, "sum", self.z_loss)

    @torch.no_grad()
    def sample_losses(self, model: nn.Module, batch: Batch, device: torch.device) -> torch.Tensor:
        return self._row_sums(model, batch, device) / (batch.samples.shape[1] - 1)

    @torch.no_grad()
    def score(self, model: nn.Module, batch: Batch, device: torch.device) -> dict[str, torch.Tensor]:
        rows, length = batch.samples.shape
        return {
            "samples": torch.ones(rows, dtype=torch.float64),
            "supervised": torch.full((rows,), length - 1, dtype=torch.float64),
            "nats": self._row_sums(model, batch, device),
        }

    def fit_reference(self, batches: Iterable[Batch]) -> NgramTables:
        return fit_ngrams((batch.samples.numpy() for batch in batches), self.vocabulary)

    def score_reference(self, batch: Batch, reference: NgramTables) -> dict[str, torch.Tensor]:
        nats = reference.nats(batch.samples.numpy())
        return {name: torch.from_numpy(values.sum(axis=1)) for name, values in nats.items()}

    def summarize(self, totals: Mapping[str, Mapping[str, float]]) -> ValidationSummary:
        rows = list(totals.values())
        supervised = sum(row["supervised"] for row in rows)
        loss = sum(row["nats"] for row in rows) / supervised
        names = [name for name in ("bigram", "trigram") if all(name in row for row in rows)]
        return ValidationSummary(
            loss=loss,
            # The byte tokenizer is the only one: one token is one byte.
            bits_per_byte=loss / math.log(2),
            baselines={name: sum(row[name] for row in rows) / supervised for name in names},
        )

    def _row_sums(self, model: nn.Module, batch: Batch, device: torch.device) -> torch.Tensor:
        nats = self._cross_entropy(model, batch, device, "none")
        return nats.view(len(batch.samples), -1).sum(dim=1, dtype=torch.float64).cpu()

    def _cross_entropy(
        self,
        model: nn.Module,
        batch: Batch,
        device: torch.device,
        reduction: Literal["sum", "none"],
        z_loss: float = 0.0,
    ) -> torch.Tensor:
        samples = batch.samples.to(device, non_blocking=True)
        return cross_entropy(model, samples[:, :-1], samples[:, 1:], reduction, z_loss, self.chunk_tokens)


def build_text(settings: TextSettings, source: SampleSource, sequence_length: int) -> TextTask:
    """Return the task over windows of `sequence_length` + 1 tokens; ConfigError for data of another kind."""
    if source.vocabulary is None:
        raise ConfigError(
            f"task.name: text predicts tokens, but the training data holds {source.kind} samples; "
            "set task.name=iq, or name text under data.train"
        )
    return TextTask(source.vocabulary, sequence_length, settings.chunk_tokens, settings.z_loss)
