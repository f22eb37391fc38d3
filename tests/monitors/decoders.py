"""A small decoder with weights far from their start, steps of ragged micro-batches, and what watching must not do."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pretrain.batch import InputSpec
from pretrain.machine import random_state
from pretrain.machine.precision import autocast
from pretrain.models import Decoder, DecoderSettings, build_decoder

CPU = torch.device("cpu")
TOKENS = InputSpec("tokens", 11)
# Grouped heads, a short rotary wavelength, and weights at which attention is far from even.
SETTINGS = DecoderSettings(width=16, layers=2, heads=4, kv_heads=2, rope_base=100.0, init_std=0.4)


def decoder(**changes: Any) -> Decoder:
    return build_decoder(DecoderSettings(**{**vars(SETTINGS), **changes}), TOKENS, 100, 3)


def micro_batches(*rows: int, positions: int = 9) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randint(0, TOKENS.size, (count, positions), generator=generator) for count in rows]


def step(model: nn.Module, batches: Sequence[torch.Tensor], precision: str = "float32") -> list[torch.Tensor]:
    """Forward and backward over the micro-batches as the loop does it; return the outputs."""
    model.zero_grad(set_to_none=True)
    outputs = []
    for tokens in batches:
        with autocast(CPU, precision):
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        outputs.append(logits.detach())
    return outputs


def hooks_of(model: nn.Module) -> int:
    return sum(
        len(getattr(module, kind))
        for module in model.modules()
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    )


class StoppedError(Exception):
    """Something went wrong inside the step."""


def watch_leaves_no_trace(
    build: Callable[[], nn.Module], watching: Callable[[nn.Module], AbstractContextManager[None]], precision: str
) -> None:
    """Outputs, gradients and generators are equal to the bit with and without watching, and no hook is left."""
    results = []
    for watched in (False, True):
        torch.manual_seed(8)
        model = build()
        context = watching(model) if watched else nullcontext()
        with context:
            assert hooks_of(model) > 0 or not watched
            outputs = step(model, micro_batches(2, 1), precision)
        assert hooks_of(model) == 0
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        assert all(gradient is not None for gradient in gradients.values())
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        results.append((outputs, gradients, weights, random_state.capture(CPU)))
    plain, watched_by = results
    for before, after in zip(plain[0], watched_by[0], strict=True):
        assert before.dtype == after.dtype
        assert torch.equal(before, after)
    for before, after in zip(plain[1:], watched_by[1:], strict=True):
        assert list(before) == list(after)
        for name, value in before.items():
            assert torch.equal(value, after[name]), name


def watch_ends_with_an_exception(model: nn.Module, watching: AbstractContextManager[None]) -> None:
    def broken_step() -> None:
        with watching:
            assert hooks_of(model) > 0
            raise StoppedError

    with pytest.raises(StoppedError):
        broken_step()
    assert hooks_of(model) == 0
