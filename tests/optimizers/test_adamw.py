"""AdamW: against the formula, and as the stock optimizer that it is, its state in place before the first step."""

import numpy as np
import pytest
import torch

from pretrain.optimizers import flat_state, set_learning_rate
from pretrain.optimizers.adamw import AdamWSettings, build_adamw
from tests.optimizers.parts import ROLES, assert_close, gradient, parameters, take_steps, values

DECAYED = ("tall", "wide", "square", "kernel", "router", "head")


def test_fifty_steps_are_those_of_the_formula() -> None:
    settings = AdamWSettings(lr=0.01, betas=(0.8, 0.9), eps=1e-5, weight_decay=0.2)
    named = parameters()
    weights = {name: value.numpy() for name, value in values(named).items()}
    first = {name: np.zeros_like(value) for name, value in weights.items()}
    second = {name: np.zeros_like(value) for name, value in weights.items()}
    optimizer = build_adamw(settings, named, ROLES)
    for step in range(50):
        take_steps(optimizer, named, range(step, step + 1))
        for name in weights:
            g = gradient(name, step).numpy()
            first[name] = 0.8 * first[name] + 0.2 * g
            second[name] = 0.9 * second[name] + 0.1 * g * g
            decay = 0.2 if name in DECAYED else 0.0
            corrected = first[name] / (1 - 0.8 ** (step + 1))
            root = np.sqrt(second[name] / (1 - 0.9 ** (step + 1)))
            weights[name] = weights[name] - 0.01 * (decay * weights[name] + corrected / (root + 1e-5))
        for name, value in values(named).items():
            assert_close(value, torch.from_numpy(np.asarray(weights[name])), f"{name} at {step}")


def test_the_state_made_at_build_is_what_the_first_step_would_make() -> None:
    named, plain = parameters(torch.float32), parameters(torch.float32)
    settings = AdamWSettings(weight_decay=0.0)
    optimizer = build_adamw(settings, named, ROLES)
    stock = torch.optim.AdamW(
        plain, lr=settings.lr, betas=settings.betas, eps=settings.eps, weight_decay=0.0, fused=True
    )
    take_steps(optimizer, named, range(3))
    take_steps(stock, plain, range(3))
    ours, theirs = flat_state(optimizer), flat_state(stock)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert tensor.numpy().tobytes() == theirs[name].numpy().tobytes(), name
    for (name, one), (_, other) in zip(named, plain, strict=True):
        assert one.detach().numpy().tobytes() == other.detach().numpy().tobytes(), name


def test_the_flat_state_is_named_by_parameter_and_lives() -> None:
    named = parameters()
    optimizer = build_adamw(AdamWSettings(), named, ROLES)
    flat = flat_state(optimizer)
    assert set(flat) == {f"optimizer.{name}.{key}" for name, _ in named for key in ("step", "exp_avg", "exp_avg_sq")}
    assert not any(tensor.any() for tensor in flat.values())
    take_steps(optimizer, named, range(1))
    assert flat["optimizer.square.step"].item() == 1.0
    assert flat["optimizer.norm.exp_avg"].any()
    flat["optimizer.square.step"].copy_(torch.tensor(7.0))
    optimizer.step()
    assert flat_state(optimizer)["optimizer.square.step"].item() == 8.0


def test_a_state_that_is_no_tensor_is_named() -> None:
    named = parameters()
    optimizer = build_adamw(AdamWSettings(), named, ROLES)
    optimizer.state[named[0][1]]["count"] = 5
    with pytest.raises(TypeError, match=r"embed\.count: expected a tensor, found 5"):
        flat_state(optimizer)


def test_the_learning_rate_is_set_times_the_multiplier_of_the_group() -> None:
    optimizer = build_adamw(AdamWSettings(lr=0.5), parameters(), ROLES)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]
    optimizer.param_groups[1]["lr_multiplier"] = 0.25
    set_learning_rate(optimizer, 0.1)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.025]


def test_a_model_of_vectors_only_has_one_group() -> None:
    optimizer = build_adamw(AdamWSettings(), [("scale", torch.nn.Parameter(torch.ones(3)))], {"scale": "norms"})
    assert [group["param_names"] for group in optimizer.param_groups] == [["scale"]]
    assert optimizer.param_groups[0]["fused"]
