"""Which arithmetic a forward pass uses: float32 throughout, or 16 bits where autocast finds that safe."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from pretrain.errors import ConfigError

_TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
PRECISIONS = ("float32", *_TYPES)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Return a context, for any number of uses in a row, in which `precision` holds; parameters stay float32.

    Forward passes belong inside, backward passes outside: those follow the types of the forward pass anyway. The
    gradients of a float16 pass need a scaled loss; that is the caller's.
    """
    if precision == "float32":
        return nullcontext()
    if precision in _TYPES:
        return torch.autocast(device.type, dtype=_TYPES[precision])
    raise ConfigError(f"training.precision: expected one of {', '.join(PRECISIONS)}, found {precision!r}")
