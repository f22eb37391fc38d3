"""Next-patch prediction of IQ recordings, beside the zero predictor and one linear predictor."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from pretrain.batch import Batch, InputSpec
from pretrain.errors import ConfigError
from pretrain.registry import limited
from pretrain.tasks.linear_predictor import LinearPredictor, fit_linear_predictor
from pretrain.tasks.summary import SampleSource, ValidationSummary, ratio

# The one class of a recording that names none.
UNLABELLED = "unlabelled"


@dataclass(frozen=True)
class IqSettings:
    """Next-patch prediction of complex samples.

    patch_samples: complex samples in a patch, the unit that one position of the model takes in and predicts.
    """

    patch_samples: int = limited(16, at_least=1)


def prepare_iq_input(samples: torch.Tensor, patch_samples: int) -> torch.Tensor:
    """Return complex [B, S] as float32 patches [B, S / P, 2 P]: I and Q in turn, window power 1.

    The power is summed and divided by in float64, so that any scale of recording gives the same patches. A
    window of zeros has no power to normalise and stays zeros; a NaN or infinite sample leaves NaN in the
    window. Raises ValueError when S is not a multiple of P.
    """
    rows, length = samples.shape
    if length % patch_samples != 0:
        raise ValueError(f"expected a multiple of patch_samples ({patch_samples}) samples, found {length}")
    pairs = torch.view_as_real(samples).double()
    power = pairs.square().sum(dim=(1, 2), keepdim=True) / length
    scaled = pairs / torch.where(power == 0, 1.0, power).sqrt()
    return scaled.float().view(rows, length // patch_samples, 2 * patch_samples)


@dataclass(frozen=True)
class IqTask:
    """Every patch of a window but the first is predicted from those before it.

    The loss is the squared error, summed over I and Q, per predicted complex sample: 1 is what predicting
    zeros costs on a stationary signal. NMSE divides the error power by the power of the very samples that
    were predicted.
    """

    patch_samples: int
    max_positions: int

    @property
    def unit(self) -> Literal["tokens", "samples"]:
        return "samples"

    @property
    def input_spec(self) -> InputSpec:
        return InputSpec("patches", 2 * self.patch_samples)

    @property
    def units_per_position(self) -> int:
        return self.patch_samples

    @property
    def guessing_loss(self) -> float:
        return 1.0

    def supervised(self, batch: Batch) -> int:
        rows, length = batch.samples.shape
        return rows * (length - self.patch_samples)

    def loss_sum(self, model: nn.Module, batch: Batch, device: torch.device) -> torch.Tensor:
        predicted, target = self._predict(model, batch, device)
        return (predicted - target).square().sum()

    @torch.no_grad()
    def sample_losses(self, model: nn.Module, batch: Batch, device: torch.device) -> torch.Tensor:
        predicted, target = self._predict(model, batch, device)
        return _power(predicted - target).cpu() / (batch.samples.shape[1] - self.patch_samples)

    @torch.no_grad()
    def score(self, model: nn.Module, batch: Batch, device: torch.device) -> dict[str, torch.Tensor]:
        predicted, target = self._predict(model, batch, device)
        rows, length = batch.samples.shape
        error, power = torch.stack((_power(predicted - target), _power(target))).cpu()
        return {
            "samples": torch.ones(rows, dtype=torch.float64),
            "supervised": torch.full((rows,), length - self.patch_samples, dtype=torch.float64),
            "error": error,
            "power": power,
        }

    def fit_reference(self, batches: Iterable[Batch]) -> LinearPredictor:
        return fit_linear_predictor(prepare_iq_input(batch.samples, self.patch_samples) for batch in batches)

    def score_reference(self, batch: Batch, reference: LinearPredictor) -> dict[str, torch.Tensor]:
        patches = prepare_iq_input(batch.samples, self.patch_samples)
        return {"linear_error": _power(reference.predict(patches) - patches[:, 1:])}

    def summarize(self, totals: Mapping[str, Mapping[str, float]]) -> ValidationSummary:
        classes = {}
        for label, row in sorted(totals.items()):
            name = label or UNLABELLED
            classes[name] = {
                "nmse": ratio(row["error"], row["power"]),
                # Zeros miss the whole target: their error power is the target's power.
                "nmse_zero": ratio(row["power"], row["power"]),
                "samples": row["samples"],
            }
            if "linear_error" in row:
                classes[name]["nmse_linear"] = ratio(row["linear_error"], row["power"])
        rows = totals.values()
        return ValidationSummary(
            loss=sum(row["error"] for row in rows) / sum(row["supervised"] for row in rows),
            nmse=_mean_over(classes, "nmse"),
            nmse_zero=_mean_over(classes, "nmse_zero"),
            nmse_linear=_mean_over(classes, "nmse_linear"),
            classes=classes,
        )

    def _predict(self, model: nn.Module, batch: Batch, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        patches = prepare_iq_input(batch.samples.to(device, non_blocking=True), self.patch_samples)
        return model(patches[:, :-1]), patches[:, 1:]


def build_iq(settings: IqSettings, source: SampleSource, sequence_length: int) -> IqTask:
    """Return the task over windows of `sequence_length` complex samples.

    Raises ConfigError when the data is not complex, or the window is not two whole patches or more.
    """
    patch = settings.patch_samples
    if source.vocabulary is not None:
        raise ConfigError(
            f"task.name: iq predicts complex samples, but the training data holds {source.kind}; "
            "set task.name=text, or name recordings under data.train"
        )
    if sequence_length % patch != 0 or sequence_length < 2 * patch:
        fitting = max(2, round(sequence_length / patch)) * patch
        raise ConfigError(
            f"data.sequence_length: expected a multiple of task.patch_samples ({patch}), two or more; "
            f"found {sequence_length}; the nearest is {fitting}"
        )
    return IqTask(patch, sequence_length // patch - 1)


def _power(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares of each row, [B, T, 2 P] to float64 [B]."""
    return values.square().sum(dim=(1, 2), dtype=torch.float64)


def _mean_over(classes: Mapping[str, Mapping[str, float]], key: str) -> float | None:
    """Return the plain mean over classes, so that a rare signal counts as much as a common one."""
    if not classes or any(key not in figures for figures in classes.values()):
        return None
    return sum(figures[key] for figures in classes.values()) / len(classes)
