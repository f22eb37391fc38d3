"""Cross-entropy of next tokens and the z-loss beside it, with the logits of all positions at once or of a few."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


@runtime_checkable
class Split(Protocol):
    """What a model must offer for chunks: its trunk and its head apart; one after the other they are its forward."""

    def hidden(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return what the head reads: ids [B, T] to [B, T, width]."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return float32 logits [..., vocabulary] of [..., width]."""


def cross_entropy(
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    reduction: Literal["sum", "none"],
    z_loss: float = 0.0,
    chunk_tokens: int = 0,
) -> torch.Tensor:
    """Return the loss of `targets`, ids [B, T], in nats: a float32 scalar, or [B * T] where nothing is reduced.

    z_loss: adds this times log(Z)^2 of each position, Z the sum over exp(logits), which keeps the logits from drifting:
    Chowdhery et al. (PaLM), arXiv 2204.02311, section 5; Wortsman et al., arXiv 2309.14322.
    chunk_tokens: 0 = all positions at once. Else so many positions have logits at a time, which are made again for the
    backward pass (Wijmans et al., arXiv 2411.09009, give the reason; here it is PyTorch's checkpointing). Loss and
    gradients are those of all at once but for the order in which float32 adds: 1e-6 of their size in float32, and in 16
    bits what the head's own products round by. Raises TypeError for a model that has no `hidden` and `logits`.
    """
    if chunk_tokens == 0:
        return _loss(model(inputs).flatten(0, 1), targets.flatten(), reduction, z_loss)
    if not isinstance(model, Split):
        raise TypeError(f"{type(model).__name__}: expected `hidden` and `logits` for a loss in chunks, found none")

    def of_chunk(hidden: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        with _uncached_autocast(hidden.device):
            return _loss(model.logits(hidden), wanted, reduction, z_loss)

    flat = model.hidden(inputs).flatten(0, 1), targets.flatten()
    chunks = zip(*(torch.split(values, chunk_tokens) for values in flat), strict=True)
    if torch.is_grad_enabled():
        losses = [checkpoint(of_chunk, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
    else:
        losses = [of_chunk(*chunk) for chunk in chunks]
    return torch.stack(losses).sum() if reduction == "sum" else torch.cat(losses)


def _loss(logits: torch.Tensor, targets: torch.Tensor, reduction: str, z_loss: float) -> torch.Tensor:
    """Return the loss of logits [N, vocabulary]; the mean over the units of a step is the loop's, for both terms."""
    loss = F.cross_entropy(logits, targets, reduction=reduction)
    if z_loss == 0:
        return loss
    squares = torch.logsumexp(logits, dim=-1).square()
    return loss + z_loss * (squares.sum() if reduction == "sum" else squares)


def _uncached_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return autocast as it is, but casting the head anew for each chunk.

    With the one cast that autocast keeps, the gradients of all chunks would meet in 16 bits; so they do in float32.
    """
    if not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.get_autocast_dtype(device.type), cache_enabled=False)
