"""Every feature of the decoder, alone and with others: its arithmetic, what it may see, and what it refuses."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from pretrain.batch import InputSpec
from pretrain.errors import ConfigError
from pretrain.machine.precision import autocast
from pretrain.models import Decoder, DecoderSettings, attentions, build_decoder
from pretrain.models.attention import attention_mask
from pretrain.models.parts import drop
from tests.models.dense import dense, sees

TOKENS, PATCHES = InputSpec("tokens", 11), InputSpec("patches", 6)
SMALL = DecoderSettings(width=16, heads=4, kv_heads=2, ffn_width=24, init_std=0.3)
ROWS, POSITIONS, BOUNDARY = 2, 9, 0

# One row for each feature, then some of them together; `boundary` is a setting of the data.
FEATURES: tuple[dict[str, Any], ...] = (
    {},
    {"norm": "layernorm"},
    {"norm_position": "post"},
    {"activation": "gelu"},
    {"activation": "squared_relu"},
    {"positions": "learned"},
    {"rope_base": 50.0},
    {"qk_norm": True},
    {"logit_soft_cap": 0.7},
    {"sliding_window": 3},
    {"tie_embeddings": False},
    {"kv_heads": 1},
    {"kv_heads": 4},
    {"boundary": BOUNDARY},
    {"norm": "layernorm", "activation": "gelu", "positions": "learned", "heads": 16, "kv_heads": 16},
    {"qk_norm": True, "sliding_window": 3, "boundary": BOUNDARY, "kv_heads": 1},
    {"positions": "learned", "qk_norm": True, "norm_position": "post", "boundary": BOUNDARY},
    {"logit_soft_cap": 2.0, "norm": "layernorm", "sliding_window": 2, "tie_embeddings": False},
)


def made(spec: InputSpec, features: dict[str, Any], **more: Any) -> tuple[Decoder, DecoderSettings, int | None]:
    """A decoder in which every vector is drawn too, so that no scale is 1."""
    given = dict(features)
    boundary = given.pop("boundary", None)
    settings = replace(SMALL, **given)
    model = build_decoder(settings, spec, POSITIONS + 3, 1, document_boundary=boundary, **more)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5, generator=generator)
    return model, settings, boundary


def inputs(spec: InputSpec) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    if spec.kind == "tokens":
        given = torch.randint(1, spec.size, (ROWS, POSITIONS), generator=generator)
        given[0, 4] = given[1, 0] = given[1, 5] = given[1, 6] = BOUNDARY
        return given
    return torch.randn(ROWS, POSITIONS, spec.size, generator=generator)


def fits(spec: InputSpec, features: dict[str, Any]) -> bool:
    return spec.kind == "tokens" or not features.keys() & {"boundary", "logit_soft_cap"}


CASES = [(spec, features) for spec in (TOKENS, PATCHES) for features in FEATURES if fits(spec, features)]
every_case = pytest.mark.parametrize(("spec", "features"), CASES, ids=lambda value: getattr(value, "kind", str(value)))


@every_case
def test_the_arithmetic_is_that_of_the_formulas(spec: InputSpec, features: dict[str, Any]) -> None:
    model, settings, boundary = made(spec, features)
    with torch.no_grad():
        found = model(inputs(spec))
        assert found.dtype == torch.float32
        # Each float32 product is off by some 1e-7 of its size, and the predictions are of a size of up to 10.
        expected = dense(dict(model.named_parameters()), settings, inputs(spec), boundary)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@every_case
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_parameter_has_a_finite_gradient(spec: InputSpec, features: dict[str, Any], precision: str) -> None:
    model, _, _ = made(spec, features)
    with autocast(torch.device("cpu"), precision):
        result = model(inputs(spec))
    assert result.dtype == torch.float32
    result.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.any(), name


@every_case
def test_the_scores_are_those_that_the_layer_mixes_by(spec: InputSpec, features: dict[str, Any]) -> None:
    """softmax(scores) @ value, projected, is what the layer gives, for some queries of some rows."""
    model, settings, _ = made(spec, features)
    seen: list[tuple[Any, ...]] = []
    for _, layer in attentions(model):
        layer.register_forward_hook(lambda layer, given, output: seen.append((layer, given, output)))
    queries = torch.tensor([1, 4, 5, 8])
    with torch.no_grad():
        model(inputs(spec))
        assert len(seen) == settings.layers
        for layer, (hidden, *rest), output in seen:
            scores = layer.scores(hidden[:1], *rest, queries)
            assert scores.shape == (1, settings.heads, 4, POSITIONS)
            value = layer.v_proj(hidden[:1]).unflatten(-1, (settings.kv_heads, -1)).transpose(1, 2)
            value = value.repeat_interleave(settings.heads // settings.kv_heads, dim=1)
            mixed = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
            torch.testing.assert_close(layer.o_proj(mixed), output[:1, queries], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [None, 1, 2, 5, 9, 99])
@pytest.mark.parametrize("boundary", [None, BOUNDARY])
def test_what_a_position_sees(window: int | None, boundary: int | None) -> None:
    given = inputs(TOKENS)
    mask = attention_mask(given, window, boundary)
    if boundary is None and window in (None, 9, 99):
        assert mask is None
        return
    assert mask is not None
    assert mask.dtype == torch.bool
    assert mask.shape == ((POSITIONS, POSITIONS) if boundary is None else (ROWS, 1, POSITIONS, POSITIONS))
    expected = [
        [[sees(row, query, key, window, boundary) for key in range(POSITIONS)] for query in range(POSITIONS)]
        for row in given.tolist()
    ]
    assert mask.expand(ROWS, 1, POSITIONS, POSITIONS)[:, 0].tolist() == expected


def test_the_boundary_begins_the_document_behind_it() -> None:
    """Row 0 is abcd0efgh: what stands before the boundary changes nothing from the boundary on, and the other way."""
    model, _, _ = made(TOKENS, {"boundary": BOUNDARY})
    given = inputs(TOKENS)[:1]
    assert given[0].tolist().index(BOUNDARY) == 4
    with torch.no_grad():
        before = model(given)
        for changed in (slice(0, 4), slice(5, 9)):
            other = given.clone()
            other[0, changed] = other[0, changed] % 10 + 1
            after = model(other)
            untouched = slice(4, 9) if changed.start == 0 else slice(0, 5)
            torch.testing.assert_close(before[:, untouched], after[:, untouched], rtol=0, atol=1e-6)
            assert not torch.allclose(before[:, changed], after[:, changed], atol=1e-3)


def test_rotary_positions_do_not_know_where_a_document_begins() -> None:
    """Attention depends on distances alone, so a document reads the same behind another one; learned ones differ."""
    given = inputs(TOKENS)[:1]
    for positions, is_same in (("rotary", True), ("learned", False)):
        model, _, _ = made(TOKENS, {"boundary": BOUNDARY, "positions": positions})
        with torch.no_grad():
            whole, alone = model(given)[:, 4:], model(given[:, 4:])
        assert torch.allclose(whole, alone, rtol=1e-4, atol=1e-4) == is_same


@pytest.mark.parametrize("layers", [1, 2])
def test_how_far_a_window_reaches(layers: int) -> None:
    """Each layer reaches window - 1 positions further back, and not one more."""
    model, _, _ = made(TOKENS, {"sliding_window": 3, "layers": layers})
    given = inputs(TOKENS)
    changed = given.clone()
    changed[:, 1] = changed[:, 1] % 10 + 1
    with torch.no_grad():
        moved = (model(given) - model(changed)).abs().amax(dim=(0, 2)) > 1e-6
    assert moved.tolist() == [1 <= position <= 1 + 2 * layers for position in range(POSITIONS)]


def test_names_and_shapes_that_features_bring() -> None:
    model, _, _ = made(TOKENS, {"positions": "learned", "qk_norm": True, "activation": "gelu", "norm": "layernorm"})
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert shapes["model.embed_positions.weight"] == (POSITIONS + 3, 16)
    assert shapes["model.layers.0.self_attn.q_norm.weight"] == shapes["model.layers.1.self_attn.k_norm.weight"] == (4,)
    assert not any("gate_proj" in name or "bias" in name for name in shapes)
    assert set(model.state_dict()) == set(shapes)


def test_learned_positions_start_at_half_the_deviation() -> None:
    settings = DecoderSettings(width=128, positions="learned", init_std=0.02)
    table = dict(build_decoder(settings, TOKENS, 200, 1).named_parameters())["model.embed_positions.weight"]
    assert float(table.detach().std()) == pytest.approx(0.01, rel=0.02)


def test_learned_positions_take_an_odd_head_size_and_end_where_the_table_does() -> None:
    model = build_decoder(replace(SMALL, width=12, positions="learned"), TOKENS, 8, 1)
    assert model(torch.ones(1, 8, dtype=torch.long)).shape == (1, 8, 11)
    with pytest.raises(ValueError, match="expected at most 8 positions, found 9"):
        model(torch.ones(1, 9, dtype=torch.long))
    with pytest.raises(ConfigError, match=r"into whole sizes; choose one of \[1, 2, 3, 4, 6, 12\]"):
        build_decoder(replace(SMALL, width=12, heads=5, kv_heads=5, positions="learned"), TOKENS, 8, 1)


def test_the_logits_of_patches_are_not_capped() -> None:
    with pytest.raises(ConfigError, match=r"model\.logit_soft_cap limits the logits of tokens"):
        build_decoder(replace(SMALL, logit_soft_cap=5.0), PATCHES, 8, 1)


@pytest.mark.parametrize("spec", [TOKENS, PATCHES], ids=lambda spec: spec.kind)
def test_dropout_draws_in_training_alone(spec: InputSpec) -> None:
    model, _, _ = made(spec, {"dropout": 0.5})
    without, _, _ = made(spec, {})
    torch.manual_seed(7)
    one, other = model(inputs(spec)), model(inputs(spec))
    assert not torch.equal(one, other)
    torch.manual_seed(7)
    assert torch.equal(model(inputs(spec)), one)
    model.eval()
    before = torch.get_rng_state()
    assert torch.equal(model(inputs(spec)), without(inputs(spec)))
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_keeps_the_mean_and_draws_nothing_where_there_is_none() -> None:
    torch.manual_seed(3)
    ones = torch.ones(100_000)
    dropped = drop(ones, 0.25, True)
    assert dropped.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert float(dropped.mean()) == pytest.approx(1, abs=4 * math.sqrt(1 / 3 / 100_000))
    before = torch.get_rng_state()
    assert drop(ones, 0.0, True) is ones
    assert torch.equal(torch.get_rng_state(), before)
