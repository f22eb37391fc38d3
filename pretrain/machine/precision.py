"""Which arithmetic a forward pass uses: float32 throughout, or bfloat16 where autocast finds it safe."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from pretrain.errors import ConfigError

PRECISIONS = ("float32", "bfloat16")


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return a context, for any number of uses in a row, in which `precision` holds; parameters stay float32.

    Forward passes belong inside, backward passes outside: those follow the types of the forward pass anyway.
    """
    if precision == "float32":
        return nullcontext()
    if precision == "bfloat16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    raise ConfigError(f"training.precision: expected one of {', '.join(PRECISIONS)}, found {precision!r}")
