"""AdamW with decay on matrices only, and its whole state in place before the first step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import Parameter

from pretrain.registry import limited

_FUSED_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class AdamWSettings:
    """AdamW (Loshchilov and Hutter, arXiv 1711.05101), fused into one kernel.

    lr: peak learning rate; the scheduler multiplies it.
    betas: decay rates of the running means of the gradient and of its square.
    eps: added to the root of the second moment.
    weight_decay: decay per step, times the learning rate, of every parameter with two or more dimensions.
    """

    lr: float = limited(3.0e-3, above=0)
    betas: tuple[float, float] = limited((0.9, 0.95), at_least=0, below=1)
    eps: float = limited(1.0e-8, above=0)
    weight_decay: float = limited(0.1, at_least=0)


def build_adamw(settings: AdamWSettings, named_parameters: Sequence[tuple[str, Parameter]]) -> torch.optim.Optimizer:
    """AdamW over two groups, matrices (embeddings included) with decay and the scales of norms without.

    `step`, `exp_avg` and `exp_avg_sq` of every parameter exist from here on, as the zeros that the first
    step would make, so that a checkpoint of step 0 names the same tensors as any later one.
    """
    matrices = [(name, parameter) for name, parameter in named_parameters if parameter.dim() >= 2]
    vectors = [(name, parameter) for name, parameter in named_parameters if parameter.dim() < 2]
    groups = [
        {"params": chosen, "weight_decay": decay, "lr_multiplier": 1.0}
        for chosen, decay in ((matrices, settings.weight_decay), (vectors, 0.0))
        if chosen
    ]
    fused = all(parameter.device.type in _FUSED_DEVICES for _, parameter in named_parameters)
    optimizer = torch.optim.AdamW(
        groups,
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        fused=fused,
    )
    for _, parameter in named_parameters:
        optimizer.state[parameter] = {
            # Only the fused kernel counts steps on the device; the others read the count on the host.
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device if fused else "cpu"),
            "exp_avg": torch.zeros_like(parameter, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
        }
    return optimizer
