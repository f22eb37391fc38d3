"""Muon: hidden matrices are PyTorch's Muon and the rest its AdamW, bit for bit; and both against the formula."""

import torch

from pretrain.optimizers import flat_state, set_learning_rate
from pretrain.optimizers.muon import MuonSettings, build_muon
from tests.optimizers.parts import HIDDEN, ROLES, SHAPES, assert_close, gradient, parameters, take_steps, values


def test_fifty_steps_are_those_of_the_two_optimizers() -> None:
    settings = MuonSettings(lr=0.01, weight_decay=0.2)
    named, plain = parameters(torch.float32), parameters(torch.float32)
    optimizer = build_muon(settings, named, ROLES)
    of = dict(plain)
    others = [name for name in SHAPES if name not in HIDDEN]
    still = [name for name in others if ROLES[name] in ("norms", "embeddings")]
    stock = [
        torch.optim.Muon(
            [of[name] for name in HIDDEN], lr=0.01, weight_decay=0.2, adjust_lr_fn="match_rms_adamw", momentum=0.95
        ),
        torch.optim.AdamW(
            [
                {"params": [of[name] for name in others if name not in still], "weight_decay": 0.2},
                {"params": [of[name] for name in still], "weight_decay": 0.0},
            ],
            lr=0.01,
            betas=(0.9, 0.95),
            fused=True,
        ),
    ]
    take_steps(optimizer, named, range(50))
    for one in stock:
        take_steps(one, plain, range(50))
    for name, value in values(named).items():
        assert torch.equal(value, of[name].detach()), name


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Newton-Schulz of the published post, in float64: X <- a X + (b A + c A^2) X with A = X X^T, five times."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = x / x.norm()
    for _ in range(5):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x if matrix.shape[0] <= matrix.shape[1] else x.T


def test_fifty_steps_are_those_of_the_formula_up_to_the_rounding_of_bfloat16() -> None:
    """Momentum to 1e-6; the weights to what eight bits in each of the five iterations allow."""
    named = parameters()
    start = {name: value for name, value in values(named).items() if name in HIDDEN}
    weights, mean = dict(start), {name: torch.zeros_like(value) for name, value in start.items()}
    optimizer = build_muon(MuonSettings(lr=0.01, momentum=0.9, weight_decay=0.2), named, ROLES)
    for step in range(50):
        take_steps(optimizer, named, range(step, step + 1))
        for name in HIDDEN:
            g = gradient(name, step)
            mean[name] = 0.9 * mean[name] + 0.1 * g
            update = orthogonal(0.1 * g + 0.9 * mean[name]) * 0.2 * max(g.shape) ** 0.5
            weights[name] = weights[name] * (1 - 0.01 * 0.2) - 0.01 * update
    state = flat_state(optimizer)
    for name in HIDDEN:
        assert_close(state[f"optimizer.{name}.momentum_buffer"], mean[name], name)
        moved = (weights[name] - start[name]).norm()
        assert (values(named)[name] - weights[name]).norm() < 0.02 * moved, name


def test_the_update_has_singular_values_near_one_and_the_size_of_adamws() -> None:
    named = parameters(torch.float32)
    before = values(named)
    optimizer = build_muon(MuonSettings(lr=1.0, weight_decay=0.0), named, ROLES)
    take_steps(optimizer, named, range(1))
    for name in HIDDEN:
        update = before[name] - values(named)[name]
        size = 0.2 * max(update.shape) ** 0.5
        found = torch.linalg.svdvals(update) / size
        assert found.min() > 0.3, name
        assert found.max() < 1.4, name


def test_it_is_one_optimizer_to_whoever_sets_a_rate_or_saves() -> None:
    named = parameters(torch.float32)
    optimizer = build_muon(MuonSettings(), named, ROLES)
    keys = {f"optimizer.{name}.momentum_buffer" for name in HIDDEN}
    keys |= {
        f"optimizer.{name}.{key}" for name in SHAPES if name not in HIDDEN for key in ("step", "exp_avg", "exp_avg_sq")
    }
    assert set(flat_state(optimizer)) == keys
    before = values(named)
    set_learning_rate(optimizer, 0.0)
    take_steps(optimizer, named, range(2))
    assert all(torch.equal(before[name], value) for name, value in values(named).items())
    assert set(flat_state(optimizer)) == keys
    assert flat_state(optimizer)["optimizer.tall.momentum_buffer"].any()
