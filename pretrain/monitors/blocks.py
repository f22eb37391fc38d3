"""Gradient, parameter and update norm of each residual block, read after the step from what it left behind."""

from collections.abc import Sequence

import torch
from torch import nn

from pretrain.policy.measured import Measured

# All parameters that are in no block: embedding, last norm, head.
REST = "rest"


class Blocks:
    """Measures a model by its blocks, (name, module) pairs; what is in none of them is together the `rest`."""

    def __init__(self, model: nn.Module, blocks: Sequence[tuple[str, nn.Module]]) -> None:
        owner = {parameter: name for name, module in blocks for parameter in module.parameters()}
        self._names = [*(name for name, _ in blocks), REST]
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        places = [self._names.index(owner.get(parameter, REST)) for parameter in self._parameters]
        self._of_block = torch.tensor(places, dtype=torch.int64)

    def values(self, clip_ratio: float, updates: torch.Tensor | None) -> Measured:
        """Return `gradient_norm` before clipping, `parameter_norm` and `update_norm` by block.

        clip_ratio: what the gradients that are still in place were multiplied by. updates: how far each parameter has
        moved in this step, [parameters]; None leaves `update_norm` out. Waits for the device once.
        """
        gradients = [parameter.grad for parameter in self._parameters]
        assert all(gradient is not None for gradient in gradients), "the gradients of the step are still there"
        rows = [
            torch.stack(torch._foreach_norm(gradients)).double() / clip_ratio,  # type: ignore[arg-type]
            torch.stack(torch._foreach_norm([parameter.detach() for parameter in self._parameters])).double(),
        ]
        if updates is not None:
            rows.append(updates.double())
        squares = torch.stack(rows).square()
        # A table in the place of index_add_, which has no order of its own on a GPU. It chooses and does not multiply,
        # as zero times infinity would make every block of the one whose norm overflows.
        owned = torch.nn.functional.one_hot(self._of_block, len(self._names)).to(squares.device, torch.bool)
        read = torch.where(owned, squares[:, :, None], 0.0).sum(dim=1).sqrt().tolist()
        measures = ("gradient_norm", "parameter_norm", "update_norm")
        return {measure: dict(zip(self._names, row, strict=True)) for measure, row in zip(measures, read, strict=False)}
