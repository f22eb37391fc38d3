"""Groups by role: their defaults, what a role can change, and what is refused."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain.batch import InputSpec
from pretrain.build import build_optimizer
from pretrain.config import parse, to_yaml
from pretrain.errors import ConfigError
from pretrain.models import MODELS, roles
from pretrain.optimizers import OPTIMIZERS, contradictions, set_learning_rate
from pretrain.optimizers.groups import RoleGroups, RoleSettings
from tests.optimizers.parts import ROLES, parameters, take_steps, values
from tests.tiny import tiny

NAMES = [field.name for field in dataclasses.fields(RoleGroups)]


def build(name: str, groups: RoleGroups, **keys: Any) -> Any:
    entry = OPTIMIZERS[name]
    return entry.build(entry.settings(groups=groups, **keys), parameters(torch.float32), ROLES)


def group_of(optimizer: torch.optim.Optimizer, name: str) -> dict[str, Any]:
    (found,) = [group for group in optimizer.param_groups if name in group["param_names"]]
    return found


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_norms_biases_and_embeddings_do_not_decay_by_default(name: str) -> None:
    entry = OPTIMIZERS[name]
    optimizer = entry.build(entry.settings(weight_decay=0.3), parameters(torch.float32), ROLES)
    for one, role in ROLES.items():
        assert group_of(optimizer, one)["weight_decay"] == (0.0 if role in ("norms", "embeddings") else 0.3)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("role", NAMES)
def test_a_role_takes_its_own_rate_and_decay(name: str, role: str) -> None:
    optimizer = build(name, RoleGroups(**{role: RoleSettings(lr_multiplier=0.5, weight_decay=0.7)}))
    set_learning_rate(optimizer, 0.2)
    for one, its in ROLES.items():
        group = group_of(optimizer, one)
        assert group["lr"] == (0.1 if its == role else 0.2), one
        assert (group["weight_decay"] == 0.7) == (its == role), one


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_multiplier_of_zero_leaves_a_part_as_it_is(name: str) -> None:
    entry = OPTIMIZERS[name]
    named = parameters(torch.float32)
    settings = entry.settings(groups=RoleGroups(attention=RoleSettings(lr_multiplier=0.0)))
    optimizer = entry.build(settings, named, ROLES)
    before = values(named)
    take_steps(optimizer, named, range(3))
    still = {one for one, value in values(named).items() if torch.equal(before[one], value)}
    assert still == {one for one, role in ROLES.items() if role == "attention"}


def test_a_role_takes_its_own_betas_and_eps() -> None:
    optimizer = build("adamw", RoleGroups(head=RoleSettings(betas=(0.5, 0.6), eps=1e-3)))
    assert (group_of(optimizer, "head")["betas"], group_of(optimizer, "head")["eps"]) == ((0.5, 0.6), 1e-3)
    assert (group_of(optimizer, "tall")["betas"], group_of(optimizer, "tall")["eps"]) == ((0.9, 0.95), 1e-8)
    galore = build("adamw", RoleGroups(attention=RoleSettings(eps=1e-3)), use_galore=True, galore_rank=2)
    assert group_of(galore, "square")["eps"] == 1e-3
    adafactor = build("adafactor", RoleGroups(head=RoleSettings(eps=1e-3)))
    assert group_of(adafactor, "head")["eps"] == (1e-3, 1e-3)
    assert group_of(adafactor, "tall")["eps"] == (1e-8, 1e-3)


@pytest.mark.parametrize(
    ("name", "role", "given", "refused"),
    [
        ("adamw", "router", {"betas": (0.5, 0.5), "eps": 1e-3}, []),
        ("apollo", "attention", {"betas": (0.5, 0.5), "eps": 1e-3}, []),
        ("sgd", "head", {"betas": (0.5, 0.5), "eps": 1e-3}, ["head.betas", "head.eps"]),
        ("lion", "head", {"betas": (0.5, 0.5), "eps": 1e-3}, ["head.eps"]),
        ("adafactor", "norms", {"betas": (0.5, 0.5), "eps": 1e-3}, ["norms.betas"]),
        ("muon", "attention", {"betas": (0.5, 0.5), "eps": 1e-3}, ["attention.betas", "attention.eps"]),
        ("muon", "embeddings", {"betas": (0.5, 0.5), "eps": 1e-3}, []),
    ],
)
def test_a_key_that_nothing_would_obey_is_refused(name: str, role: str, given: Any, refused: list[str]) -> None:
    settings = OPTIMIZERS[name].settings(groups=RoleGroups(**{role: RoleSettings(**given)}))
    found = contradictions(name, settings)
    assert [text.split(" ")[0] for text in found] == [f"optimizer.groups.{key}" for key in refused]
    assert all("take it out" in text for text in found)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_the_defaults_contradict_nothing(name: str) -> None:
    assert contradictions(name, OPTIMIZERS[name].settings()) == []


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("spec", [InputSpec("tokens", 16), InputSpec("patches", 8)], ids=["tokens", "patches"])
def test_every_parameter_of_every_model_has_a_role(name: str, spec: InputSpec) -> None:
    row = MODELS[name]
    model = row.build(row.settings(), spec, 32, 1)
    found = roles(model)
    assert set(found) == {one for one, _ in model.named_parameters()}
    assert set(found.values()) <= set(NAMES)
    assert {role for one, role in found.items() if model.get_parameter(one).dim() < 2} == {"norms"}


def test_the_roles_of_the_decoder() -> None:
    row = MODELS["decoder"]
    tied = roles(row.build(row.settings(), InputSpec("tokens", 16), 32, 1))
    assert "head" not in tied.values()
    assert tied["model.embed_tokens.weight"] == "embeddings"
    untied = roles(row.build(row.settings(tie_embeddings=False), InputSpec("tokens", 16), 32, 1))
    assert untied["lm_head.weight"] == "head"
    assert untied["model.layers.1.self_attn.o_proj.weight"] == "attention"
    assert untied["model.layers.1.mlp.gate_proj.weight"] == "feed_forward"
    assert untied["model.layers.1.input_layernorm.weight"] == "norms"
    assert (
        roles(row.build(row.settings(), InputSpec("patches", 8), 32, 1))["model.embed_patches.weight"] == "embeddings"
    )


def test_the_groups_of_a_config_reach_the_optimizer(tmp_path: Path) -> None:
    words = ("optimizer.groups.attention.lr_multiplier=0.5", "optimizer.groups.attention.betas=[0.8, 0.9]")
    config = tiny(tmp_path, "text", *words)
    model = MODELS["decoder"].build(config.model.settings, InputSpec("tokens", 256), 16, 1)
    group = group_of(build_optimizer(config, model), "model.layers.0.self_attn.q_proj.weight")
    assert (group["lr"], group["lr_multiplier"], group["betas"]) == (0.005, 0.5, (0.8, 0.9))
    assert parse(to_yaml(config), "x") == config


def test_a_config_with_a_key_that_nothing_would_obey_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"optimizer\.groups\.head\.betas is set, but sgd has none; take it out"):
        tiny(tmp_path, "text", "optimizer.optimizer_class=sgd", "optimizer.groups.head.betas=[0.8, 0.9]")
    with pytest.raises(ConfigError, match=r"optimizer\.nesterov needs optimizer\.momentum above 0"):
        tiny(tmp_path, "text", "optimizer.optimizer_class=sgd", "optimizer.momentum=0")


def test_a_part_that_is_not_known_is_named() -> None:
    with pytest.raises(ValueError, match=r"^convolution\.weight: expected a part that begins with embed_"):
        roles(torch.nn.ModuleDict({"convolution": torch.nn.Conv1d(2, 2, 3)}))
