"""What maps a sequence to a prediction at each of its positions; one row per model."""

from typing import Any

from torch import nn

from pretrain.models.attention import Attention
from pretrain.models.block import Block
from pretrain.models.decoder import Decoder, build_decoder
from pretrain.models.experts import ExpertSettings, Mixture, Router
from pretrain.models.flops import active_parameters, flops_per_position
from pretrain.models.parametrization import width_ratio
from pretrain.models.roles import roles
from pretrain.models.settings import CHECKPOINTING, PARAMETRIZATIONS, DecoderSettings, check
from pretrain.models.sizes import departures
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


def routers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The routers of the mixtures of experts in the order of depth, each with its parameter prefix."""
    return [(name, module) for name, module in model.named_modules() if isinstance(module, Router)]


def balance(model: nn.Module) -> None:
    """Move the biases of all routers by the loads of the step that was taken; a model without experts has none."""
    for module in model.modules():
        if isinstance(module, Mixture):
            module.rebalance()


__all__ = [
    "CHECKPOINTING",
    "MODELS",
    "PARAMETRIZATIONS",
    "Attention",
    "Block",
    "Decoder",
    "DecoderSettings",
    "ExpertSettings",
    "active_parameters",
    "attentions",
    "balance",
    "blocks",
    "build_decoder",
    "check",
    "departures",
    "flops_per_position",
    "roles",
    "routers",
    "width_ratio",
]
