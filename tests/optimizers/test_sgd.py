"""SGD: against the formula, with Nesterov's momentum, without, and without momentum."""

import numpy as np
import pytest
import torch

from pretrain.optimizers import flat_state
from pretrain.optimizers.sgd import SgdSettings, build_sgd
from tests.optimizers.parts import ROLES, SHAPES, assert_close, gradient, parameters, take_steps, values


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.9, True), (0.9, False), (0.0, False)])
def test_fifty_steps_are_those_of_the_formula(momentum: float, nesterov: bool) -> None:
    named = parameters()
    weights = {name: value.numpy() for name, value in values(named).items()}
    moving = {name: np.zeros_like(value) for name, value in weights.items()}
    settings = SgdSettings(lr=0.01, momentum=momentum, nesterov=nesterov, weight_decay=0.1)
    optimizer = build_sgd(settings, named, ROLES)
    for step in range(50):
        take_steps(optimizer, named, range(step, step + 1))
        for name in weights:
            decay = 0.0 if ROLES[name] in ("norms", "embeddings") else 0.1
            g = gradient(name, step).numpy() + decay * weights[name]
            moving[name] = momentum * moving[name] + g
            weights[name] = weights[name] - 0.01 * (g + momentum * moving[name] if nesterov else moving[name])
        for name, value in values(named).items():
            assert_close(value, torch.from_numpy(np.asarray(weights[name])), f"{name} at {step}")
    keys = {f"optimizer.{name}.momentum_buffer" for name in SHAPES} if momentum else set()
    assert set(flat_state(optimizer)) == keys


def test_nesterov_without_momentum_is_a_contradiction() -> None:
    assert SgdSettings().contradictions() == []
    assert SgdSettings(momentum=0.0, nesterov=False).contradictions() == []
    (text,) = SgdSettings(momentum=0.0).contradictions()
    assert text.startswith("optimizer.nesterov needs optimizer.momentum above 0")
