"""One full pass over every validation set: exact sums by signal class, beside baselines scored on the same windows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from pretrain import progress
from pretrain.batch import Batch
from pretrain.data import Windows
from pretrain.data.loader import in_order
from pretrain.evidence import rows
from pretrain.machine.precision import autocast
from pretrain.machine.signals import StopRequest
from pretrain.tasks import Task, ValidationSummary

# Windows that a baseline is fitted on, spread evenly over the training set: enough for 128 unknowns many times over.
_REFERENCE_WINDOWS = 8192

Totals = dict[str, dict[str, float]]


@dataclass(frozen=True)
class DomainResult:
    """What one validation set said: the number of windows scored and the task's summary."""

    samples: int
    summary: ValidationSummary


class Validator:
    """The validation sets of a run; baselines are fitted and scored once, at the first pass.

    device: where the model computes.
    """

    def __init__(
        self,
        task: Task,
        train: Windows,
        domains: Mapping[str, Windows],
        batch_size: int,
        precision: str,
        device: torch.device,
    ) -> None:
        self._task, self._train, self._domains = task, train, domains
        self._batch_size, self._precision, self.device = batch_size, precision, device
        self._baselines: dict[str, Totals] | None = None

    def run(self, model: nn.Module, stop: StopRequest) -> dict[str, DomainResult] | None:
        """Score every window of every domain; None when a signal asked the run to stop before the end."""
        if self._baselines is None:
            self._baselines = self._score_baselines(stop)
            if self._baselines is None:
                return None
        was_training = model.training
        model.eval()
        try:
            return self._run(model, stop, self._baselines)
        finally:
            model.train(was_training)

    def _run(self, model: nn.Module, stop: StopRequest, baselines: dict[str, Totals]) -> dict[str, DomainResult] | None:
        results = {}
        for name, windows in self._domains.items():
            totals = {label: dict(values) for label, values in baselines[name].items()}
            for batch in in_order(windows, self._batch_size):
                if stop.name is not None:
                    return None
                with torch.inference_mode(), autocast(self.device, self._precision):
                    scores = self._task.score(model, batch, self.device)
                _add(totals, batch, scores)
            results[name] = DomainResult(len(windows), self._task.summarize(totals))
        return results

    def _score_baselines(self, stop: StopRequest) -> dict[str, Totals] | None:
        reference = self._task.fit_reference(self._reference_batches())
        baselines: dict[str, Totals] = {}
        for name, windows in self._domains.items():
            totals: Totals = {}
            for batch in in_order(windows, self._batch_size):
                if stop.name is not None:
                    return None
                _add(totals, batch, self._task.score_reference(batch, reference))
            baselines[name] = totals
        return baselines

    def _reference_batches(self) -> Iterator[Batch]:
        count = len(self._train)
        chosen = np.unique(np.linspace(0, count - 1, min(count, _REFERENCE_WINDOWS)).astype(np.int64))
        for start in range(0, len(chosen), 256):
            progress.moved()  # What a baseline counts of the batch before may take as long as reading this one.
            part = chosen[start : start + 256]
            yield Batch(self._train.read(part), 0, int(part[0]), self._train.labels(part))


def _add(totals: Totals, batch: Batch, scores: Mapping[str, torch.Tensor]) -> None:
    """Add each row's scores to the totals of its class, row by row, so that the batch size changes no bit."""
    progress.moved()
    columns = {key: values.tolist() for key, values in scores.items()}
    for row, label in enumerate(batch.labels):
        into = totals.setdefault(label, {})
        for key, values in columns.items():
            into[key] = into.get(key, 0.0) + values[row]


def ranked_value(results: Mapping[str, DomainResult], rank_by: str) -> float:
    """Return the loss that ranks checkpoints: one domain's, or the plain mean over domains."""
    if rank_by != "mean":
        return results[rank_by].summary.loss
    return sum(result.summary.loss for result in results.values()) / len(results)


def validation_row(step: int, domain: str, result: DomainResult) -> dict[str, Any]:
    """Return the `validation` row of the metric stream."""
    summary = result.summary
    return rows.validation(
        step=step,
        domain=domain,
        samples=result.samples,
        loss=summary.loss,
        bits_per_byte=summary.bits_per_byte,
        nmse=summary.nmse,
        nmse_zero=summary.nmse_zero,
        nmse_linear=summary.nmse_linear,
        classes=summary.classes,
    )


def measures_of(summary: ValidationSummary) -> dict[str, float]:
    """Return the model's own figures by name, without those that do not apply to the task."""
    named = {"loss": summary.loss, "bits_per_byte": summary.bits_per_byte, "nmse": summary.nmse}
    return {name: value for name, value in named.items() if value is not None}


def baselines_of(summary: ValidationSummary) -> dict[str, float]:
    """Return what the figures must be compared with, by name."""
    named = {**summary.baselines, "nmse_zero": summary.nmse_zero, "nmse_linear": summary.nmse_linear}
    return {name: value for name, value in named.items() if value is not None}
