"""APOLLO and APOLLO-Mini: against algorithm 1 of the paper, their random projections, and the limit on growth."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pretrain.errors import ConfigError
from pretrain.optimizers import OPTIMIZERS, flat_state
from pretrain.optimizers.apollo import random_projection
from tests.optimizers.parts import HIDDEN, ROLES, SHAPES, assert_close, gradient, parameters, take_steps, values
from tests.tiny import tiny, train

GIVEN = {"lr": 0.01, "update_interval": 7, "scale": 1.5, "betas": (0.8, 0.9), "eps": 1e-5, "weight_decay": 0.2}


def build(name: str, named: Any, **changes: Any) -> torch.optim.Optimizer:
    entry = OPTIMIZERS[name]
    return entry.build(entry.settings(**{**GIVEN, **changes}), named, ROLES)


@pytest.mark.parametrize(("name", "rank"), [("apollo", 3), ("apollo_mini", 1)])
def test_fifty_steps_are_those_of_the_formula(name: str, rank: int) -> None:
    named = parameters()
    weights = {one: value.numpy() for one, value in values(named).items() if one in HIDDEN}
    first: dict[str, Any] = dict.fromkeys(HIDDEN, 0.0)
    second: dict[str, Any] = dict.fromkeys(HIDDEN, 0.0)
    before: dict[str, float] = {}
    optimizer = build(name, named, **({"rank": rank} if name == "apollo" else {}))
    limited = 0
    for step in range(50):
        take_steps(optimizer, named, range(step, step + 1))
        for one in HIDDEN:
            projection = flat_state(optimizer)[f"optimizer.{one}.projection"].numpy()
            assert projection.shape == (rank, min(SHAPES[one]))
            # The shorter side first, as in the paper; a channel is then a column.
            tall = SHAPES[one][0] >= SHAPES[one][1]
            g = gradient(one, step).numpy()
            g, weight = (g.T, weights[one].T) if tall else (g, weights[one])
            low = projection @ g
            first[one] = 0.8 * first[one] + 0.2 * low
            second[one] = 0.9 * second[one] + 0.1 * low**2
            direction = first[one] / (1 - 0.8 ** (step + 1))
            direction = direction / (np.sqrt(second[one] / (1 - 0.9 ** (step + 1))) + 1e-5)
            axis = None if name == "apollo_mini" else 0
            scaled = g * (np.sqrt((direction**2).sum(axis)) / np.sqrt((low**2).sum(axis)))
            norm = float(np.sqrt((scaled**2).sum()))
            if one in before and norm / before[one] > 1.01:
                scaled, limited = scaled / norm * 1.01 * before[one], limited + 1
            before[one] = float(np.sqrt((scaled**2).sum()))
            weight = weight - 0.01 * (0.2 * weight + 1.5 * scaled)
            weights[one] = weight.T if tall else weight
            assert_close(values(named)[one], torch.from_numpy(weights[one].copy()), f"{one} at {step}")
    assert limited > 5


def test_the_rest_is_adamw() -> None:
    named, plain = parameters(), parameters()
    apollo = build("apollo", named)
    entry = OPTIMIZERS["adamw"]
    adamw = entry.build(
        entry.settings(**{key: value for key, value in GIVEN.items() if key not in ("update_interval", "scale")}),
        plain,
        ROLES,
    )
    take_steps(apollo, named, range(5))
    take_steps(adamw, plain, range(5))
    for name in SHAPES:
        assert torch.equal(dict(named)[name], dict(plain)[name]) == (name not in HIDDEN)


def test_a_projection_changes_at_its_interval_only_and_moves_no_global_generator() -> None:
    named = parameters(torch.float32)
    optimizer = build("apollo", named)
    generator = torch.get_rng_state()
    seen = []
    for step in range(15):
        take_steps(optimizer, named, range(step, step + 1))
        seen.append(flat_state(optimizer)["optimizer.tall.projection"].clone())
    assert [step for step in range(1, 15) if not torch.equal(seen[step], seen[step - 1])] == [7, 14]
    assert torch.equal(generator, torch.get_rng_state())
    assert not torch.equal(seen[0], flat_state(optimizer)["optimizer.square.projection"][:1, :6])


def test_the_elements_of_a_projection_have_the_variance_of_one_over_the_rank() -> None:
    drawn = random_projection(torch.Size((50, 2000)), "model.layers.0.mlp.up_proj.weight 3")
    assert torch.equal(drawn, random_projection(torch.Size((50, 2000)), "model.layers.0.mlp.up_proj.weight 3"))
    assert not torch.equal(drawn, random_projection(torch.Size((50, 2000)), "model.layers.0.mlp.up_proj.weight 4"))
    assert float(drawn.var()) == pytest.approx(1 / 50, rel=0.02)
    assert abs(float(drawn.mean())) < 0.002


def test_the_default_rank_is_a_quarter_of_the_shorter_side() -> None:
    flat = flat_state(build("apollo", parameters(torch.float32)))
    assert flat["optimizer.square.projection"].shape == (2, 8)
    assert flat["optimizer.tall.exp_avg"].shape == (10, 1)
    assert flat["optimizer.wide.exp_avg"].shape == (1, 14)


@pytest.mark.parametrize("rank", [8, 1000])
def test_a_rank_that_would_project_nothing_is_refused(tmp_path: Path, rank: int) -> None:
    """As GaLore's is: all of it would be AdamW. The shorter sides are 8, 6 and 6."""
    assert "optimizer.square.projection" in flat_state(build("apollo", parameters(), rank=7))
    with pytest.raises(ConfigError, match=rf"optimizer\.rank: no matrix .* above optimizer\.rank \({rank}\); change"):
        build("apollo", parameters(), rank=rank)
    with pytest.raises(ConfigError, match=r"optimizer\.rank: .* or set optimizer\.optimizer_class=adamw"):
        train(tiny(tmp_path, "text", "optimizer.optimizer_class=apollo", f"optimizer.rank={2 * rank}"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["apollo", "apollo_mini"])
def test_a_model_without_a_matrix_to_project_is_refused(name: str) -> None:
    vectors = [(one, parameter) for one, parameter in parameters() if one not in HIDDEN]
    with pytest.raises(ConfigError, match=r"optimizer\.optimizer_class: no matrix .* above 1; set .*=adamw"):
        build(name, vectors)


@pytest.mark.parametrize("name", ["apollo", "apollo_mini"])
def test_a_zero_gradient_forbids_no_later_step(name: str) -> None:
    """Its update has the norm 0, and a later one that could be 1.01 times that would never move."""
    named = parameters(torch.float32)
    optimizer = build(name, named, weight_decay=0.0)
    take_steps(optimizer, named, range(2))
    kept = values(named)
    for _, parameter in named:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert all(torch.equal(kept[one], values(named)[one]) for one in HIDDEN)
    take_steps(optimizer, named, range(2, 3))
    for one in HIDDEN:
        assert (values(named)[one] - kept[one]).norm() > 1e-3
