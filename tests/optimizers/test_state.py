"""What every optimizer owes its checkpoint: exact, resumable anywhere, as large as theory says, finite on zeros."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pretrain.errors import IntegrityError
from pretrain.evidence.checkpoint import load_checkpoint
from pretrain.optimizers import OPTIMIZERS, flat_state, moment_ratio, set_learning_rate
from tests.evidence.checkpoint_samples import save
from tests.optimizers.parts import HIDDEN, ROLES, SHAPES, Named, parameters, take_steps, values

# Every row from its defaults, and with what makes an interval or a state that the defaults have not.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in OPTIMIZERS} | {
    "adamw-galore": ("adamw", {"use_galore": True, "galore_rank": 3, "galore_update_interval": 4}),
    "adafactor-galore": ("adafactor", {"use_galore": True, "galore_rank": 3, "galore_update_interval": 4}),
    "apollo-often": ("apollo", {"update_interval": 4, "rank": 3}),
    "apollo_mini-often": ("apollo_mini", {"update_interval": 4}),
    "sgd-plain": ("sgd", {"momentum": 0.0, "nesterov": False}),
}
every_variant = pytest.mark.parametrize("variant", sorted(VARIANTS))


def build(variant: str, named: Named, roles: Mapping[str, str] = ROLES, **changes: Any) -> torch.optim.Optimizer:
    name, given = VARIANTS[variant]
    entry = OPTIMIZERS[name]
    return entry.build(entry.settings(**given, **changes), named, roles)


def whole(named: Named, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {f"model.{name}": parameter.detach() for name, parameter in named} | flat_state(optimizer)


def raw(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {
        name: (str(one.dtype), tuple(one.shape), one.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, one in tensors.items()
    }


@every_variant
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stop", [0, 4, 6])
def test_a_checkpoint_at_any_step_resumes_to_the_same_bits(
    variant: str, dtype: torch.dtype, stop: int, tmp_path: Path
) -> None:
    """Before the first step, just before a refresh of bases and projections, and in mid-interval."""
    named = parameters(dtype)
    optimizer = build(variant, named)
    names = flat_state(optimizer).keys()
    take_steps(optimizer, named, range(stop))
    save(tmp_path / "step_00000100", whole(named, optimizer))
    saved = raw(whole(named, optimizer))
    take_steps(optimizer, named, range(stop, 10))
    assert flat_state(optimizer).keys() == names

    other = parameters(dtype, seed=9)
    resumed = build(variant, other)
    take_steps(resumed, other, range(20, 21))
    load_checkpoint(tmp_path / "step_00000100", whole(other, resumed))
    assert raw(whole(other, resumed)) == saved
    take_steps(resumed, other, range(stop, 10))
    assert raw(whole(other, resumed)) == raw(whole(named, optimizer))


@every_variant
def test_s12_a_state_goes_by_name_and_not_by_place(variant: str, tmp_path: Path) -> None:
    """Parameters of one shape whose places are swapped keep their own moments; one of another name is refused."""
    named = [*parameters(torch.float32), ("twin", parameters(torch.float32, seed=5)[1][1])]
    roles = {**ROLES, "twin": ROLES["tall"]}
    optimizer = build(variant, named, roles=roles)
    take_steps(optimizer, [(name, one) for name, one in named if name != "twin"], range(3))
    save(tmp_path / "step_00000100", whole(named, optimizer))
    saved = raw(whole(named, optimizer))

    other = [(name, nn.Parameter(torch.zeros_like(one))) for name, one in reversed(named)]
    resumed = build(variant, other, roles=roles)
    load_checkpoint(tmp_path / "step_00000100", whole(other, resumed))
    assert raw(whole(other, resumed)) == saved
    moments = [name for name in saved if name.startswith("optimizer.tall.")]
    assert not moments or any(saved[name] != saved[name.replace("tall", "twin")] for name in moments)

    renamed = [("third" if name == "twin" else name, one) for name, one in other]
    stranger = build(variant, renamed, roles={**roles, "third": ROLES["tall"]})
    with pytest.raises(IntegrityError, match=r"model\.third: not in the checkpoint"):
        load_checkpoint(tmp_path / "step_00000100", whole(renamed, stranger))


@every_variant
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_zero_move_nothing_but_by_decay_and_stay_finite(variant: str, dtype: torch.dtype) -> None:
    named = parameters(dtype)
    optimizer = build(variant, named, weight_decay=0.0, lr=0.1)
    before = values(named)
    for _ in range(6):
        for _, parameter in named:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    assert all(torch.equal(before[name], value) for name, value in values(named).items())
    take_steps(optimizer, named, range(6))
    assert all(torch.isfinite(tensor).all() for tensor in whole(named, optimizer).values())
    assert all(not torch.equal(before[name], value) for name, value in values(named).items())


@every_variant
def test_a_parameter_without_a_gradient_stays(variant: str) -> None:
    named = parameters(torch.float32)
    optimizer = build(variant, named)
    before = values(named)
    take_steps(optimizer, named, range(1))
    kept = values(named)
    for name, parameter in named:
        if name in ("tall", "norm", "head"):
            parameter.grad = None
    optimizer.step()
    still = {name for name, value in values(named).items() if torch.equal(kept[name], value)}
    assert still == {"tall", "norm", "head"}
    assert all(not torch.equal(before[name], kept[name]) for name in kept)


def elements(name: str) -> int:
    return torch.Size(SHAPES[name]).numel()


def adamw_bytes(name: str) -> int:
    return 8 * elements(name) + 4


def adafactor_bytes(name: str) -> int:
    *others, rows, columns = (1, 1, *SHAPES[name])[-max(2, len(SHAPES[name])) :]
    held = torch.Size(others).numel() * (rows + columns) if len(SHAPES[name]) > 1 else elements(name)
    return 4 * held + 4


def low_bytes(name: str, rank: int) -> int:
    """Two moments of rank x the longer side, and rank x the shorter side of a basis or projection, and a count."""
    return 8 * rank * max(SHAPES[name]) + 4 * rank * min(SHAPES[name]) + 4


def theory(variant: str, name: str) -> int:
    hidden = name in HIDDEN
    match variant:
        case "adamw":
            return adamw_bytes(name)
        case "adamw-galore":
            return low_bytes(name, 3) if hidden else adamw_bytes(name)
        case "adafactor":
            return adafactor_bytes(name)
        case "adafactor-galore":
            return 4 * (max(SHAPES[name]) + 3) + 4 * 3 * min(SHAPES[name]) + 4 if hidden else adafactor_bytes(name)
        case "sgd-plain":
            return 0
        case "sgd" | "lion":
            return 4 * elements(name)
        case "muon":
            return 4 * elements(name) if hidden else adamw_bytes(name)
        case "apollo" | "apollo_mini" | "apollo-often" | "apollo_mini-often":
            rank = 1 if "mini" in variant else 3 if "often" in variant else min(SHAPES[name] or (0,)) // 4
            return low_bytes(name, rank) + 4 if hidden else adamw_bytes(name)
    raise AssertionError(variant)


@every_variant
def test_the_state_takes_the_bytes_of_theory(variant: str) -> None:
    found = dict.fromkeys(SHAPES, 0)
    for name, tensor in flat_state(build(variant, parameters(torch.float32))).items():
        found[name.split(".")[1]] += tensor.nbytes
    assert found == {name: theory(variant, name) for name in SHAPES}


@every_variant
def test_the_ratio_of_moments_is_sensible_or_none(variant: str) -> None:
    named = parameters(torch.float32)
    optimizer = build(variant, named)
    assert moment_ratio(optimizer) is None
    take_steps(optimizer, named, range(3))
    ratio = moment_ratio(optimizer)
    if VARIANTS[variant][0] in ("adafactor", "sgd", "lion"):
        assert ratio is None
    else:
        assert ratio is not None
        assert 0.1 < ratio < 10


@every_variant
def test_a_rate_of_zero_moves_nothing(variant: str) -> None:
    named = parameters(torch.float32)
    optimizer = build(variant, named)
    before = values(named)
    set_learning_rate(optimizer, 0.0)
    take_steps(optimizer, named, range(3))
    assert all(torch.equal(before[name], value) for name, value in values(named).items())
