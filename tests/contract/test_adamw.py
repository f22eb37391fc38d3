"""AdamW: which parameters decay, the state in place before the first step, and the rate by group."""

import pytest
import torch
from torch import nn

from pretrain.optimizers import AdamWSettings, build_adamw, flat_state, set_learning_rate


def parameters(seed: int = 0) -> list[tuple[str, nn.Parameter]]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"matrix": (3, 5), "norm": (5,), "table": (7, 3), "kernel": (2, 3, 2, 2), "scalar": ()}
    return [(name, nn.Parameter(torch.randn(shape, generator=generator))) for name, shape in shapes.items()]


def give_gradients(named: list[tuple[str, nn.Parameter]], step: int) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for _, parameter in named:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize(
    ("name", "decays"),
    [("matrix", True), ("table", True), ("kernel", True), ("norm", False), ("scalar", False)],
)
def test_decay_acts_on_two_dimensions_and_more_only(name: str, decays: bool) -> None:
    named = parameters()
    before = {key: parameter.detach().clone() for key, parameter in named}
    optimizer = build_adamw(AdamWSettings(lr=0.1, weight_decay=0.5), named)
    for _, parameter in named:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    factor = 1 - 0.1 * 0.5 if decays else 1.0
    torch.testing.assert_close(dict(named)[name].detach(), before[name] * factor)


def test_the_state_made_at_build_is_what_the_first_step_would_make() -> None:
    named, plain = parameters(), parameters()
    optimizer = build_adamw(AdamWSettings(weight_decay=0.0), named)
    settings = AdamWSettings()
    stock = torch.optim.AdamW(
        plain, lr=settings.lr, betas=settings.betas, eps=settings.eps, weight_decay=0.0, fused=True
    )
    for step in range(3):
        for one, both in ((optimizer, named), (stock, plain)):
            give_gradients(both, step)
            one.step()
    ours, theirs = flat_state(optimizer), flat_state(stock)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert tensor.numpy().tobytes() == theirs[name].numpy().tobytes(), name
    for (name, one), (_, other) in zip(named, plain, strict=True):
        assert one.detach().numpy().tobytes() == other.detach().numpy().tobytes(), name


def test_the_flat_state_is_named_by_parameter_and_lives() -> None:
    named = parameters()
    optimizer = build_adamw(AdamWSettings(), named)
    flat = flat_state(optimizer)
    assert set(flat) == {f"optimizer.{name}.{key}" for name, _ in named for key in ("step", "exp_avg", "exp_avg_sq")}
    assert not any(tensor.any() for tensor in flat.values())
    give_gradients(named, 0)
    optimizer.step()
    assert flat["optimizer.matrix.step"].item() == 1.0
    assert flat["optimizer.norm.exp_avg"].any()
    flat["optimizer.matrix.step"].copy_(torch.tensor(7.0))
    optimizer.step()
    assert flat_state(optimizer)["optimizer.matrix.step"].item() == 8.0


def test_a_state_that_is_no_tensor_is_named() -> None:
    named = parameters()
    optimizer = build_adamw(AdamWSettings(), named)
    optimizer.state[named[0][1]]["count"] = 5
    with pytest.raises(TypeError, match=r"matrix\.count: expected a tensor, found 5"):
        flat_state(optimizer)


def test_the_learning_rate_is_set_times_the_multiplier_of_the_group() -> None:
    optimizer = build_adamw(AdamWSettings(lr=0.5), parameters())
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]
    optimizer.param_groups[1]["lr_multiplier"] = 0.25
    set_learning_rate(optimizer, 0.1)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.025]


def test_a_model_of_vectors_only_has_one_group() -> None:
    optimizer = build_adamw(AdamWSettings(), [("scale", nn.Parameter(torch.ones(3)))])
    assert [group["param_names"] for group in optimizer.param_groups] == [["scale"]]
    assert optimizer.param_groups[0]["fused"]
