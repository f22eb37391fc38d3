"""States and records that the checkpoint tests share."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pretrain.evidence.checkpoint import SavedCheckpoint, save_checkpoint
from pretrain.evidence.metrics import Cursor

SCALARS: dict[str, Any] = {
    "loader": {"epoch": 1, "position": 640},
    "ledger": {
        "retries": [3, 17],
        "rollbacks": 1,
        "rung": 0,
        "incidents": 2,
        "quarantined": [[64, 79]],
        "learning_rate_factor": 0.5,
        "faults_fired": ["nan_grad@5"],
    },
    "guard": {},
    "spikes": {"mean": 1.25e-08, "seen": 4},
    "scaler": None,
    "best": [{"step": 10, "value": 1.5}],
}
DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32),
    *(torch.int16, torch.int8, torch.uint8, torch.bool),
)


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """A tensor whose elements differ from each other where the dtype has room for it."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max, shape, generator=generator, dtype=dtype)


def small_state() -> dict[str, torch.Tensor]:
    """Three tensors of a few bytes, so that every bit can be flipped."""
    return {
        "model.w": tensor_of(torch.float32, (2, 3)),
        "optimizer.w.step": torch.tensor(7.0),
        "rng.cpu": tensor_of(torch.uint8, (5,)),
    }


def save(folder: Path, tensors: dict[str, torch.Tensor] | None = None, **changes: Any) -> SavedCheckpoint:
    """Save `tensors` (by default the small state) with the fields of the record that `changes` does not give."""
    record: dict[str, Any] = {
        "step": 100,
        "batch": 102,
        "identity_sha256": "1a" * 32,
        "layout": {},
        "metrics": Cursor(4, 200, "2b" * 32),
        "scalars": copy.deepcopy(SCALARS),
    }
    return save_checkpoint(folder, small_state() if tensors is None else tensors, **{**record, **changes})


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file in `folder` by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def like(tensors: dict[str, torch.Tensor], fill: Callable[..., torch.Tensor] = torch.zeros_like) -> Any:
    """Tensors of the same names, dtypes and shapes with other values."""
    return {name: fill(tensor.detach()) for name, tensor in tensors.items()}


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal in dtype, shape and every bit (torch.equal says 0.0 == -0.0)."""
    raw = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*raw)
