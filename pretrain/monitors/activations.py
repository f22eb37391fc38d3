"""Root mean square and largest magnitude of what each block writes, read in the forward pass of the step itself."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from pretrain.policy.measured import Measured


class Activations:
    """Watches the outputs of (name, module) pairs while it is `watching`, over every micro-batch of a step."""

    def __init__(self, modules: Sequence[tuple[str, nn.Module]]) -> None:
        self._modules = modules
        self._seen: dict[str, list[torch.Tensor]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Read every forward pass within; the modules compute what they would, to the bit."""
        self._seen = {name: [] for name, _ in self._modules}
        with ExitStack() as hooks:
            for name, module in self._modules:
                hooks.callback(module.register_forward_hook(self._hook(self._seen[name])).remove)
            yield

    def values(self) -> Measured:
        """Return `rms` and `largest` by name, over all that was read; waits for the device once."""
        if not self._modules:
            return {"rms": {}, "largest": {}}
        rows = [torch.stack(self._seen[name]) for name, _ in self._modules]
        read = torch.stack([torch.stack((_rms(row), row[:, 2].amax())) for row in rows]).tolist()
        names = [name for name, _ in self._modules]
        return {
            "rms": {name: rms for name, (rms, _) in zip(names, read, strict=True)},
            "largest": {name: largest for name, (_, largest) in zip(names, read, strict=True)},
        }

    @staticmethod
    def _hook(seen: list[torch.Tensor]) -> Any:
        def read(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
            seen.append(_norm_count_and_largest(output.detach()))

        return read


def _norm_count_and_largest(output: torch.Tensor) -> torch.Tensor:
    norm = torch.linalg.vector_norm(output, dtype=torch.float32)
    low, high = torch.aminmax(output)
    return torch.stack((norm, torch.full_like(norm, output.numel()), torch.maximum(-low, high).float()))


def _rms(row: torch.Tensor) -> torch.Tensor:
    """Over all elements of all micro-batches, which need not be of one size."""
    rms: torch.Tensor = torch.linalg.vector_norm(row[:, 0]) / row[:, 1].sum().sqrt()
    return rms
