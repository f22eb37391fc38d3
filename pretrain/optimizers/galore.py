"""GaLore: the moments of a matrix kept in the space of the leading singular vectors of its gradient."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Parameter

from pretrain import progress
from pretrain.errors import ConfigError, ProjectionError
from pretrain.optimizers.groups import NamedParameters, Roles, split_hidden
from pretrain.optimizers.low_rank import (
    Group,
    Rule,
    count_gradients,
    low_shape,
    new_count,
    on_the_right,
    state_type,
)


class GaLoreKeys(Protocol):
    """The keys of an optimizer that can be wrapped."""

    @property
    def use_galore(self) -> bool: ...
    @property
    def galore_rank(self) -> int: ...
    @property
    def galore_update_interval(self) -> int: ...
    @property
    def galore_scale(self) -> float: ...
    @property
    def galore_max_dim(self) -> int: ...


def split_by_galore(
    settings: GaLoreKeys, named_parameters: NamedParameters, roles: Roles
) -> tuple[NamedParameters, NamedParameters]:
    """Return the matrices to project, none where GaLore is off, and all other parameters, which take the plain path.

    Projected are matrices of attention and feed-forward layers whose shorter side is above `galore_rank` and whose
    longer side is at most `galore_max_dim`, since beyond that a singular value decomposition costs more than it saves.
    Raises ConfigError where GaLore is on and there is none: it would do nothing.
    """
    if not settings.use_galore:
        return [], named_parameters

    def fits(parameter: Parameter) -> bool:
        return min(parameter.shape) > settings.galore_rank and max(parameter.shape) <= settings.galore_max_dim

    low, plain = split_hidden(named_parameters, roles, fits)
    if not low:
        raise ConfigError(
            "optimizer.use_galore: no matrix of the attention or feed-forward layers has a shorter side above "
            f"optimizer.galore_rank ({settings.galore_rank}) and a longer side of at most optimizer.galore_max_dim "
            f"({settings.galore_max_dim}); change one of these, or set optimizer.use_galore=false"
        )
    return low, plain


class GaLore(torch.optim.Optimizer):
    """Zhao et al., arXiv 2403.03507, algorithms 1 and 2, over the rule of any optimizer.

    With the gradient G, m x n, and m >= n, the basis is the `rank` first right singular vectors Q, rank x n, of G at
    the last refresh: R = G Q^T goes through the moments, and the step is scale * step(R) Q. With m < n it is the left
    ones on the left. A refresh comes before every `interval`-th step, the first included. The moments are kept as they
    are then, not turned into the new basis, as in the paper's code. Weight decay acts on the whole weight, before the
    step, as AdamW's does.

    State of each matrix, there from the start: `step`, `basis` and the moments of the rule, at least float32. The signs
    of singular vectors differ between machines, so the basis is in the checkpoint and is not computed again in
    mid-interval.
    """

    def __init__(self, groups: list[Group], rule: Rule, settings: GaLoreKeys) -> None:
        super().__init__(groups, {})
        self._rule, self._settings = rule, settings
        rank = settings.galore_rank
        for parameter in (parameter for group in self.param_groups for parameter in group["params"]):
            kind, device = state_type(parameter), parameter.device
            rows, columns = parameter.shape
            basis = (rank, columns) if on_the_right(parameter) else (rows, rank)
            self.state[parameter] = {
                "step": new_count(parameter),
                "basis": torch.zeros(basis, dtype=kind, device=device),
                **rule.make(torch.zeros(low_shape(parameter, rank), dtype=kind, device=device)),
            }

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step. Raises ProjectionError where a gradient has no basis, before any weight or moment moves."""
        matrices, settings = count_gradients(self), self._settings
        for one in matrices:
            if one.before % settings.galore_update_interval == 0:
                basis = _leading(one.name, one.gradient, on_the_right(one.parameter), settings.galore_rank)
                one.state["basis"].copy_(basis)
                progress.moved()  # All of a large model are decomposed in one step, each of them in seconds.
        for one in matrices:
            one.state["step"] += 1
            basis, right = one.state["basis"], on_the_right(one.parameter)
            low = one.gradient @ basis.T if right else basis.T @ one.gradient
            step = self._rule.step(low, one.before + 1, one.state, one.group, one.parameter)
            whole = step @ basis if right else basis @ step
            one.parameter.mul_(1 - one.group["lr"] * one.group["weight_decay"])
            one.parameter.add_(whole.to(one.parameter.dtype), alpha=-settings.galore_scale)


def _leading(name: str, gradient: Tensor, right: bool, rank: int) -> Tensor:
    """Return the first singular vectors, [rank, columns] or [rows, rank]; of a zero gradient, any orthonormal ones."""
    where = f"{name}: GaLore finds no basis for its gradient"
    try:
        left_vectors, _, right_vectors = torch.linalg.svd(gradient, full_matrices=False)
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise ProjectionError(f"{where}: {error}") from error
    basis: Tensor = right_vectors[:rank] if right else left_vectors[:, :rank]
    if not bool(torch.isfinite(basis).all()):
        raise ProjectionError(f"{where}: expected finite singular vectors")
    return basis


def galore(groups: list[dict[str, Any]], rule: Rule, settings: GaLoreKeys) -> GaLore | None:
    """Return GaLore over these groups, None where there are none."""
    return GaLore(groups, rule, settings) if groups else None
