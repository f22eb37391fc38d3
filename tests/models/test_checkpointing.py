"""Activation checkpointing: less memory, the same bits, and a hook is called once for each pass."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from pretrain.batch import InputSpec
from pretrain.machine.precision import autocast
from pretrain.models import CHECKPOINTING, Decoder, DecoderSettings, attentions, blocks, build_decoder
from pretrain.monitors.activations import Activations
from pretrain.monitors.attention import Attention
from tests.live_bytes import most_bytes

SPEC, CPU = InputSpec("tokens", 11), torch.device("cpu")
SMALL = DecoderSettings(width=16, heads=4, kv_heads=2, ffn_width=24, init_std=0.3)
IDS = torch.randint(0, 11, (3, 9), generator=torch.Generator().manual_seed(2))
FEATURES: tuple[dict[str, Any], ...] = (
    {},
    {"dropout": 0.3},
    {"norm_position": "post", "activation": "gelu", "positions": "learned", "dropout": 0.1, "norm": "layernorm"},
    {"qk_norm": True, "sliding_window": 3, "logit_soft_cap": 2.0, "activation": "squared_relu"},
)


def made(how: str, features: dict[str, Any], boundary: int | None = None) -> Decoder:
    settings = replace(SMALL, **features)
    return build_decoder(settings, SPEC, 9, 1, activation_checkpointing=how, document_boundary=boundary)


def worked(model: Decoder, precision: str) -> list[bytes]:
    """The loss, every gradient and the generator behind them, of two passes, as bytes."""
    torch.manual_seed(4)
    for _ in range(2):
        with autocast(CPU, precision):
            loss = model(IDS).square().mean()
        loss.backward()
    found = [loss.detach(), *(parameter.grad for parameter in model.parameters()), torch.get_rng_state()]
    return [one.numpy().tobytes() for one in found if one is not None]


@pytest.mark.parametrize("how", ["full", "selective"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("features", FEATURES, ids=str)
def test_loss_gradients_and_draws_have_the_same_bits(features: dict[str, Any], precision: str, how: str) -> None:
    plain = worked(made("none", features, 3), precision)
    again = worked(made(how, features, 3), precision)
    assert len(plain) == len(again) == len(list(made("none", features).parameters())) + 2
    assert plain == again


@pytest.mark.parametrize("how", ["full", "selective"])
@pytest.mark.parametrize("watched", ["activations", "attention", "both"])
def test_monitors_see_each_pass_once_and_change_no_bit(watched: str, how: str) -> None:
    found = {}
    for each in ("none", how):
        model = made(each, {"dropout": 0.2})
        activations, attention = Activations(blocks(model)), Attention(attentions(model))
        with activations.watching() if watched != "attention" else attention.watching():
            if watched == "both":
                with attention.watching():
                    bits = worked(model, "bfloat16")
            else:
                bits = worked(model, "bfloat16")
        values = [one.values() for one in (activations, attention) if one._seen]  # type: ignore[attr-defined]
        assert len(values) == 2 if watched == "both" else 1
        found[each] = (bits, values)
    assert found["none"] == found[how]
    assert found["none"][0] == worked(made("none", {"dropout": 0.2}), "bfloat16")


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("how", CHECKPOINTING)
def test_a_hook_of_a_block_is_called_once_for_each_pass(how: str, early_stop: bool) -> None:
    """Also where PyTorch computes a block to its end again, which it does not by default."""
    model, before, after = made(how, {}), [], []
    for name, block in blocks(model):
        block.register_forward_pre_hook(lambda _, __, name=name: before.append(name))
        block.register_forward_hook(lambda _, __, ___, name=name: after.append(name))
    with set_checkpoint_early_stop(early_stop):
        worked(model, "float32")
    assert before == after == ["model.layers.0", "model.layers.1"] * 2


def test_each_takes_less_memory_than_the_one_before() -> None:
    """In the order none, selective, full, for a model whose blocks are what counts."""
    settings = DecoderSettings(width=64, layers=6, heads=4, kv_heads=4)
    ids = torch.zeros(4, 128, dtype=torch.long)
    most = {}
    for how in CHECKPOINTING:
        model = build_decoder(settings, SPEC, 128, 1, activation_checkpointing=how)
        model(ids).sum().backward()  # the gradients are there from now on
        most[how] = most_bytes(lambda model=model: model(ids).sum().backward())
    stream = 4 * 128 * 64 * 4
    assert most["full"] < most["selective"] < most["none"]
    # What a block keeps, in units of its input: all of it, its products and attention, or its input alone.
    kept = {how: (most[how] - most["full"]) / stream / 6 for how in CHECKPOINTING}
    assert kept["none"] > 15
    assert 5 < kept["selective"] < kept["none"] - 5


def test_what_is_computed_again() -> None:
    """Full computes every product of the blocks a second time forward, selective none."""
    settings = DecoderSettings(width=64, layers=2, heads=4, kv_heads=4)
    ids, found = torch.zeros(2, 32, dtype=torch.long), {}
    for how in CHECKPOINTING:
        model = build_decoder(settings, SPEC, 32, 1, activation_checkpointing=how)
        with FlopCounterMode(display=False) as counter:
            model(ids).sum().backward()
        found[how] = counter.get_total_flops()
    assert found["none"] == found["selective"] < found["full"]


def test_nothing_is_recomputed_where_no_gradient_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("checkpointed")

    monkeypatch.setattr("pretrain.models.block.checkpoint", refuse)
    for how, context in itertools.product(CHECKPOINTING, (torch.no_grad, torch.inference_mode)):
        with context():
            assert torch.equal(made(how, {})(IDS), made("none", {})(IDS))
