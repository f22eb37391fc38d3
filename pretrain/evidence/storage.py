"""Where torch, its checkpoint planning and the safetensors format meet: dtypes, bytes and failures."""

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed
from torch.distributed.checkpoint.api import CheckpointException

from pretrain.errors import PretrainError

DTYPE_WORDS: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
TORCH_DTYPES: Mapping[str, torch.dtype] = {word: dtype for dtype, word in DTYPE_WORDS.items()}


def local_part(name: str, tensor: Any) -> torch.Tensor:
    """Return what this rank holds of `tensor`; TypeError naming it when the format cannot hold its kind."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: a checkpoint holds tensors only, not {type(tensor).__name__}")
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if local.dtype not in DTYPE_WORDS or local.layout != torch.strided or local.is_meta:
        raise TypeError(f"{name}: a checkpoint cannot hold {local.dtype} {local.layout} on {local.device.type}")
    return local


def bytes_of(contiguous: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous host tensor: a view, so writing into it writes the tensor."""
    view: memoryview = contiguous.reshape(-1).view(torch.uint8).numpy().data
    return view


def is_distributed() -> bool:
    """Return whether there is a process group through which the ranks agree."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


@contextlib.contextmanager
def own_failures() -> Iterator[None]:
    """Raise what a rank raised, an expected fault before any other, instead of DCP's wrapping."""
    with warnings.catch_warnings():
        # One process without a process group is a run like any other here.
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        try:
            yield
        except CheckpointException as error:
            causes = [error.failures[rank][0] for rank in sorted(error.failures)]
            expected = [cause for cause in causes if isinstance(cause, PretrainError)]
            raise (expected or causes)[0] from error
