"""GaLore over AdamW and Adafactor: against the formulas, its bases, and what it refuses (case S48)."""

from typing import Any

import numpy as np
import pytest
import torch

from pretrain.errors import ConfigError, ProjectionError
from pretrain.optimizers import OPTIMIZERS, flat_state
from tests.optimizers.parts import HIDDEN, ROLES, SHAPES, assert_close, gradient, parameters, take_steps, values

RANK = 3
GIVEN = {"use_galore": True, "galore_rank": RANK, "galore_update_interval": 7, "galore_scale": 0.4, "lr": 0.02}
Array = np.ndarray


def build(name: str, named: Any, **changes: Any) -> torch.optim.Optimizer:
    entry = OPTIMIZERS[name]
    return entry.build(entry.settings(**{**GIVEN, **changes}), named, ROLES)


def is_tall(name: str) -> bool:
    return SHAPES[name][0] >= SHAPES[name][1]


def assert_leading(basis: Array, g: Array, tall: bool) -> None:
    """The basis is the leading singular vectors of a gradient, each up to its sign."""
    left, _, right = np.linalg.svd(g)
    found, expected = (basis, right[:RANK]) if tall else (basis.T, left[:, :RANK].T)
    assert found.shape == expected.shape
    np.testing.assert_allclose(np.abs((found * expected).sum(1)), 1.0, rtol=1e-9)


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_fifty_steps_are_those_of_the_formula(name: str) -> None:
    """The oracle takes the signs of the basis from the state: they are free, and the moments are kept at a refresh."""
    named = parameters()
    keys = {"betas": (0.8, 0.9), "eps": 1e-5} if name == "adamw" else {"eps": 1e-4, "parameter_eps": 1e-2}
    optimizer = build(name, named, weight_decay=0.1, **keys)
    weights = {one: value.numpy() for one, value in values(named).items() if one in HIDDEN}
    first: dict[str, Any] = dict.fromkeys(HIDDEN, 0.0)
    second: dict[str, Any] = dict.fromkeys(HIDDEN, 0.0)
    third: dict[str, Any] = dict.fromkeys(HIDDEN, 0.0)
    bases: dict[str, Array] = {}
    for step in range(50):
        take_steps(optimizer, named, range(step, step + 1))
        for one in HIDDEN:
            g, basis = gradient(one, step).numpy(), flat_state(optimizer)[f"optimizer.{one}.basis"].numpy().copy()
            if step % 7 == 0:
                assert_leading(basis, g, is_tall(one))
            else:
                assert (basis == bases[one]).all()
            bases[one] = basis
            low = g @ basis.T if is_tall(one) else basis.T @ g
            if name == "adamw":
                first[one] = 0.8 * first[one] + 0.2 * low
                second[one] = 0.9 * second[one] + 0.1 * low**2
                root = np.sqrt(second[one] / (1 - 0.9 ** (step + 1))) + 1e-5
                moved = 0.02 * first[one] / (1 - 0.8 ** (step + 1)) / root
            else:
                newest = (step + 1) ** -0.8
                second[one] = (1 - newest) * second[one] + newest * (low**2).mean(1, keepdims=True)
                third[one] = (1 - newest) * third[one] + newest * (low**2).mean(0, keepdims=True)
                estimate = second[one] * third[one] / max(second[one].mean(), 1e-4)
                update = low / np.maximum(np.sqrt(estimate), 1e-4)
                update /= max(1.0, np.sqrt((update**2).mean()))
                size = max(1e-2, np.sqrt((weights[one] ** 2).mean())) * min(0.02, 1 / np.sqrt(step + 1))
                moved = size * update
            whole = moved @ basis if is_tall(one) else basis @ moved
            weights[one] = weights[one] * (1 - 0.02 * 0.1) - 0.4 * whole
            assert_close(values(named)[one], torch.from_numpy(weights[one].copy()), f"{one} at {step}")


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_s48_all_that_is_no_hidden_matrix_takes_the_plain_path(name: str) -> None:
    named, plain = parameters(torch.float32), parameters(torch.float32)
    take_steps(build(name, named), named, range(5))
    take_steps(build(name, plain, use_galore=False), plain, range(5))
    for one in SHAPES:
        assert torch.equal(dict(named)[one], dict(plain)[one]) == (one not in HIDDEN), one


@pytest.mark.parametrize(
    ("changes", "projected"),
    [
        ({"galore_rank": 5}, {"tall", "wide", "square"}),
        ({"galore_rank": 6}, {"square"}),
        ({"galore_max_dim": 10}, {"tall", "square"}),
        ({"galore_max_dim": 9}, {"square"}),
    ],
)
def test_a_matrix_that_is_too_small_or_too_large_takes_the_plain_path(changes: Any, projected: set[str]) -> None:
    flat = flat_state(build("adamw", parameters(torch.float32), **changes))
    assert {name.split(".")[1] for name in flat if name.endswith(".basis")} == projected


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_galore_that_would_do_nothing_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"optimizer\.use_galore: no matrix .* above optimizer\.galore_rank \(8\)"):
        build(name, parameters(), galore_rank=8)


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_s48_zero_gradients_stay_finite_and_move_nothing(name: str) -> None:
    """At a refresh and after it."""
    named = parameters(torch.float32)
    before = values(named)
    optimizer = build(name, named, weight_decay=0.0, galore_update_interval=2)
    for _ in range(3):
        for _, parameter in named:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    assert all(torch.equal(before[one], value) for one, value in values(named).items())
    assert all(torch.isfinite(tensor).all() for tensor in flat_state(optimizer).values())


def test_s48_a_gradient_without_a_basis_is_a_named_error_and_moves_nothing() -> None:
    named = parameters(torch.float32)
    optimizer = build("adamw", named)
    take_steps(optimizer, named, range(7))
    before = {**values(named), **{key: tensor.clone() for key, tensor in flat_state(optimizer).items()}}
    for one, parameter in named:
        parameter.grad = gradient(one, 7, torch.float32)
    dict(named)["square"].grad[3, 3] = float("nan")  # type: ignore[index]
    with pytest.raises(ProjectionError, match=r"^square: GaLore finds no basis for its gradient"):
        optimizer.step()
    after = {**values(named), **flat_state(optimizer)}
    moved = {key for key, tensor in after.items() if not torch.equal(tensor, before[key])}
    # The bases of the matrices before it may be the new ones; an attempt that ends here saves none of them.
    assert moved <= {f"optimizer.{one}.basis" for one in HIDDEN}


def test_singular_vectors_that_are_not_finite_are_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    named = parameters(torch.float32)
    optimizer = build("adamw", named)

    def broken(matrix: torch.Tensor, full_matrices: bool) -> tuple[torch.Tensor, ...]:
        nan = torch.full((min(matrix.shape),) * 2, float("nan"))
        return nan, nan[0], torch.full_like(matrix, float("nan"))

    monkeypatch.setattr(torch.linalg, "svd", broken)
    with pytest.raises(ProjectionError, match="expected finite singular vectors"):
        take_steps(optimizer, named, range(1))
