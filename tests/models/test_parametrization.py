"""muP: initial values by role, attention that goes with 1 / d, the head's multiplier, and nothing at the base width."""

import math

import pytest
import torch

from pretrain.batch import InputSpec
from pretrain.models import Attention, Decoder, DecoderSettings, attentions, build_decoder, width_ratio
from pretrain.models.initialization import initialize

TOKENS, PATCHES = InputSpec("tokens", 256), InputSpec("patches", 32)
STD, LAYERS, POSITIONS = 0.02, 2, 256
RESIDUAL = math.sqrt(2 * LAYERS)
# By what a name holds, at 1 and at 4 times the base width: Yang et al., arXiv 2203.03466, table 8.
STDS = {
    "embed_tokens": (STD, STD),
    "embed_positions": (STD / 2, STD / 2),
    "q_proj": (STD, STD / 2),
    "k_proj": (STD, STD / 2),
    "v_proj": (STD, STD / 2),
    "o_proj": (STD / RESIDUAL, STD / RESIDUAL / 2),
    "gate_proj": (STD, STD / 2),
    "up_proj": (STD, STD / 2),
    "down_proj": (STD / RESIDUAL, STD / RESIDUAL / 2),
    "lm_head": (STD, STD),
}


def decoder(width: int, parametrization: str = "mup", spec: InputSpec = TOKENS, **more: object) -> Decoder:
    settings = DecoderSettings(
        width=width, layers=LAYERS, parametrization=parametrization, mup_base_width=64, **{"init_std": STD, **more}
    )
    return build_decoder(settings, spec, POSITIONS, 7)


@pytest.mark.parametrize("place", [0, 1])
def test_initial_standard_deviations(place: int) -> None:
    model = decoder((64, 256)[place], positions="learned", tie_embeddings=False)
    seen = set()
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            assert bool((parameter == 1).all()), name
            continue
        (part,) = (part for part in STDS if part in name)
        assert float(parameter.detach().std()) == pytest.approx(STDS[part][place], rel=0.05), name
        seen.add(part)
    assert seen == {*STDS}


def test_a_patch_embedding_is_an_embedding_and_a_router_an_output() -> None:
    model = decoder(256, spec=PATCHES)
    assert float(model.model.embed_patches.weight.detach().std()) == pytest.approx(STD, rel=0.05)
    routed = torch.nn.ModuleDict({"router": torch.nn.Linear(400, 50, bias=False)})
    initialize(routed, STD, LAYERS, torch.Generator().manual_seed(1), ratio=4.0)
    assert float(routed["router"].weight.detach().std()) == pytest.approx(STD / 4, rel=0.05)


@pytest.mark.parametrize(("width", "scale"), [(64, 1 / 4), (128, 4 / 32), (256, 4 / 64), (512, 4 / 128)])
def test_attention_goes_with_one_over_the_head_size(width: int, scale: float) -> None:
    """Heads of 16 at the base, 4 of them at each width: sqrt(16) / d."""
    model = decoder(width, init_std=0.3)
    layer = attentions(model)[0][1]
    assert isinstance(layer, Attention)
    hidden = torch.randn(2, 9, width, generator=torch.Generator().manual_seed(3))
    query, key, value = (
        one(hidden).view(2, 9, 4, width // 4).transpose(1, 2) for one in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    seen = torch.ones(9, 9, dtype=torch.bool).tril()
    logits = (query @ key.transpose(2, 3) * scale).masked_fill(~seen, -math.inf)
    expected = layer.o_proj((logits.softmax(dim=-1) @ value).transpose(1, 2).flatten(2))
    with torch.no_grad():
        torch.testing.assert_close(
            layer.scores(hidden, None, None, None, torch.arange(9)), logits, rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(layer(hidden, None, None), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("spec", "tied"), [(TOKENS, True), (TOKENS, False), (PATCHES, False)])
def test_the_head_is_multiplied_by_one_over_the_ratio(spec: InputSpec, tied: bool) -> None:
    wide, plain = (decoder(256, name, spec, tie_embeddings=tied) for name in ("mup", "standard"))
    plain.load_state_dict(wide.state_dict())
    hidden = torch.randn(2, 5, 256, generator=torch.Generator().manual_seed(3))
    assert width_ratio(DecoderSettings(width=256, parametrization="mup", mup_base_width=64)) == 4
    assert torch.equal(wide.logits(hidden), plain.logits(hidden) / 4)  # a power of two rounds nothing


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_at_the_base_width_it_is_the_standard_one_bit_for_bit(precision: torch.dtype) -> None:
    models = [decoder(64, name, qk_norm=True, kv_heads=2, heads=4) for name in ("mup", "standard")]
    ids = torch.randint(0, 256, (2, 17), generator=torch.Generator().manual_seed(5))
    logits = []
    for model in models:
        with torch.autocast("cpu", dtype=precision, enabled=precision != torch.float32):
            logits.append(model(ids))
        logits[-1].square().mean().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(*logits)
    for (name, one), other in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert torch.equal(one, other), name
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad), name


def test_a_model_of_another_kind_has_no_ratio() -> None:
    assert width_ratio(object()) == 1
    assert width_ratio(DecoderSettings(width=4096)) == 1
