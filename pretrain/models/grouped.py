"""Each expert's layer on its own rows, one product after the other or all of them as one grouped product."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from pretrain.models.feedforward import FeedForward, SwiGLU

# What F.grouped_mm asks of every row, in bytes.
_ALIGNMENT = 16


def can_be_grouped(experts: nn.ModuleList, device: torch.device) -> bool:
    """Whether `apply_grouped` is the way for these experts: on CUDA, where all rows are whole multiples of 16 bytes.

    It is a rule of device and sizes alone, so a run takes one way throughout. On a CPU PyTorch's grouped product is the
    loop of `apply_each`, and there is no wait for the device to be saved.
    """
    if device.type != "cuda":
        return False
    size = torch.get_autocast_dtype("cuda").itemsize if torch.is_autocast_enabled("cuda") else 4
    return all(side * size % _ALIGNMENT == 0 for matrix in experts[0].parameters() for side in matrix.shape)


def apply_each(experts: nn.ModuleList, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return what each expert makes of its rows, [N, width] in the order of the experts to the same.

    ends: where the rows of each expert end, int64 [experts]. Waits for the device once.
    """
    # Without rows an expert takes part all the same: its gradient is zeros then, and not missing.
    parts = torch.split(rows, row_counts(ends, len(rows)))
    return torch.cat([expert(part) for expert, part in zip(experts, parts, strict=True)])


def row_counts(ends: torch.Tensor, rows: int) -> list[int]:
    """Return how many of the rows each expert has; ValueError where they are not all of them."""
    counts: list[int] = torch.diff(ends, prepend=ends.new_zeros(1)).tolist()
    if sum(counts) != rows:
        raise ValueError(f"expected {rows} rows shared out to the experts, found {sum(counts)}")
    return counts


def apply_grouped(experts: nn.ModuleList, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return the same as `apply_each` without a wait for the device; the matrices are copied side by side for it."""
    device = rows.device.type
    if torch.is_autocast_enabled(device):
        rows = rows.to(torch.get_autocast_dtype(device))
    product = partial(_product, experts, ends)
    match experts[0]:
        case SwiGLU():
            return product("down_proj", F.silu(product("gate_proj", rows)) * product("up_proj", rows))
        case FeedForward(activation=activation):
            return product("down_proj", activation(product("up_proj", rows)))
        case other:
            raise TypeError(f"{type(other).__name__}: expected experts that are SwiGLU or FeedForward layers")


def _product(experts: nn.ModuleList, ends: torch.Tensor, name: str, rows: torch.Tensor) -> torch.Tensor:
    weights = torch.stack([expert.get_parameter(f"{name}.weight").to(rows.dtype) for expert in experts])
    if weights.requires_grad:
        # For an expert without rows some kernels leave what was in memory (pytorch issue 172439).
        is_used = torch.diff(ends, prepend=ends.new_zeros(1))[:, None, None] > 0
        weights.register_hook(lambda gradient: torch.where(is_used, gradient, 0.0))  # type: ignore[no-untyped-call]
    made: torch.Tensor = F.grouped_mm(rows, weights.transpose(1, 2), offs=ends.to(torch.int32))
    return made
