"""How much of a model GaLore or APOLLO projects: matrices that are too small or too large take the plain path."""

from dataclasses import dataclass
from typing import Any

import torch

from pretrain.optimizers.groups import NamedParameters, Roles, split_hidden

_SPACES = ("basis", "projection")  # what the state of a matrix that is projected holds


@dataclass(frozen=True)
class Projected:
    """How many of a model's parameters are projected. warning: what leaves most of its matrices out, None = nothing."""

    count: int
    parameters: int
    warning: str | None = None

    @property
    def text(self) -> str:
        return f"{self.count:,} of {self.parameters:,} parameters ({_share(self.count, self.parameters)})"


def projected(
    optimizer: torch.optim.Optimizer, settings: Any, named_parameters: NamedParameters, roles: Roles
) -> Projected | None:
    """Return what an optimizer with these settings projects of a model; None of one that projects nothing at all."""
    chosen = {
        name
        for group in optimizer.param_groups
        for name, parameter in zip(group["param_names"], group["params"], strict=True)
        if any(space in optimizer.state[parameter] for space in _SPACES)
    }
    if not chosen:
        return None
    sizes = {name: parameter.numel() for name, parameter in named_parameters}
    count = sum(sizes[name] for name in chosen)
    hidden, _ = split_hidden(named_parameters, roles, lambda _: True)
    limit = getattr(settings, "galore_max_dim", None)
    return Projected(count, sum(sizes.values()), None if limit is None else _too_large(hidden, chosen, limit))


def _too_large(hidden: NamedParameters, chosen: set[str], limit: int) -> str | None:
    """Say what `galore_max_dim` leaves out, where less than half of the matrices it could project is left."""
    count = sum(parameter.numel() for name, parameter in hidden if name in chosen)
    total = sum(parameter.numel() for _, parameter in hidden)
    longest = max(max(parameter.shape) for _, parameter in hidden)
    if longest <= limit or 2 * count >= total:
        return None
    return (
        f"optimizer.galore_max_dim ({limit}) leaves out matrices with a side of up to {longest}: of the attention and "
        f"feed-forward matrices GaLore projects {count:,} of {total:,} parameters ({_share(count, total)}); "
        f"optimizer.galore_max_dim={longest} projects them too, and their decompositions take longer"
    )


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %"
