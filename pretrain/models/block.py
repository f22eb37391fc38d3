"""One residual block, and how it is run so that what it computed is not kept but computed again."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from pretrain.models.attention import Attention
from pretrain.models.experts import Mixture
from pretrain.models.feedforward import build_feed_forward
from pretrain.models.parametrization import attention_scale
from pretrain.models.parts import NORMS, computing_again, drop
from pretrain.models.settings import DecoderSettings, ffn_width


class Block(nn.Module):
    """One residual block: attention, then the feed-forward layer, the norm before or after each.

    The parameters have the same names in both: of a post-norm block, `post_attention_layernorm` is the second norm.
    Xiong et al., arXiv 2002.04745, figure 1. Dropout acts on what each of the two writes, before it is added: Vaswani
    et al., arXiv 1706.03762, section 5.4.
    """

    def __init__(self, settings: DecoderSettings) -> None:
        super().__init__()
        norm, width = NORMS[settings.norm], settings.width
        self.norms_last = settings.norm_position == "post"
        self.dropout = settings.dropout
        self.input_layernorm = norm(width)
        self.self_attn = Attention(
            width, settings.heads, settings.kv_heads, settings.qk_norm, attention_scale(settings)
        )
        self.post_attention_layernorm = norm(width)
        hidden, activation = ffn_width(settings), settings.activation
        self.mlp = (
            build_feed_forward(width, hidden, activation)
            if settings.experts is None
            else Mixture(width, hidden, activation, settings.experts)
        )

    def forward(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor | None,
        sin: torch.Tensor | None,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if self.norms_last:
            hidden = self.input_layernorm(hidden + self._drop(self.self_attn(hidden, cos, sin, mask)))
            normed: torch.Tensor = self.post_attention_layernorm(hidden + self._drop(self.mlp(hidden)))
            return normed
        hidden = hidden + self._drop(self.self_attn(self.input_layernorm(hidden), cos, sin, mask))
        return hidden + self._drop(self.mlp(self.post_attention_layernorm(hidden)))

    def _drop(self, written: torch.Tensor) -> torch.Tensor:
        return drop(written, self.dropout, self.training)


def run_block(block: nn.Module, checkpointing: str, *inputs: Any) -> torch.Tensor:
    """Return what the block makes of its inputs, keeping for the backward pass what `checkpointing` says.

    none: all of it. full: the inputs alone; the block is computed again (Chen et al., arXiv 1604.06174). selective:
    what matrices and attention give as well; only the rest is computed again. The result and the gradients have the
    same bits in each, dropout included.
    """
    if checkpointing == "none" or not torch.is_grad_enabled():
        return block(*inputs)  # type: ignore[no-any-return]
    selected: dict[str, Any] = {}
    # What PyTorch keeps selectively it finds again by counting the operations of the block. A hook in it may have some
    # of its own and leave them out the second time; then all is computed again, which gives the same bits.
    if checkpointing == "selective" and not _is_watched(block):
        selected = {"context_fn": partial(create_selective_checkpoint_contexts, _policy)}
    made: torch.Tensor = checkpoint(
        _once_with_hooks(block), *inputs, use_reentrant=False, preserve_rng_state=True, **selected
    )
    return made


def _once_with_hooks(block: nn.Module) -> Callable[..., Any]:
    """Return the block as a function; from the second call on without its hooks, since that is no pass of its own."""

    def again(*inputs: Any) -> Any:
        with computing_again():
            return block.forward(*inputs)

    calls = iter((block,))
    return lambda *inputs: next(calls, again)(*inputs)


def _is_watched(block: nn.Module) -> bool:
    return any(module._forward_hooks or module._forward_pre_hooks for module in block.modules())


_aten = torch.ops.aten
# The matrix products, and attention as each device has it: what takes most of the time.
_KEPT = frozenset(
    [
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten._grouped_mm.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
    ]
)


def _policy(context: Any, operation: Any, *arguments: Any, **named: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE
