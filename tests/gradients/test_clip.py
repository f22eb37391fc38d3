"""Norm, clipping and scans: what is finite is measured, what is not stays in sight."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pretrain import gradients
from tests.gradients.masked import gradient_bytes, with_gradients

POISONS = [("inf", math.inf), ("-inf", -math.inf), ("nan", math.nan)]


def ordinary(scale: float = 1.0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(7)
    return with_gradients(*(scale * torch.randn(shape, generator=generator) for shape in ((4, 3), (5,), ())))


def exact_norm(parameters: list[nn.Parameter]) -> float:
    return math.sqrt(sum(float(p.grad.double().square().sum()) for p in parameters if p.grad is not None))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e12])
@pytest.mark.parametrize("max_norm", [0.5, 1.0, 1e6])
def test_clipping_scales_to_the_largest_norm_let_through(scale: float, max_norm: float) -> None:
    parameters, before = ordinary(scale), ordinary(scale)
    norm = exact_norm(before)
    assert float(gradients.clip(parameters, max_norm)) == pytest.approx(norm, rel=1e-6)
    ratio = gradients.clip_ratio(norm, max_norm)
    assert ratio == min(1.0, max_norm / (norm + 1e-6))
    for one, other in zip(parameters, before, strict=True):
        torch.testing.assert_close(one.grad, other.grad * ratio, rtol=1e-6, atol=0)
    if ratio == 1.0:
        assert gradient_bytes(parameters) == gradient_bytes(before)


def test_no_largest_norm_leaves_the_gradients_alone() -> None:
    parameters = ordinary(1e3)
    before = gradient_bytes(parameters)
    norm = float(gradients.clip(parameters, None))
    assert norm == pytest.approx(exact_norm(parameters), rel=1e-6)
    assert gradient_bytes(parameters) == before
    assert gradients.clip_ratio(norm, None) == 1.0


@pytest.mark.parametrize(
    ("norm", "max_norm", "ratio"),
    [(0.0, 1.0, 1.0), (0.5, 1.0, 1.0), (1.0, 1.0, 1 / (1 + 1e-6)), (4.0, 1.0, 1 / (4 + 1e-6))]
    + [(value, 1.0, 1.0) for value in (math.inf, math.nan)],
)
def test_the_ratio_for_the_record(norm: float, max_norm: float, ratio: float) -> None:
    assert gradients.clip_ratio(norm, max_norm) == pytest.approx(ratio, rel=1e-12)


@pytest.mark.parametrize(("name", "poison"), POISONS, ids=[name for name, _ in POISONS])
@pytest.mark.parametrize("place", range(3))
def test_s18_a_non_finite_element_is_seen_and_no_gradient_is_touched(name: str, poison: float, place: int) -> None:
    parameters = ordinary()
    gradient = parameters[place].grad
    assert gradient is not None
    gradient.view(-1)[-1] = poison
    before = gradient_bytes(parameters)

    loss, norm = gradients.read(torch.tensor(1.5), gradients.clip(parameters, 1.0))
    assert loss == 1.5
    assert not math.isfinite(norm)
    assert not math.isfinite(gradients.rescue(parameters, 1.0))
    assert gradient_bytes(parameters) == before
    largest = gradients.largest_element(parameters)
    assert math.isnan(largest) if name == "nan" else largest == math.inf


@pytest.mark.parametrize("element", [1e19, 1e20, 1e30, 3e38])
def test_s18_finite_gradients_whose_squares_overflow_are_measured_and_clipped(element: float) -> None:
    parameters = with_gradients(torch.full((40, 10), element), torch.full((3,), -element), torch.ones(2))
    before = gradient_bytes(parameters)
    exact = exact_norm(parameters)
    assert gradients.read(torch.tensor(0.0), gradients.clip(parameters, 1.0))[1] == math.inf
    assert gradient_bytes(parameters) == before

    assert gradients.rescue(parameters, 1.0) == pytest.approx(exact, rel=1e-7)
    assert exact_norm(parameters) == pytest.approx(1.0, rel=1e-5)
    assert gradients.largest_element(parameters) == pytest.approx(1 / math.sqrt(403), rel=1e-5)


def test_s18_a_rescue_without_a_largest_norm_only_measures() -> None:
    parameters = with_gradients(torch.full((4,), 1e30))
    before = gradient_bytes(parameters)
    assert gradients.rescue(parameters, None) == pytest.approx(2e30, rel=1e-6)
    assert gradient_bytes(parameters) == before


@pytest.mark.parametrize(
    ("loss", "norm"),
    [(1.25, 3.5), (math.nan, 1.0), (1.0, math.nan), (math.inf, -math.inf), (0.1, 2**-140)],
    ids=str,
)
def test_reading_keeps_every_bit(loss: float, norm: float) -> None:
    read = gradients.read(torch.tensor(loss), torch.tensor(norm))
    expected = (torch.tensor(loss).item(), torch.tensor(norm).item())
    assert [repr(value) for value in read] == [repr(value) for value in expected]


def test_reading_takes_a_float64_loss() -> None:
    assert gradients.read(torch.tensor(0.1, dtype=torch.float64), torch.tensor(0.5)) == (0.1, 0.5)


class HostReads(TorchDispatchMode):
    """Counts what would make the host wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func._schema.name in ("aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal")
        return func(*args, **(kwargs or {}))


def test_clipping_never_waits_for_the_device() -> None:
    parameters = ordinary()
    with HostReads() as reads:
        gradients.clip(parameters, 1.0)
    assert reads.count == 0
    with HostReads() as reads:
        gradients.largest_element(parameters)
    assert reads.count == 1


@pytest.mark.parametrize(
    ("elements", "largest"),
    [([1.0, -3.0, 2.0], 3.0), ([0.0, 0.0], 0.0), ([-1e38, 1.0], 1e38), ([1.0, -math.inf], math.inf)],
    ids=str,
)
def test_the_largest_element_is_absolute(elements: list[float], largest: float) -> None:
    found = gradients.largest_element(with_gradients(torch.tensor([0.0]), torch.tensor(elements)))
    assert found == pytest.approx(largest, rel=1e-6)


def test_block_norms_are_by_block_and_find_the_poisoned_one() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 2))
    for place, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, 1.0 + place)
    blocks = [(f"block {name}", module) for name, module in model.named_children()]
    norms = gradients.block_norms(blocks)
    assert norms == pytest.approx(
        {f"block {name}": exact_norm(list(module.parameters())) for name, module in model.named_children()}
    )
    whole = float(gradients.global_norm(model.parameters()))
    assert math.hypot(*norms.values()) == pytest.approx(whole, rel=1e-6)

    model[1].weight.grad = torch.full_like(model[1].weight, 1e25)
    model[2].bias.grad = torch.tensor([0.0, math.nan])
    norms = gradients.block_norms(blocks)
    assert norms["block 1"] == pytest.approx(math.sqrt(8) * 1e25, rel=1e-6)
    assert math.isnan(norms["block 2"])
    assert math.isfinite(norms["block 0"])


def test_block_norms_of_no_blocks_are_none() -> None:
    assert gradients.block_norms([]) == {}


def test_a_model_without_gradients_is_an_error() -> None:
    with pytest.raises(ValueError, match="no parameter has a gradient"):
        gradients.global_norm([nn.Parameter(torch.ones(2))])
