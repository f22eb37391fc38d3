"""Accumulation: one mean over everything supervised in a step, however it is cut."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from pretrain import gradients
from pretrain.batch import StepBatch
from pretrain.models import DecoderSettings, build_decoder
from pretrain.tasks import IqSettings, TextSettings, build_iq, build_text
from tests.contract.rows import Complex, Tokens
from tests.gradients.masked import CPU, MaskedSquares, cut


def float64_case(kind: str) -> tuple[nn.Module, gradients.BatchLoss, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    if kind == "ragged masks":
        model = nn.Linear(6, 6).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(generator=generator)
        return model, MaskedSquares(), torch.randn(8, 6, generator=generator, dtype=torch.float64)
    settings = DecoderSettings(width=16, heads=2, kv_heads=1)
    task: gradients.BatchLoss
    if kind == "text":
        text = build_text(TextSettings(), Tokens(), 12)
        samples = torch.randint(0, 16, (8, 13), generator=generator)
        task, spec, positions = text, text.input_spec, text.max_positions
    else:
        iq = build_iq(IqSettings(patch_samples=4), Complex(), 32)
        samples = torch.randn(8, 32, dtype=torch.complex64, generator=generator)
        task, spec, positions = iq, iq.input_spec, iq.max_positions
    return build_decoder(settings, spec, positions, 1).double(), task, samples


def accumulated(
    model: nn.Module, task: gradients.BatchLoss, step: StepBatch
) -> tuple[float, dict[str, torch.Tensor], int]:
    loss, count = gradients.accumulate(model, task, step, CPU, nullcontext())
    assert not loss.requires_grad
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    return float(loss), found, count


@pytest.mark.parametrize("kind", ["ragged masks", "text", "iq"])
@pytest.mark.parametrize("sizes", [[2, 2, 2, 2], [5, 1, 2], [1] * 8], ids=str)
def test_s16_one_batch_of_8_equals_any_cut_of_it_to_1e_12(kind: str, sizes: list[int]) -> None:
    model, task, samples = float64_case(kind)
    whole_loss, whole, whole_count = accumulated(model, task, cut(samples, [8]))
    loss, parts, count = accumulated(model, task, cut(samples, sizes))
    assert count == whole_count
    assert loss == pytest.approx(whole_loss, abs=1e-12)
    assert parts.keys() == whole.keys()
    for name, gradient in parts.items():
        assert gradient.dtype == torch.float64
        torch.testing.assert_close(gradient, whole[name], rtol=0, atol=1e-12)


def test_s16_a_mean_of_means_would_fail_that_test() -> None:
    model, task, samples = float64_case("ragged masks")
    loss, _, _ = accumulated(model, task, cut(samples, [8]))
    parts = [accumulated(model, task, StepBatch((batch,), 0, 0))[0] for batch in cut(samples, [4, 4]).micro_batches]
    assert abs(sum(parts) / 2 - loss) > 1e-2


def test_s16_equal_micro_batches_give_the_mean_of_their_gradients() -> None:
    model, task, samples = float64_case("text")
    step = cut(samples, [4, 4])
    _, both, _ = accumulated(model, task, step)
    _, first, _ = accumulated(model, task, StepBatch(step.micro_batches[:1], 0, 0))
    _, second, _ = accumulated(model, task, StepBatch(step.micro_batches[1:], 0, 0))
    for name, gradient in both.items():
        torch.testing.assert_close(gradient, (first[name] + second[name]) / 2, rtol=0, atol=1e-12)


def test_s17_a_short_step_is_normalised_by_what_it_holds_and_nothing_leaks_into_the_next() -> None:
    model, task, samples = float64_case("text")
    full = cut(samples, [2, 2, 2, 2])
    loss, alone, count = accumulated(model, task, StepBatch(full.micro_batches[:1], 0, 0))
    assert count == 2 * 12
    accumulated(model, task, full)
    again, after, _ = accumulated(model, task, StepBatch(full.micro_batches[:1], 0, 0))
    assert again == loss
    assert all(torch.equal(after[name], alone[name]) for name in alone)


def test_s17_a_step_that_supervises_nothing_is_an_error_that_says_where() -> None:
    model, task, samples = float64_case("ragged masks")
    nothing = StepBatch(cut(samples, [1, 7]).micro_batches[:1], epoch=2, position=40)
    with pytest.raises(ValueError, match=r"epoch 2, position 40: expected supervised units"):
        gradients.accumulate(model, task, nothing, CPU, nullcontext())


@pytest.mark.parametrize("kind", ["ragged masks", "text", "iq"])
def test_a_scale_that_is_a_power_of_two_changes_no_bit_where_nothing_overflows(kind: str) -> None:
    model, task, samples = float64_case(kind)
    step = cut(samples, [5, 1, 2])
    loss, plain, _ = accumulated(model, task, step)
    scaled_loss, _ = gradients.accumulate(model, task, step, CPU, nullcontext(), 2.0**16)
    assert float(scaled_loss) == loss
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, plain[name])
