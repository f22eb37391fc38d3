"""Parameter groups by role: which parts of a model take another rate, decay, betas or eps than the optimizer's own."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.nn import Parameter

from pretrain.registry import limited

NamedParameters = Sequence[tuple[str, Parameter]]
Roles = Mapping[str, str]
# Muon, GaLore and APOLLO are for these, as in their published code. The gradient of an embedding or a head has few rows
# that are not zero, and others at each step.
HIDDEN_ROLES = ("attention", "feed_forward")
# Of every eps: the square of a smaller one can be 0 in float32, and a row without a gradient then divides 0 by 0.
SMALLEST_EPS = 1e-18
# What a group holds only where the optimizer has it.
MOMENT_KEYS = ("betas", "eps")


@dataclass(frozen=True)
class RoleSettings:
    """What one part of the model takes; null = the optimizer's own value.

    lr_multiplier: what the learning rate is multiplied by for these parameters.
    weight_decay: decay of these parameters; null = the optimizer's.
    betas: of an optimizer that has `betas`; null = the optimizer's.
    eps: of an optimizer that has `eps`; null = the optimizer's.
    """

    lr_multiplier: float = limited(1.0, at_least=0)
    weight_decay: float | None = limited(None, at_least=0)
    betas: tuple[float, float] | None = limited(None, at_least=0, below=1)
    eps: float | None = limited(None, at_least=SMALLEST_EPS)


@dataclass(frozen=True)
class RoleGroups:
    """The parts of a model that can take values of their own.

    embeddings: what tokens or patches come in by, and the head where it is the same matrix; no decay by default.
    norms: scales of norms, biases and all else with less than two dimensions; no decay by default.
    attention: the matrices of attention.
    feed_forward: the matrices of the feed-forward layers, of experts too.
    router: the matrix that sends positions to experts; refused where there are none.
    head: the matrix that predicts; refused where that is the embedding.
    """

    embeddings: RoleSettings = RoleSettings(weight_decay=0.0)
    norms: RoleSettings = RoleSettings(weight_decay=0.0)
    attention: RoleSettings = RoleSettings()
    feed_forward: RoleSettings = RoleSettings()
    router: RoleSettings = RoleSettings()
    head: RoleSettings = RoleSettings()


BY_ROLE = RoleGroups()  # what every optimizer begins from


def parameter_groups(settings: Any, named_parameters: NamedParameters, roles: Roles) -> list[dict[str, Any]]:
    """Return one group for all parameters whose roles take the same values, in the order of their first parameter.

    settings: an optimizer's, with `lr`, `weight_decay`, `groups`, and `betas` and `eps` where it has them. roles: the
    role of every parameter by its name. A group holds `params` (name and parameter), `lr`, `lr_multiplier` and
    `weight_decay`, and `betas` and `eps` where the settings have them. They come from the config each time and are in
    no checkpoint. Raises KeyError for a parameter without a role.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, parameter in named_parameters:
        own: RoleSettings = getattr(settings.groups, roles[name])
        values = {"lr": settings.lr * own.lr_multiplier, "lr_multiplier": own.lr_multiplier}
        for key in ("weight_decay", *(key for key in MOMENT_KEYS if hasattr(settings, key))):
            given = getattr(own, key)
            values[key] = getattr(settings, key) if given is None else given
        found.setdefault(tuple(values.items()), {**values, "params": []})["params"].append((name, parameter))
    return list(found.values())


def split_hidden(
    named_parameters: NamedParameters, roles: Roles, fits: Callable[[Parameter], bool]
) -> tuple[NamedParameters, NamedParameters]:
    """Return the matrices of attention and feed-forward layers that `fits` takes, and all other parameters."""
    hidden = [
        (name, parameter)
        for name, parameter in named_parameters
        if parameter.dim() == 2 and roles[name] in HIDDEN_ROLES and fits(parameter)
    ]
    chosen = {name for name, _ in hidden}
    return hidden, [(name, parameter) for name, parameter in named_parameters if name not in chosen]


def contradictions(name: str, settings: Any) -> list[str]:
    """Return every contradiction between the keys of one optimizer, each beginning with the key to change.

    A settings class may have `roles_without_moments`, the roles whose matrices it updates by a rule that has neither
    betas nor eps, and `contradictions()` for what only concerns its own keys.
    """
    found: list[str] = getattr(settings, "contradictions", list)()
    without: tuple[str, ...] = getattr(settings, "roles_without_moments", ())
    groups = getattr(settings, "groups", RoleGroups())
    for field in dataclasses.fields(groups):
        own = getattr(groups, field.name)
        for key in MOMENT_KEYS:
            if getattr(own, key) is not None and (field.name in without or not hasattr(settings, key)):
                whose = (
                    f"{name} has none for the matrices of {field.name}" if field.name in without else f"{name} has none"
                )
                found.append(f"optimizer.groups.{field.name}.{key} is set, but {whose}; take it out")
    return found
