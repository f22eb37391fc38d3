"""The load of each expert, counted where a router chooses, in the forward pass of the step itself."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from pretrain.policy.measured import Measured


class Router(Protocol):
    """What a router must offer: how many experts it chooses from, and their numbers as its last output.

    The chosen experts are int64 [positions, top_k].
    """

    experts: int


class Experts:
    """Watches routers, (name, module) pairs, while it is `watching`, over every micro-batch of a step."""

    def __init__(self, routers: Sequence[tuple[str, nn.Module]]) -> None:
        self._routers = routers
        self._seen: dict[str, list[torch.Tensor]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count in every forward pass within; the routers choose what they would."""
        self._seen = {name: [] for name, _ in self._routers}
        with ExitStack() as hooks:
            for name, router in self._routers:
                hooks.callback(router.register_forward_hook(self._hook(self._seen[name])).remove)
            yield

    def values(self) -> Measured:
        """Return `load`, the share of the choices that fell on each expert, by router; waits for the device once.

        The subject of expert 3 of router R is `R.3`. A router that had nothing to choose for has no load.
        """
        counts = {name: torch.stack(seen).sum(dim=0) for name, seen in self._seen.items() if seen}
        together = torch.cat(list(counts.values())).tolist() if counts else []
        ends = itertools.accumulate((len(row) for row in counts.values()), initial=0)
        read = [together[begin:end] for begin, end in itertools.pairwise(ends)]
        return {
            "load": {
                f"{name}.{expert}": count / sum(row)
                for name, row in zip(counts, read, strict=True)
                for expert, count in enumerate(row)
                if any(row)
            }
        }

    @staticmethod
    def _hook(seen: list[torch.Tensor]) -> Any:
        def read(router: Any, inputs: Any, output: tuple[torch.Tensor, ...]) -> None:
            chosen = output[-1].detach()
            numbers = torch.arange(router.experts, device=chosen.device)
            # Compared and summed, since bincount has no deterministic form on a GPU.
            seen.append((chosen.reshape(-1, 1) == numbers).sum(dim=0))

        return read
