"""What turns gradients into an update; one row per optimizer, and its state as flat named tensors."""

from typing import Any

import torch

from pretrain.optimizers.adafactor import AdafactorSettings, build_adafactor
from pretrain.optimizers.adamw import AdamWSettings, build_adamw
from pretrain.optimizers.apollo import ApolloSettings, build_apollo
from pretrain.optimizers.apollo_mini import ApolloMiniSettings, build_apollo_mini
from pretrain.optimizers.groups import MOMENT_KEYS, RoleGroups, contradictions
from pretrain.optimizers.lion import LionSettings, build_lion
from pretrain.optimizers.muon import MuonSettings, build_muon
from pretrain.optimizers.projected import Projected, projected
from pretrain.optimizers.sgd import SgdSettings, build_sgd
from pretrain.optimizers.width import for_width, width_contradictions
from pretrain.registry import Entry

OPTIMIZERS: dict[str, Entry[Any, torch.optim.Optimizer]] = {
    "adamw": Entry(AdamWSettings, build_adamw),
    "sgd": Entry(SgdSettings, build_sgd),
    "adafactor": Entry(AdafactorSettings, build_adafactor),
    "muon": Entry(MuonSettings, build_muon),
    "lion": Entry(LionSettings, build_lion),
    "apollo": Entry(ApolloSettings, build_apollo),
    "apollo_mini": Entry(ApolloMiniSettings, build_apollo_mini),
}


def flat_state(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return every tensor of the state as `optimizer.PARAMETER.KEY`: its own tensors, so `copy_` restores.

    Names cannot swap the moments of two parameters of one shape as the positions of `load_state_dict` can,
    and no tensor changes its type on the way. Raises TypeError for a state that is not a tensor: it could
    not be saved.
    """
    flat = {}
    for group in optimizer.param_groups:
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            for key, value in optimizer.state[parameter].items():
                if not isinstance(value, torch.Tensor):
                    raise TypeError(f"optimizer state {name}.{key}: expected a tensor, found {value!r}")
                flat[f"optimizer.{name}.{key}"] = value
    return flat


def moment_ratio(optimizer: torch.optim.Optimizer) -> float | None:
    """Return the median over elements of sqrt(v_hat) / |g|, g the gradients as they are now; waits for the device.

    v_hat is Adam's second moment without its bias towards 0 (Kingma and Ba, arXiv 1412.6980, algorithm 1). At most
    about a million elements are looked at, evenly spread, of the parameters that have such a moment for each element:
    GaLore's and APOLLO's are of another shape. None where the state holds none, or none yet.
    """
    every = max(1, sum(parameter.numel() for group in optimizer.param_groups for parameter in group["params"]) >> 20)
    found = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state, gradient = optimizer.state[parameter], parameter.grad
            if gradient is None or "exp_avg_sq" not in state or state["exp_avg_sq"].shape != gradient.shape:
                continue
            if "betas" not in group or not state["step"] >= 1:
                continue
            bias = 1 - group["betas"][1] ** state["step"].to(parameter.device)
            second = state["exp_avg_sq"].flatten()[::every].float() / bias
            size = gradient.flatten()[::every].float().abs()
            found.append((second.sqrt() / size)[size > 0])
    ratios = torch.cat(found) if found else torch.empty(0)
    return float(ratios.median()) if ratios.numel() else None


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the rate of the next step: each group takes `lr` times its own `lr_multiplier`."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_multiplier"]


__all__ = [
    "MOMENT_KEYS",
    "OPTIMIZERS",
    "Projected",
    "RoleGroups",
    "contradictions",
    "flat_state",
    "for_width",
    "moment_ratio",
    "projected",
    "set_learning_rate",
    "width_contradictions",
]
