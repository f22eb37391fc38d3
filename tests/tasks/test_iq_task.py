"""The IQ task: patches of unit power, squared error per predicted sample, NMSE by class."""

import math

import pytest
import torch
from torch import nn

from pretrain.batch import Batch
from pretrain.errors import ConfigError
from pretrain.tasks import IqSettings, build_iq, prepare_iq_input
from tests.contract.rows import Complex, Tokens

CPU = torch.device("cpu")
TASK = build_iq(IqSettings(patch_samples=4), Complex(), 32)


class Scaled(nn.Module):
    """Predicts each patch as the one before it, times a factor; 0 is the zero predictor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        return patches * self.factor


def recording(rows: int = 10, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    samples = torch.randn(rows, 32, dtype=torch.complex64, generator=generator)
    return samples * torch.logspace(-3, 3, rows)[:, None]


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e12, 1e30])
def test_every_window_has_unit_complex_power_at_any_scale(scale: float) -> None:
    patches = prepare_iq_input(recording() * scale, 4)
    assert patches.shape == (10, 8, 8)
    assert patches.dtype == torch.float32
    torch.testing.assert_close(patches.double().square().sum((1, 2)) / 32, torch.ones(10, dtype=torch.float64))


def test_i_and_q_take_turns_in_a_patch() -> None:
    samples = torch.tensor([[1 + 2j, 3 + 4j, 5 + 6j, 7 + 8j]])
    patches = prepare_iq_input(samples, 2)
    rms = math.sqrt(sum(number**2 for number in range(1, 9)) / 4)
    torch.testing.assert_close(patches * rms, torch.tensor([[[1.0, 2, 3, 4], [5, 6, 7, 8]]]))


def test_a_window_of_zeros_stays_zeros() -> None:
    samples = recording(3)
    samples[1] = 0
    patches = prepare_iq_input(samples, 4)
    assert not patches[1].any()
    assert torch.isfinite(patches).all()


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_non_finite_sample_is_not_normalised_away(poison: float) -> None:
    samples = recording(3)
    samples[1, 5] = complex(poison, 0)
    patches = prepare_iq_input(samples, 4)
    assert patches[1].isnan().any()
    assert torch.isfinite(patches[[0, 2]]).all()
    batch = Batch(samples, 0, 0, ("",) * 3)
    assert not math.isfinite(float(TASK.loss_sum(Scaled(0.5), batch, CPU).detach()))


def test_a_part_of_a_patch_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"multiple of patch_samples \(5\) samples, found 32"):
        prepare_iq_input(recording(), 5)


def test_the_loss_is_the_squared_error_per_predicted_sample() -> None:
    samples = recording()
    batch = Batch(samples, 0, 0, ("",) * 10)
    assert TASK.supervised(batch) == 10 * (32 - 4)
    patches = prepare_iq_input(samples, 4).double()
    rows = (patches[:, :-1] * 0.5 - patches[:, 1:]).square().sum((1, 2))
    assert float(TASK.loss_sum(Scaled(0.5), batch, CPU).detach()) == pytest.approx(float(rows.sum()), rel=1e-6)
    torch.testing.assert_close(TASK.sample_losses(Scaled(0.5), batch, CPU), rows / 28, rtol=1e-6, atol=0)


def validated(size: int, factor: float) -> dict[str, dict[str, float]]:
    labels = ("psk", "noise", "psk", "chirp", "noise") * 2
    samples = recording()
    reference = TASK.fit_reference([Batch(recording(40, seed=2), 0, 0, ("",) * 40)])
    totals: dict[str, dict[str, float]] = {}
    for start in range(0, 10, size):
        rows, names = samples[start : start + size], labels[start : start + size]
        batch = Batch(rows, 0, start, names)
        scores = TASK.score(Scaled(factor), batch, CPU) | TASK.score_reference(batch, reference)
        for row, name in enumerate(names):
            into = totals.setdefault(name, {})
            for key, values in scores.items():
                into[key] = into.get(key, 0.0) + float(values[row])
    return totals


def test_s44_ragged_batches_give_the_same_figures() -> None:
    whole = TASK.summarize(validated(10, 0.5))
    for size in (1, 3, 4):
        summary = TASK.summarize(validated(size, 0.5))
        assert summary.loss == pytest.approx(whole.loss, rel=1e-12)
        assert summary.nmse == pytest.approx(whole.nmse, rel=1e-12)
        assert summary.nmse_linear == pytest.approx(whole.nmse_linear, rel=1e-12)


def test_nmse_is_by_class_and_its_mean_counts_classes_alike() -> None:
    summary = TASK.summarize(
        {
            "noise": {"error": 30.0, "power": 30.0, "linear_error": 33.0, "supervised": 28.0, "samples": 1.0},
            "chirp": {"error": 20.0, "power": 80.0, "linear_error": 60.0, "supervised": 84.0, "samples": 3.0},
        }
    )
    assert summary.classes == {
        "chirp": {"nmse": 0.25, "nmse_zero": 1.0, "nmse_linear": 0.75, "samples": 3.0},
        "noise": {"nmse": 1.0, "nmse_zero": 1.0, "nmse_linear": 1.1, "samples": 1.0},
    }
    assert list(summary.classes) == ["chirp", "noise"]
    assert summary.nmse == 0.625
    assert summary.nmse_zero == 1.0
    assert summary.nmse_linear == pytest.approx(0.925)
    assert summary.loss == 50 / 112
    assert (summary.bits_per_byte, summary.baselines) == (None, {})


def test_the_zero_predictor_scores_one_everywhere() -> None:
    summary = TASK.summarize(validated(10, 0.0))
    assert {name: figures["nmse"] for name, figures in summary.classes.items()} == {"chirp": 1, "noise": 1, "psk": 1}
    assert {name: figures["samples"] for name, figures in summary.classes.items()} == {"chirp": 2, "noise": 4, "psk": 4}


def test_a_silent_class_has_no_nmse_and_says_so() -> None:
    row = {"error": 0.5, "power": 0.0, "supervised": 28.0, "samples": 1.0}
    summary = TASK.summarize({"": row})
    assert math.isnan(summary.classes["unlabelled"]["nmse"])
    assert summary.nmse is not None
    assert math.isnan(summary.nmse)
    assert summary.nmse_linear is None
    assert summary.loss == 0.5 / 28


@pytest.mark.parametrize(
    ("length", "patch", "nearest"),
    [(40, 16, 32), (41, 16, 48), (16, 16, 32), (8, 16, 32), (513, 16, 512), (1, 1, 2)],
)
def test_a_window_that_is_not_two_whole_patches_is_refused(length: int, patch: int, nearest: int) -> None:
    text = rf"data\.sequence_length: expected a multiple of task\.patch_samples \({patch}\).* {length}; .* {nearest}$"
    with pytest.raises(ConfigError, match=text):
        build_iq(IqSettings(patch_samples=patch), Complex(), length)


@pytest.mark.parametrize(("length", "patch", "positions"), [(32, 16, 1), (512, 16, 31), (2, 1, 1)])
def test_the_model_sees_every_patch_but_the_last(length: int, patch: int, positions: int) -> None:
    task = build_iq(IqSettings(patch_samples=patch), Complex(), length)
    assert task.max_positions == positions
    assert task.input_spec.size == 2 * patch


def test_tokens_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"task\.name: iq predicts complex samples, .* tokens; set task\.name=text"):
        build_iq(IqSettings(), Tokens(), 32)
