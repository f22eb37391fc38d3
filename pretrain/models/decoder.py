"""One decoder-only transformer for token ids and for patches of IQ samples, with Llama's parameter names."""

import torch
import torch.nn.functional as F
from torch import nn

from pretrain.batch import InputSpec
from pretrain.models.attention import attention_mask, rotary_tables
from pretrain.models.block import Block, run_block
from pretrain.models.experts import Mixture, own_loss
from pretrain.models.initialization import initialize
from pretrain.models.parametrization import width_ratio
from pretrain.models.parts import NORMS, Embedding, Linear, drop, float32_linear
from pretrain.models.settings import DecoderSettings, check, check_input


class Trunk(nn.Module):
    """Embedding, residual blocks and final norm: [B, T] ids or [B, T, size] patches to [B, T, width].

    checkpointing: what is kept for the backward pass, see `run_block`. boundary: the id between two documents, which
    do not see each other then; None = all of a sequence is one document.
    """

    def __init__(
        self,
        settings: DecoderSettings,
        spec: InputSpec,
        max_positions: int,
        checkpointing: str = "none",
        boundary: int | None = None,
    ) -> None:
        super().__init__()
        width, head_size = settings.width, settings.width // settings.heads
        self.max_positions, self.window, self.boundary = max_positions, settings.sliding_window, boundary
        self.checkpointing, self.dropout = checkpointing, settings.dropout
        if spec.kind == "tokens":
            self.embed_tokens = Embedding(spec.size, width)
        else:
            self.embed_patches = Linear(spec.size, width)
        self.embed_positions = Embedding(max_positions, width) if settings.positions == "learned" else None
        self.layers = nn.ModuleList(Block(settings) for _ in range(settings.layers))
        self.norm = NORMS[settings.norm](width)
        is_rotary = settings.positions == "rotary"
        cos, sin = rotary_tables(max_positions, head_size, settings.rope_base) if is_rotary else (None, None)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.cos: torch.Tensor | None
        self.sin: torch.Tensor | None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        positions = inputs.shape[1]
        if positions > self.max_positions:
            raise ValueError(f"expected at most {self.max_positions} positions, found {positions}")
        cos = None if self.cos is None else self.cos[:positions]
        sin = None if self.sin is None else self.sin[:positions]
        # Once for all layers.
        mask = attention_mask(inputs, self.window, self.boundary)
        hidden = self._embedded(inputs)
        for block in self.layers:
            hidden = run_block(block, self.checkpointing, hidden, cos, sin, mask)
        normed: torch.Tensor = self.norm(hidden)
        return normed

    def _embedded(self, inputs: torch.Tensor) -> torch.Tensor:
        # Both embeddings start the residual stream in float32, and it stays so whatever autocast does in a
        # block.
        hidden: torch.Tensor
        if inputs.is_floating_point():
            hidden = float32_linear(inputs, self.embed_patches.weight)
        else:
            hidden = self.embed_tokens(inputs)
        if self.embed_positions is not None:
            hidden = hidden + self.embed_positions.weight[: inputs.shape[1]]
        return drop(hidden, self.dropout, self.training)


class Decoder(nn.Module):
    """The trunk and its prediction head.

    Tokens: int64 [B, T] to logits float32 [B, T, vocabulary]; under autocast the head multiplies in bfloat16,
    and its result is widened. Patches: float32 [B, T, size] to predictions of that shape and type; the head
    multiplies in float32 under autocast too, since 8 bits of a regression would show in its error.
    """

    def __init__(
        self,
        settings: DecoderSettings,
        spec: InputSpec,
        max_positions: int,
        checkpointing: str = "none",
        boundary: int | None = None,
    ) -> None:
        super().__init__()
        self.spec, self.soft_cap = spec, settings.logit_soft_cap
        self.multiplier = 1 / width_ratio(settings)
        self.model = Trunk(settings, spec, max_positions, checkpointing, boundary)
        tied = spec.kind == "tokens" and settings.tie_embeddings
        self.lm_head = None if tied else Linear(settings.width, spec.size)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.logits(self.hidden(inputs))

    def hidden(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return what the head reads, [B, T, width], in the type of the residual stream."""
        normed: torch.Tensor = self.model(inputs)
        return normed

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the predictions, [..., size], of any positions of `hidden`, [..., width].

        The multiplier of muP acts on what the head reads, which has the same effect: see `parametrization`.

        A soft cap c makes c * tanh(logit / c) of the logits in float32: Gemma 2, arXiv 2408.00118, section 2. Gemma 2
        caps the logits of attention too; here they are not, since the fused kernels have no cap.
        """
        weight = self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        if self.multiplier != 1:
            hidden = hidden * self.multiplier
        if self.spec.kind == "patches":
            return float32_linear(hidden, weight)
        logits = F.linear(hidden, weight)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits if self.soft_cap is None else self.soft_cap * torch.tanh(logits / self.soft_cap)

    def begin_step(self) -> None:
        """Forget the loads of experts of a step that was not taken."""
        for mixture in self._mixtures():
            mixture.forget()

    def own_loss(self) -> torch.Tensor | None:
        """Return what the newest pass in training adds to the mean loss, a scalar with its graph, and forget it.

        The auxiliary and z-losses of the routers, weighted and summed over the layers; None where there are none.
        """
        return own_loss(self._mixtures())

    def _mixtures(self) -> list[Mixture]:
        return [block.mlp for block in self.model.layers if isinstance(block.mlp, Mixture)]


def build_decoder(
    settings: DecoderSettings,
    spec: InputSpec,
    max_positions: int,
    seed: int,
    *,
    activation_checkpointing: str = "none",
    document_boundary: int | None = None,
) -> Decoder:
    """Return a decoder on the CPU in float32, initialised from `seed` alone; no global generator moves.

    max_positions: the longest sequence that it will be given. activation_checkpointing: `none`, `full` or `selective`;
    it changes no bit. document_boundary: the token id between two documents that must not see each other.
    Raises ConfigError where the sizes contradict each other, or the settings the input.
    """
    check(settings)
    check_input(settings, spec)
    model = Decoder(settings, spec, max_positions, activation_checkpointing, document_boundary)
    initialize(model, settings.init_std, settings.layers, torch.Generator().manual_seed(seed), width_ratio(settings))
    return model
