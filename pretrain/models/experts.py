"""A mixture of experts in the place of a feed-forward layer: who works on a position, and how evenly."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pretrain.models.feedforward import build_feed_forward
from pretrain.models.grouped import apply_each, apply_grouped, can_be_grouped
from pretrain.models.parts import float32_linear, is_computed_again
from pretrain.registry import limited

WIDTH_MULTIPLE = 8


@dataclass(frozen=True)
class ExpertSettings:
    """Experts in the place of each feed-forward layer: a router sends every position to some of them.

    count: experts to choose from, in each layer.
    top_k: experts that work on a position; at most `count`.
    shared: experts beside them that work on every position and are not chosen; they are one layer of so many times the
        width of an expert.
    width: hidden size of an expert; null = `ffn_width` over top_k + shared, rounded up to a multiple of 8, so that a
        position takes as many parameters as in a model without experts.
    balance: how much the bias of an expert moves after each accepted step, up where its load was below the mean, down
        where it was above; the bias acts on the choice alone, and is part of a checkpoint; 0 = no bias.
    auxiliary_weight: weight of the auxiliary loss of each layer, which is 1 where all experts work alike, in the loss
        that is optimised and shown for each step; validation is without it.
    router_z_weight: weight of the mean of log(Z)^2 of each layer, Z being the sum over exp(router logits), there too.
    """

    count: int = limited(dataclasses.MISSING, at_least=2, at_most=4096)
    top_k: int = limited(2, at_least=1)
    shared: int = limited(0, at_least=0, at_most=64)
    width: int | None = limited(None, at_least=1)
    balance: float = limited(0.001, at_least=0, at_most=1)
    auxiliary_weight: float = limited(0.0, at_least=0)
    router_z_weight: float = limited(0.0, at_least=0)


def expert_width(settings: ExpertSettings, ffn_width: int) -> int:
    """Return the hidden size of an expert: as set, or an equal part of the dense layer's, rounded up."""
    if settings.width is not None:
        return settings.width
    return -(-ffn_width // ((settings.top_k + settings.shared) * WIDTH_MULTIPLE)) * WIDTH_MULTIPLE


class Router(nn.Module):
    """Chooses the experts of a position, and how much each of them counts there.

    [N, width] to float32 logits and scores [N, experts], weights [N, top_k], and the chosen experts, int64 [N, top_k].
    The scores are a softmax over all experts, as in Switch (Fedus et al., arXiv 2101.03961) and Qwen3-MoE: both losses
    are about a softmax, and so the probabilities that they level are those that weigh; the sigmoid of DeepSeek-V3 would
    need a second set. The weights are the scores of the chosen over their sum; of a single one the score itself
    (Switch, equation 2), since one over one would teach the router nothing. A bias is added in the choice alone, never
    in a weight: DeepSeek-V3, arXiv 2412.19437, section 2.1.2. The logits are in the weight's own type under autocast
    too: Switch, section 2.4. Among equals the expert of the lower number is chosen.
    """

    def __init__(self, width: int, settings: ExpertSettings) -> None:
        super().__init__()
        self.experts, self.top_k = settings.count, settings.top_k
        self.weight = nn.Parameter(torch.empty(settings.count, width))
        bias = torch.zeros(settings.count) if settings.balance > 0 else None
        self.register_buffer("e_score_correction_bias", bias)
        self.e_score_correction_bias: torch.Tensor | None

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = float32_linear(positions, self.weight)
        scores = logits.softmax(dim=-1)
        ranked = scores.detach()
        if self.e_score_correction_bias is not None:
            ranked = ranked + self.e_score_correction_bias
        # Not topk, which does not say whom it takes among equals.
        chosen = ranked.sort(dim=-1, descending=True, stable=True).indices[:, : self.top_k]
        if self.top_k == 1:
            return logits, scores, scores.gather(-1, chosen), chosen
        # The scores of the chosen over their sum, from the logits: a bias may choose those whose scores are all zero.
        weights = logits.gather(-1, chosen).softmax(dim=-1)
        return logits, scores, weights, chosen


class Mixture(nn.Module):
    """The sum of what the chosen experts make of a position, weighed, and of the shared ones: [..., width] to the same.

    No expert has a capacity, so no position is dropped. The pairs of position and expert are put in the order of the
    experts, each expert multiplies its own, and they are put back by the inverse of that order and summed: no addition
    in it depends on an order of threads. An expert that gets no position has a gradient of zeros.

    What a pass in training leaves behind, but not one that activation checkpointing makes again: the loss of its own,
    and the loads, which are added up until `forget` or `rebalance`.
    """

    def __init__(self, width: int, ffn_width: int, activation: str, settings: ExpertSettings) -> None:
        super().__init__()
        self.settings = settings
        hidden = expert_width(settings, ffn_width)
        self.gate = Router(width, settings)
        self.experts = nn.ModuleList(build_feed_forward(width, hidden, activation) for _ in range(settings.count))
        shared = build_feed_forward(width, settings.shared * hidden, activation) if settings.shared else None
        self.shared_experts = shared
        self._own_loss: torch.Tensor | None = None
        self._loads: torch.Tensor | None = None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        top_k, positions = self.gate.top_k, hidden.flatten(0, -2)
        # Without the hooks of a monitor, where it has seen this pass already.
        route = self.gate.forward if is_computed_again() else self.gate
        logits, scores, weights, chosen = route(positions)
        numbers, order = chosen.flatten().sort(stable=True)
        inverse = order.argsort()
        ends = torch.searchsorted(numbers, torch.arange(self.gate.experts, device=numbers.device), right=True)
        if self.training and torch.is_grad_enabled():
            self._collect(logits, scores, ends)
        pairs = positions[:, None].expand(-1, top_k, -1).flatten(0, 1)
        apply = apply_grouped if can_be_grouped(self.experts, positions.device) else apply_each
        made = apply(self.experts, _reordered(pairs, order, inverse), ends)
        written = _reordered(made, inverse, order)
        by_position = written.view(-1, top_k, hidden.shape[-1])
        mixed: torch.Tensor = (by_position * weights[..., None]).sum(dim=1).view(hidden.shape)
        return mixed if self.shared_experts is None else mixed + self.shared_experts(hidden)

    def take_own_loss(self) -> torch.Tensor | None:
        """Return the weighted auxiliary and z-loss of the newest pass, a scalar with its graph, and forget it."""
        taken, self._own_loss = self._own_loss, None
        return taken

    def forget(self) -> None:
        """Drop the loads that were collected, as if those passes had not been."""
        self._loads = None

    @torch.no_grad()
    def rebalance(self) -> None:
        """Move the bias by the loads that were collected, and drop them; nothing where there is no bias.

        Up by `balance` for an expert below the mean load, down above it: Wang et al., arXiv 2408.15664, algorithm 1.
        """
        loads, bias = self._loads, self.gate.e_score_correction_bias
        self.forget()
        if loads is None or bias is None:
            return
        # In whole numbers, so that a load equal to the mean is that, whatever their size.
        bias += self.settings.balance * torch.sign(loads.sum() - loads * len(loads)).to(bias.dtype)

    def _collect(self, logits: torch.Tensor, scores: torch.Tensor, ends: torch.Tensor) -> None:
        """Keep the loads and the own loss of a pass; one that is made again computes the same and keeps nothing.

        It must compute it, since checkpointing finds what the backward pass needs by the order of the operations.
        """
        loads, own = torch.diff(ends, prepend=ends.new_zeros(1)), None
        if self.settings.auxiliary_weight > 0:
            own = self.settings.auxiliary_weight * auxiliary_loss(scores, loads)
        if self.settings.router_z_weight > 0:
            z_loss = self.settings.router_z_weight * torch.logsumexp(logits, dim=-1).square().mean()
            own = z_loss if own is None else own + z_loss
        if not is_computed_again():
            self._own_loss = own
            self._loads = loads if self._loads is None else self._loads + loads


def auxiliary_loss(scores: torch.Tensor, loads: torch.Tensor) -> torch.Tensor:
    """Return experts * sum over them of their share of the choices times their mean score: 1 where all work alike.

    scores: [N, experts], summing to 1. loads: how many positions chose each, int64 [experts]; no gradient goes through
    them. Fedus et al., arXiv 2101.03961, equations 4 to 6, there with one choice for a position.
    """
    shares = loads.to(scores.dtype) / loads.sum()
    return len(loads) * (shares * scores.mean(dim=0)).sum()


def own_loss(layers: Sequence[Mixture]) -> torch.Tensor | None:
    """Return the sum of the layers' own losses, None where there is none, and let the layers forget them."""
    found = [loss for layer in layers if (loss := layer.take_own_loss()) is not None]
    return torch.stack(found).sum() if found else None


def _reordered(rows: torch.Tensor, order: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """Return the rows in that order; `inverse` is its inverse, by which the gradient goes back."""
    made: torch.Tensor = _Reordered.apply(rows, order, inverse)  # type: ignore[no-untyped-call]
    return made


class _Reordered(torch.autograd.Function):
    """Indexing by a permutation, whose way back is one too; that of plain indexing adds up, as if rows could repeat."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, order: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(inverse)
        return rows[order]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return gradient[inverse], None, None
