"""What maps a sequence to a prediction at each of its positions; one row per model."""

from typing import Any

from torch import nn

from pretrain.models.attention import Attention
from pretrain.models.block import Block
from pretrain.models.decoder import Decoder, build_decoder
from pretrain.models.flops import flops_per_position
from pretrain.models.parametrization import width_ratio
from pretrain.models.roles import roles
from pretrain.models.settings import CHECKPOINTING, PARAMETRIZATIONS, DecoderSettings, check
from pretrain.registry import Entry

MODELS: dict[str, Entry[Any, nn.Module]] = {
    "decoder": Entry(DecoderSettings, build_decoder),
}


def blocks(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The residual blocks in the order of depth, each with its parameter prefix, such as `model.layers.0`."""
    return [(name, module) for name, module in model.named_modules() if isinstance(module, Block)]


def attentions(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The attention layers in the order of depth, each with its parameter prefix."""
    return [(name, module) for name, module in model.named_modules() if isinstance(module, Attention)]


__all__ = [
    "CHECKPOINTING",
    "MODELS",
    "PARAMETRIZATIONS",
    "Attention",
    "Block",
    "Decoder",
    "DecoderSettings",
    "attentions",
    "blocks",
    "build_decoder",
    "check",
    "flops_per_position",
    "roles",
    "width_ratio",
]
