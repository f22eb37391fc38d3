"""AdamW with its whole state in place before the first step, and with GaLore where that is asked for."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from pretrain.optimizers.combined import combine
from pretrain.optimizers.galore import galore, split_by_galore
from pretrain.optimizers.groups import BY_ROLE, SMALLEST_EPS, NamedParameters, RoleGroups, Roles, parameter_groups
from pretrain.optimizers.low_rank import ADAM
from pretrain.registry import limited

_FUSED_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class AdamWSettings:
    """AdamW (Loshchilov and Hutter, arXiv 1711.05101), fused into one kernel.

    lr: peak learning rate; the scheduler multiplies it.
    lr_scaling: what is made of `lr` where a step takes another number of samples than `base_batch_size`: `linear` takes
      it times their ratio, `sqrt` times the root of that, `none` as it is.
    base_batch_size: samples of a step (batch_size x gradient_accumulation_steps) that `lr` was found with.
    betas: decay rates of the running means of the gradient and of its square.
    eps: added to the root of the second moment.
    weight_decay: decay per step, times the learning rate, of every part that `groups` gives no other.
    groups: values of their own for parts of the model.
    use_galore: moments of attention and feed-forward matrices in a space of low rank (Zhao et al., arXiv 2403.03507).
    galore_rank: dimension of that space; a matrix whose shorter side is no longer than this takes the plain path.
    galore_update_interval: steps from one singular value decomposition of the gradient, which finds the space, to the
      next.
    galore_scale: what the step is multiplied by on its way back to the whole matrix.
    galore_max_dim: a matrix whose longer side is beyond this takes the plain path; the default leaves the feed-forward
      matrices of llama-7b out, which are 11008 wide. A warning says where less than half is projected for this.
    """

    width_exponent: ClassVar[float] = 1.0

    lr: float = limited(3.0e-3, above=0)
    lr_scaling: str = limited("none", choices=("none", "linear", "sqrt"))
    base_batch_size: int | None = limited(None, at_least=1)
    betas: tuple[float, float] = limited((0.9, 0.95), at_least=0, below=1)
    eps: float = limited(1.0e-8, at_least=SMALLEST_EPS)
    weight_decay: float = limited(0.1, at_least=0)
    groups: RoleGroups = BY_ROLE
    use_galore: bool = False
    galore_rank: int = limited(128, at_least=1)
    galore_update_interval: int = limited(200, at_least=1)
    galore_scale: float = limited(0.25, above=0)
    galore_max_dim: int = limited(8192, at_least=1)


def build_adamw(settings: AdamWSettings, named_parameters: NamedParameters, roles: Roles) -> torch.optim.Optimizer:
    """AdamW over the groups of `roles`, two by default: with decay, and norms, biases and embeddings without."""
    low, plain = split_by_galore(settings, named_parameters, roles)
    return combine(
        [
            galore(parameter_groups(settings, low, roles), ADAM, settings),
            adamw_over(parameter_groups(settings, plain, roles)),
        ]
    )


def adamw_over(groups: list[dict[str, Any]]) -> torch.optim.AdamW | None:
    """Return PyTorch's AdamW over these groups, None where there are none.

    `step`, `exp_avg` and `exp_avg_sq` of every parameter exist from here on, as the zeros that the first
    step would make, so that a checkpoint of step 0 names the same tensors as any later one.
    """
    if not groups:
        return None
    parameters = [parameter for group in groups for _, parameter in group["params"]]
    fused = all(parameter.device.type in _FUSED_DEVICES for parameter in parameters)
    optimizer = torch.optim.AdamW(groups, fused=fused)
    for parameter in parameters:
        optimizer.state[parameter] = {
            # Only the fused kernel counts steps on the device; the others read the count on the host.
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device if fused else "cpu"),
            "exp_avg": torch.zeros_like(parameter, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
        }
    return optimizer
