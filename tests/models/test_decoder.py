"""The decoder: Llama's names and arithmetic, its initialisation, its precisions and its refusals."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from pretrain.batch import InputSpec
from pretrain.errors import ConfigError
from pretrain.machine.precision import autocast
from pretrain.models import Block, Decoder, DecoderSettings, blocks, build_decoder
from pretrain.models.attention import rotary_tables, rotate
from pretrain.models.settings import ffn_width

TOKENS, PATCHES = InputSpec("tokens", 11), InputSpec("patches", 8)
SMALL = DecoderSettings(width=16, heads=4, kv_heads=2)


def inputs(spec: InputSpec, positions: int = 7, rows: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    if spec.kind == "tokens":
        return torch.randint(0, spec.size, (rows, positions), generator=generator)
    return torch.randn(rows, positions, spec.size, generator=generator)


BLOCK = [
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
]


@pytest.mark.parametrize(
    ("spec", "tied", "first", "last"),
    [
        (TOKENS, True, "model.embed_tokens.weight", []),
        (TOKENS, False, "model.embed_tokens.weight", ["lm_head.weight"]),
        (PATCHES, True, "model.embed_patches.weight", ["lm_head.weight"]),
        (PATCHES, False, "model.embed_patches.weight", ["lm_head.weight"]),
    ],
)
def test_the_parameters_have_llamas_names(spec: InputSpec, tied: bool, first: str, last: list[str]) -> None:
    model = build_decoder(DecoderSettings(width=16, tie_embeddings=tied), spec, 8, 1)
    middle = [f"model.layers.{layer}.{name}.weight" for layer in range(2) for name in BLOCK]
    names = [first, *middle, "model.norm.weight", *last]
    assert sorted(name for name, _ in model.named_parameters()) == sorted(names)
    assert set(model.state_dict()) == set(names)
    assert [name for name, _ in blocks(model)] == ["model.layers.0", "model.layers.1"]
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_the_shapes_follow_heads_and_kv_heads() -> None:
    shapes = {name: tuple(p.shape) for name, p in build_decoder(SMALL, TOKENS, 8, 1).named_parameters()}
    assert shapes["model.embed_tokens.weight"] == (11, 16)
    assert shapes["model.layers.1.self_attn.q_proj.weight"] == (16, 16)
    assert shapes["model.layers.1.self_attn.k_proj.weight"] == (8, 16)
    assert shapes["model.layers.1.self_attn.v_proj.weight"] == (8, 16)
    assert shapes["model.layers.1.mlp.up_proj.weight"] == (64, 16)
    assert shapes["model.layers.1.mlp.down_proj.weight"] == (16, 64)
    assert shapes["model.norm.weight"] == (16,)


@pytest.mark.parametrize(
    ("width", "given", "found"),
    [(64, None, 192), (96, None, 256), (768, None, 2048), (16, None, 64), (12, None, 32), (64, 100, 100)],
)
def test_the_feed_forward_width(width: int, given: int | None, found: int) -> None:
    assert ffn_width(DecoderSettings(width=width, ffn_width=given)) == found


def plainly(model: Decoder, tokens: torch.Tensor, base: float) -> torch.Tensor:
    """Llama as its paper and its public code write it: complex turns, explicit masks, repeated heads."""
    weights = dict(model.double().named_parameters())
    count, heads, kv_heads, size = tokens.shape[1], 4, 2, 4

    def norm(values: torch.Tensor, name: str) -> torch.Tensor:
        return values / (values.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weights[name]

    def turn(values: torch.Tensor) -> torch.Tensor:
        frequencies = torch.tensor([base ** (-2 * i / size) for i in range(size // 2)], dtype=torch.float64)
        angles = torch.arange(count, dtype=torch.float64)[:, None] * frequencies
        pairs = torch.complex(values[..., : size // 2], values[..., size // 2 :])
        turned = pairs * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((turned.real, turned.imag), dim=-1)

    def split(values: torch.Tensor, number: int) -> torch.Tensor:
        return values.unflatten(-1, (number, size)).transpose(1, 2)

    hidden = weights["model.embed_tokens.weight"][tokens]
    for layer in range(2):
        name = f"model.layers.{layer}"
        normed = norm(hidden, f"{name}.input_layernorm.weight")
        query, key, value = (
            split(normed @ weights[f"{name}.self_attn.{kind}_proj.weight"].T, number)
            for kind, number in (("q", heads), ("k", kv_heads), ("v", kv_heads))
        )
        key, value = (each.repeat_interleave(heads // kv_heads, dim=1) for each in (turn(key), value))
        scores = turn(query) @ key.transpose(2, 3) / math.sqrt(size)
        scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), -math.inf)
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        hidden = hidden + mixed @ weights[f"{name}.self_attn.o_proj.weight"].T
        normed = norm(hidden, f"{name}.post_attention_layernorm.weight")
        gate, up, down = (weights[f"{name}.mlp.{kind}_proj.weight"].T for kind in ("gate", "up", "down"))
        hidden = hidden + (F.silu(normed @ gate) * (normed @ up)) @ down
    return norm(hidden, "model.norm.weight") @ weights["model.embed_tokens.weight"].T


def test_the_arithmetic_is_llamas() -> None:
    settings = DecoderSettings(width=16, heads=4, kv_heads=2, init_std=0.3, rope_base=100.0)
    model = build_decoder(settings, TOKENS, 16, 1)
    with torch.no_grad():
        logits = model(inputs(TOKENS, 16))
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits.double(), plainly(model, inputs(TOKENS, 16), 100.0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("position", ["pre", "post"])
def test_where_a_block_normalises(position: str) -> None:
    """Bit for bit what the formula says: x + f(norm(x)), or norm(x + f(x))."""
    block = Block(replace(SMALL, norm_position=position))
    generator = torch.Generator().manual_seed(3)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.5, generator=generator)
    hidden = torch.randn(3, 7, 16, generator=generator)
    cos, sin = rotary_tables(7, 4, 10000.0)
    first, second = block.input_layernorm, block.post_attention_layernorm
    with torch.no_grad():
        if position == "pre":
            middle = hidden + block.self_attn(first(hidden), cos, sin)
            expected = middle + block.mlp(second(middle))
        else:
            middle = first(hidden + block.self_attn(hidden, cos, sin))
            expected = second(middle + block.mlp(middle))
        assert torch.equal(block(hidden, cos, sin), expected)


@pytest.mark.parametrize("spec", [TOKENS, PATCHES], ids=lambda spec: spec.kind)
def test_the_position_of_the_norms_changes_no_parameter(spec: InputSpec) -> None:
    default, pre, post = (
        build_decoder(replace(SMALL, **given), spec, 8, 1)
        for given in ({}, {"norm_position": "pre"}, {"norm_position": "post"})
    )
    assert [name for name, _ in pre.named_parameters()] == [name for name, _ in post.named_parameters()]
    assert all(torch.equal(a, b) for a, b in zip(pre.parameters(), post.parameters(), strict=True))
    with torch.no_grad():
        assert torch.equal(default(inputs(spec)), pre(inputs(spec)))
        assert not torch.equal(pre(inputs(spec)), post(inputs(spec)))


@pytest.mark.parametrize("position", ["pre", "post"])
@pytest.mark.parametrize("spec", [TOKENS, PATCHES], ids=lambda spec: spec.kind)
def test_no_position_sees_a_later_one(spec: InputSpec, position: str) -> None:
    model = build_decoder(replace(SMALL, norm_position=position), spec, 7, 1)
    given = inputs(spec)
    changed = given.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 11
    with torch.no_grad():
        before, after = model(given), model(changed)
    torch.testing.assert_close(before[:, :4], after[:, :4], rtol=0, atol=0)
    assert not torch.equal(before[:, 4:], after[:, 4:])


def test_attention_depends_on_the_distance_of_positions_only() -> None:
    cos, sin = rotary_tables(50, 8, 10000.0)
    generator = torch.Generator().manual_seed(1)
    query, key = (torch.randn(1, 1, 1, 8, generator=generator).expand(1, 50, 1, 8) for _ in range(2))
    scores = rotate(query, cos, sin)[0, :, 0] @ rotate(key, cos, sin)[0, :, 0].T
    for distance in (0, 1, 7):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-5)


def test_far_positions_have_exact_angles() -> None:
    cos, sin = rotary_tables(100_001, 4, 10000.0)
    assert cos[100_000, 0].tolist() == pytest.approx([math.cos(1e5), math.cos(1e3)] * 2, abs=1e-7)
    signed = [-math.sin(1e5), -math.sin(1e3), math.sin(1e5), math.sin(1e3)]
    assert sin[100_000, 0].tolist() == pytest.approx(signed, abs=1e-7)


@pytest.mark.parametrize("layers", [1, 8])
def test_the_projections_into_the_residual_stream_start_smaller(layers: int) -> None:
    settings = DecoderSettings(width=128, layers=layers, init_std=0.05)
    for name, parameter in build_decoder(settings, InputSpec("tokens", 256), 8, 1).named_parameters():
        if parameter.dim() == 1:
            assert torch.equal(parameter.detach(), torch.ones(128))
            continue
        residual = name.endswith(("o_proj.weight", "down_proj.weight"))
        std = 0.05 / math.sqrt(2 * layers) if residual else 0.05
        assert float(parameter.detach().std()) == pytest.approx(std, rel=0.03), name
        assert abs(float(parameter.detach().mean())) < std / 20, name


def test_building_moves_no_generator_but_its_own() -> None:
    before = torch.get_rng_state()
    one, same, other = (build_decoder(SMALL, TOKENS, 8, seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    for (name, a), (_, b), (_, c) in zip(
        one.named_parameters(), same.named_parameters(), other.named_parameters(), strict=True
    ):
        assert torch.equal(a, b), name
        assert a.dim() == 1 or not torch.equal(a, c), name


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("spec", [TOKENS, PATCHES], ids=lambda spec: spec.kind)
def test_under_16_bits_the_result_and_every_gradient_are_float32(spec: InputSpec, precision: str) -> None:
    model = build_decoder(SMALL, spec, 7, 1)
    exact = model(inputs(spec)).detach()
    kinds: dict[str, torch.dtype] = {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _, __, output, name=name: kinds.update({name: output.dtype}))
    with autocast(torch.device("cpu"), precision):
        result = model(inputs(spec))
    assert result.dtype == torch.float32
    assert kinds["model.layers.0.mlp.down_proj"] == getattr(torch, precision)
    assert kinds["model.layers.0"] == kinds["model.norm"] == torch.float32
    assert not torch.equal(result, exact)
    torch.testing.assert_close(result, exact, rtol=0.05, atol=0.01)
    result.square().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


def test_the_head_of_patches_multiplies_in_float32_under_bfloat16() -> None:
    model = build_decoder(SMALL, PATCHES, 7, 1)
    seen: list[torch.Tensor] = []
    model.model.register_forward_hook(lambda _, __, output: seen.append(output))
    with torch.no_grad(), autocast(torch.device("cpu"), "bfloat16"):
        result = model(inputs(PATCHES))
    assert model.lm_head is not None
    torch.testing.assert_close(result, F.linear(seen[0], model.lm_head.weight), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"width": 10, "heads": 4},
            r"model\.heads: 4 does not divide model\.width, 10, into even sizes; choose one of \[1, 5\]",
        ),
        ({"width": 12, "heads": 4}, r"model\.heads: 4 heads of model\.width 12 have the odd size 3, .* multiple of 8"),
        ({"heads": 4, "kv_heads": 3}, r"model\.kv_heads: 3 does not divide model\.heads, 4; choose one of \[1, 2, 4\]"),
        ({"heads": 2, "kv_heads": 4}, r"model\.kv_heads: 4 does not divide model\.heads, 2"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused_by_key(settings: dict[str, int], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        build_decoder(DecoderSettings(**settings), TOKENS, 8, 1)


def test_a_longer_sequence_than_it_was_built_for_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at most 8 positions, found 9"):
        build_decoder(SMALL, TOKENS, 8, 1)(inputs(TOKENS, 9))
