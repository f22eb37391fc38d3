"""The smallest eps of every optimizer: none that is 0 in float32 is taken, and the smallest divides no 0 by 0."""

import dataclasses
from pathlib import Path

import pytest
import torch

from pretrain.errors import ConfigError
from pretrain.optimizers import OPTIMIZERS, flat_state
from pretrain.optimizers.groups import SMALLEST_EPS, RoleSettings
from tests.optimizers.parts import ROLES, gradient, parameters
from tests.tiny import tiny

# Nothing is divided by it: a parameter that is 0 stays 0 where it is 0.
NO_DIVISOR = "parameter_eps"
EPS = [
    (name, field.name)
    for name, entry in OPTIMIZERS.items()
    for field in dataclasses.fields(entry.settings)
    if field.name.endswith("eps") and field.name != NO_DIVISOR
]


def test_every_eps_has_the_same_floor() -> None:
    assert [key for _, key in EPS].count("eps") == 5
    assert ("muon", "momentum_eps") in EPS
    for name, key in EPS:
        (field,) = [one for one in dataclasses.fields(OPTIMIZERS[name].settings) if one.name == key]
        assert dict(field.metadata) == {"at_least": SMALLEST_EPS}, (name, key)
    (field,) = [one for one in dataclasses.fields(RoleSettings) if one.name == "eps"]
    assert dict(field.metadata) == {"at_least": SMALLEST_EPS}
    assert torch.tensor(SMALLEST_EPS).square() > torch.finfo(torch.float32).tiny


@pytest.mark.parametrize(("name", "key"), EPS)
@pytest.mark.parametrize("value", ["1e-46", "1e-60", "9e-19"])
def test_an_eps_that_float32_would_lose_is_refused(tmp_path: Path, name: str, key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"optimizer\.{key} must be a finite number of at least 1e-18; found"):
        tiny(tmp_path, "text", f"optimizer.optimizer_class={name}", f"optimizer.{key}={value}")


@pytest.mark.parametrize("name", sorted({name for name, _ in EPS}))
@pytest.mark.parametrize("low", [False, True], ids=["plain", "galore"])
def test_at_the_floor_what_has_no_gradient_stays_finite(name: str, low: bool) -> None:
    """Rows without a gradient, as an embedding has them, and whole matrices."""
    entry = OPTIMIZERS[name]
    keys = {key: SMALLEST_EPS for own, key in EPS if own == name}
    galore = {"use_galore": True, "galore_rank": 3} if low and hasattr(entry.settings, "use_galore") else {}
    named = parameters(torch.float32)
    optimizer = entry.build(entry.settings(**keys, **galore), named, ROLES)
    for step in range(3):
        for one, parameter in named:
            parameter.grad = gradient(one, step, torch.float32)
            if one in ("square", "norm"):
                parameter.grad.zero_()
            elif parameter.dim():
                parameter.grad[::2] = 0
        optimizer.step()
        assert all(torch.isfinite(parameter).all() for _, parameter in named), step
    assert all(torch.isfinite(tensor).all() for tensor in flat_state(optimizer).values())
