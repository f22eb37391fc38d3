"""Lion: against algorithm 2 of the paper."""

import numpy as np
import torch

from pretrain.optimizers import flat_state
from pretrain.optimizers.lion import LionSettings, build_lion
from tests.optimizers.parts import ROLES, SHAPES, assert_close, gradient, parameters, take_steps, values


def test_fifty_steps_are_those_of_the_formula() -> None:
    named = parameters()
    weights = {name: value.numpy() for name, value in values(named).items()}
    moving = {name: np.zeros_like(value) for name, value in weights.items()}
    optimizer = build_lion(LionSettings(lr=0.02, betas=(0.85, 0.95), weight_decay=0.3), named, ROLES)
    for step in range(50):
        take_steps(optimizer, named, range(step, step + 1))
        for name in weights:
            g = gradient(name, step).numpy()
            direction = np.sign(0.85 * moving[name] + 0.15 * g)
            decay = 0.0 if ROLES[name] in ("norms", "embeddings") else 0.3
            weights[name] = weights[name] - 0.02 * (direction + decay * weights[name])
            moving[name] = 0.95 * moving[name] + 0.05 * g
        state = flat_state(optimizer)
        for name, value in values(named).items():
            assert_close(value, torch.from_numpy(np.asarray(weights[name])), f"{name} at {step}")
            assert_close(
                state[f"optimizer.{name}.exp_avg"], torch.from_numpy(np.asarray(moving[name])), f"{name} at {step}"
            )
    assert set(state) == {f"optimizer.{name}.exp_avg" for name in SHAPES}


def test_nothing_moves_where_gradient_and_momentum_are_zero() -> None:
    named = parameters(torch.float32)
    before = values(named)
    optimizer = build_lion(LionSettings(weight_decay=0.0), named, ROLES)
    for _, parameter in named:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert all(torch.equal(before[name], value) for name, value in values(named).items())
