"""Entropy and largest logit of each attention layer, computed again for one sequence from what the layer read."""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from pretrain.policy.measured import Measured

# Query positions that are looked at: as many rows of the attention matrix, spread evenly over the sequence.
QUERIES = 64


class Scored(Protocol):
    """What a layer must offer: the logits of some of its queries, float32 [rows, heads, queries, positions].

    What a query does not see is -inf there.
    """

    def scores(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor | None,
        sin: torch.Tensor | None,
        mask: torch.Tensor | None,
        queries: torch.Tensor,
    ) -> torch.Tensor: ...


class Attention:
    """Watches attention layers, (name, module) pairs, while it is `watching`.

    The fused attention of the forward pass keeps neither logits nor weights. So the first sequence of the first
    micro-batch goes through queries and keys once more, in float32, without gradients and without any generator.
    """

    def __init__(self, layers: Sequence[tuple[str, nn.Module]]) -> None:
        self._layers = layers
        self._seen: dict[str, torch.Tensor] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Read the first forward pass within; the layers compute what they would, to the bit."""
        self._seen = {}
        with ExitStack() as hooks:
            for name, layer in self._layers:
                hooks.callback(layer.register_forward_hook(self._hook(name)).remove)
            yield

    def values(self) -> Measured:
        """Return `entropy` and `largest_logit` by layer; waits for the device once.

        entropy: the mean over heads and queries, as a share of that of attending everywhere alike, which is the
        logarithm of the positions seen. Zhai et al., arXiv 2303.06296, where it falls before training diverges.
        largest_logit: the largest magnitude before the softmax. Dehghani et al., arXiv 2302.05442.
        """
        found = [self._seen[name] for name, _ in self._layers]
        read = torch.stack(found).tolist() if found else []
        names = [name for name, _ in self._layers]
        return {
            "entropy": {name: entropy for name, (entropy, _) in zip(names, read, strict=True)},
            "largest_logit": {name: logit for name, (_, logit) in zip(names, read, strict=True)},
        }

    def _hook(self, name: str) -> Any:
        def read(layer: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
            if name not in self._seen:
                self._seen[name] = _entropy_and_largest_logit(layer, *inputs)

        return read


def _entropy_and_largest_logit(
    layer: Scored,
    hidden: torch.Tensor,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    # After the layer's own pass, and outside autocast: what autocast casts without gradients it would keep, and the
    # pass of the step would find weights in its cache that lead no gradient back.
    with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
        queries = _spread(hidden.shape[1], hidden.device)
        logits = layer.scores(hidden[:1].float(), cos, sin, mask, queries)
        return torch.stack((_entropy(logits), _largest(logits)))


def _spread(positions: int, device: torch.device) -> torch.Tensor:
    """Return up to QUERIES positions; the first, which sees itself alone, is left out unless there is no other."""
    first = min(1, positions - 1)
    count = min(QUERIES, positions - first)
    return torch.linspace(first, positions - 1, count, device=device).round().long()


def _entropy(logits: torch.Tensor) -> torch.Tensor:
    logs = torch.log_softmax(logits, dim=-1)
    entropies = -(logs.exp() * logs.clamp(min=-math.log(torch.finfo(logs.dtype).max))).sum(dim=-1)
    seen = (logits != -math.inf).sum(dim=-1)
    # Of one position alone every attention is the even one.
    return torch.where(seen > 1, entropies / seen.clamp(min=2).to(entropies.dtype).log(), 1.0).mean()


def _largest(logits: torch.Tensor) -> torch.Tensor:
    return torch.where(logits == -math.inf, 0.0, logits).abs().amax()
