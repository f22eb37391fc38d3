"""Entropy and logits of attention, against a dense softmax written out here and against the forward pass itself."""

import itertools
import math

import pytest
import torch

from pretrain.machine.precision import autocast
from pretrain.models import attentions, blocks
from pretrain.monitors import attention
from pretrain.monitors.attention import QUERIES, Attention
from tests.monitors.decoders import (
    CPU,
    decoder,
    micro_batches,
    step,
    watch_ends_with_an_exception,
    watch_leaves_no_trace,
)

NAMES = ["model.layers.0.self_attn", "model.layers.1.self_attn"]
SHAPES = [(4, 4), (4, 2), (4, 1), (1, 1)]


def read_by(model, tokens):
    """What each attention layer reads of these tokens, float32, by a walk through the model by hand."""
    trunk, found = model.model, []
    with torch.no_grad():
        hidden = trunk.embed_tokens(tokens)
        for block in trunk.layers:
            found.append(block.input_layernorm(hidden))
            hidden = block(hidden, trunk.cos[: tokens.shape[1]], trunk.sin[: tokens.shape[1]])
    return found


def dense(layer, hidden, base=100.0):
    """Logits of one sequence [T, width] in float64, [heads][T][T], position by position, with complex turns."""
    size, count = layer.head_size, len(hidden)
    rates = [base ** (-2 * pair / size) for pair in range(size // 2)]

    def turned(matrix):
        heads = (hidden.double() @ matrix.detach().double().T).unflatten(-1, (-1, size))
        pairs = torch.complex(heads[..., : size // 2], heads[..., size // 2 :])
        angles = torch.tensor([[position * rate for rate in rates] for position in range(count)], dtype=torch.float64)
        return pairs * torch.polar(torch.ones_like(angles), angles)[:, None]

    query, key = turned(layer.q_proj.weight), turned(layer.k_proj.weight)
    shared = query.shape[1] // key.shape[1]
    return [
        [
            [float((query[i, head] * key[j, head // shared].conj()).real.sum()) / math.sqrt(size) for j in range(i + 1)]
            for i in range(count)
        ]
        for head in range(query.shape[1])
    ]


def measured(logits, queries):
    """Entropy as a share of the even one, the mean of heads and queries, and the largest magnitude."""
    shares = []
    for of_head in logits:
        for query in queries:
            weights = [math.exp(logit - max(of_head[query])) for logit in of_head[query]]
            total = sum(weights)
            entropy = -sum(weight / total * math.log(weight / total) for weight in weights if weight > 0)
            shares.append(entropy / math.log(query + 1))
    largest = max(abs(logit) for of_head in logits for query in queries for logit in of_head[query])
    return sum(shares) / len(shares), largest


def watched(model, *batches, precision="float32"):
    watch = Attention(attentions(model))
    with watch.watching():
        step(model, batches, precision)
    return watch.values()


@pytest.mark.parametrize(("heads", "kv_heads"), SHAPES)
@pytest.mark.parametrize("positions", [2, 3, 17])
def test_entropy_and_largest_logit_are_those_of_a_dense_softmax(heads, kv_heads, positions):
    model = decoder(heads=heads, kv_heads=kv_heads)
    (tokens,) = micro_batches(3, positions=positions)
    values = watched(model, tokens)
    assert {measure: list(of) for measure, of in values.items()} == {"entropy": NAMES, "largest_logit": NAMES}
    for (name, layer), hidden in zip(attentions(model), read_by(model, tokens), strict=True):
        entropy, largest = measured(dense(layer, hidden[0]), range(1, positions))
        assert values["entropy"][name] == pytest.approx(entropy, rel=1e-4)
        assert values["largest_logit"][name] == pytest.approx(largest, rel=1e-4)
        assert 0 < entropy < 0.99


def test_of_a_long_sequence_so_many_queries_are_read_from_its_second_position_to_its_last():
    queries = attention._spread(100, CPU).tolist()
    assert (len(queries), len(set(queries)), queries[0], queries[-1]) == (QUERIES, QUERIES, 1, 99)
    assert max(after - before for before, after in itertools.pairwise(queries)) <= 2
    model = decoder()
    (tokens,) = micro_batches(1, positions=100)
    values = watched(model, tokens)
    for (name, layer), hidden in zip(attentions(model), read_by(model, tokens), strict=True):
        entropy, largest = measured(dense(layer, hidden[0]), queries)
        assert values["entropy"][name] == pytest.approx(entropy, rel=1e-4)
        assert values["largest_logit"][name] == pytest.approx(largest, rel=1e-4)


@pytest.mark.parametrize("positions", [1, 2, 3, 64, 65, 66, 100, 4097])
def test_queries_are_distinct_positions_and_the_first_is_one_only_where_there_is_no_other(positions):
    queries = attention._spread(positions, CPU).tolist()
    assert queries == sorted(set(queries))
    assert len(queries) == max(1, min(QUERIES, positions - 1))
    assert (queries[0], queries[-1]) == (min(1, positions - 1), positions - 1)


def test_the_first_sequence_of_the_first_micro_batch_is_the_one_that_is_read():
    model = decoder()
    first, second = micro_batches(3, 2)
    expected = watched(model, first[:1])
    for name in NAMES:
        for measure in ("entropy", "largest_logit"):
            assert watched(model, first, second)[measure][name] == pytest.approx(expected[measure][name], rel=1e-5)
            assert watched(model, second)[measure][name] != pytest.approx(expected[measure][name], rel=1e-2)


@pytest.mark.parametrize(("heads", "kv_heads"), SHAPES)
def test_the_scores_are_those_of_the_forward_pass(heads, kv_heads):
    """softmax(scores) over the values and through the last matrix is what the layer writes."""
    model = decoder(heads=heads, kv_heads=kv_heads)
    (tokens,) = micro_batches(2, positions=13)
    cos, sin = model.model.cos[:13], model.model.sin[:13]
    for (_, layer), hidden in zip(attentions(model), read_by(model, tokens), strict=True):
        with torch.no_grad():
            weights = layer.scores(hidden, cos, sin, None, torch.arange(13)).softmax(-1)
            value = layer.v_proj(hidden).unflatten(-1, (kv_heads, -1)).transpose(1, 2)
            mixed = weights @ value.repeat_interleave(heads // kv_heads, dim=1)
            torch.testing.assert_close(
                layer.o_proj(mixed.transpose(1, 2).flatten(2)), layer(hidden, cos, sin), rtol=1e-5, atol=1e-5
            )


def test_scores_of_some_queries_are_rows_of_all_and_what_comes_later_is_not_seen():
    model = decoder()
    (tokens,) = micro_batches(2, positions=9)
    (_, layer), hidden = attentions(model)[0], read_by(model, tokens)[0]
    cos, sin = model.model.cos[:9], model.model.sin[:9]
    with torch.no_grad():
        every = layer.scores(hidden, cos, sin, None, torch.arange(9))
        some = layer.scores(hidden, cos, sin, None, torch.tensor([7, 0, 3]))
    assert every.shape == (2, 4, 9, 9)
    assert every.dtype == torch.float32
    torch.testing.assert_close(some, every[:, :, [7, 0, 3]], rtol=1e-5, atol=1e-6)
    assert torch.equal(torch.isneginf(every), torch.ones(9, 9).triu(1).bool().expand_as(every))


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_under_autocast_the_logits_are_computed_in_float32_from_what_the_layer_read(precision):
    model = decoder()
    (tokens,) = micro_batches(2, positions=9)
    read = {}
    handles = [
        layer.register_forward_pre_hook(lambda layer, inputs, name=name: read.update({name: inputs[0].detach()}))
        for name, layer in attentions(model)
    ]
    with torch.no_grad(), autocast(CPU, precision):
        model(tokens)
    for handle in handles:
        handle.remove()
    values = watched(model, tokens, precision=precision)
    for name, layer in attentions(model):
        entropy, largest = measured(dense(layer, read[name][0].float()), range(1, 9))
        assert values["entropy"][name] == pytest.approx(entropy, rel=2e-5)
        assert values["largest_logit"][name] == pytest.approx(largest, rel=2e-5)


def of_logits(*rows):
    """Entropy and largest logit of one head whose queries have these logits."""
    width = max(len(row) for row in rows)
    logits = torch.tensor([[[[*row, *[-math.inf] * (width - len(row))] for row in rows]]])
    return float(attention._entropy(logits)), float(attention._largest(logits))


@pytest.mark.parametrize(
    ("rows", "entropy", "largest"),
    [
        ([[0.0] * 8], 1.0, 0.0),
        ([[5.0] * 3], 1.0, 5.0),
        ([[-5.0] * 3], 1.0, 5.0),
        ([[0.0, 0.0], [0.0, 0.0, 0.0]], 1.0, 0.0),
        ([[200.0, 0.0, 0.0]], 0.0, 200.0),
        ([[1e30, 0.0, -1e30]], 0.0, 1e30),
        ([[3.0, 3.0, -900.0, -900.0]], 0.5, 900.0),
        ([[0.0, 0.0], [200.0, 0.0, 0.0]], 0.5, 200.0),
        ([[7.0]], 1.0, 7.0),  # of one position alone every attention is the even one
    ],
)
def test_logits_written_out_by_hand(rows, entropy, largest):
    assert of_logits(*rows) == (pytest.approx(entropy, abs=1e-6), pytest.approx(largest))


@pytest.mark.parametrize("logit", [math.nan, math.inf])
def test_a_logit_that_is_not_finite_shows(logit):
    entropy, largest = of_logits([0.0, logit, 1.0])
    assert math.isnan(entropy)
    assert not math.isfinite(largest)


def test_a_single_position_can_be_watched():
    (tokens,) = micro_batches(2, positions=1)
    values = watched(decoder(), tokens)
    assert set(values["entropy"].values()) == {1.0}
    assert all(0 < logit < 1e3 for logit in values["largest_logit"].values())


def test_a_nan_in_what_a_layer_reads_shows():
    model = decoder()
    with torch.no_grad():
        model.model.embed_tokens.weight[3, 0] = math.nan
    watch = Attention(attentions(model))
    with watch.watching(), torch.no_grad():
        model(torch.full((1, 5), 3))
    assert all(math.isnan(value) for of in watch.values().values() for value in of.values())


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_the_model_computes_what_it_would_to_the_bit(precision):
    """Every parameter's gradient too: a cast that autocast kept from the look would lead none back."""
    watch_leaves_no_trace(decoder, lambda model: Attention(attentions(model)).watching(), precision)


def test_what_is_read_keeps_no_graph():
    model = decoder()
    watch = Attention(attentions(model))
    with watch.watching():
        step(model, micro_batches(2))
    assert not any(value.requires_grad for value in watch._seen.values())


def test_no_hook_is_left_after_an_exception():
    model = decoder()
    watch_ends_with_an_exception(model, Attention(attentions(model)).watching())


def test_the_next_step_begins_anew():
    model = decoder()
    first, second = micro_batches(1, 1)
    watch = Attention(attentions(model))
    told = []
    for tokens in (first, second, first):
        with watch.watching():
            step(model, [tokens])
        told.append(watch.values())
    assert told[0] == told[2] != told[1]


def test_nothing_to_watch_is_nothing_measured():
    watch = Attention([])
    with watch.watching():
        pass
    assert watch.values() == {"entropy": {}, "largest_logit": {}}


def test_the_layers_are_found_in_the_order_of_depth_each_in_its_block():
    model = decoder(layers=11)
    assert [name for name, _ in attentions(model)] == [f"{name}.self_attn" for name, _ in blocks(model)]
    assert [name for name, _ in attentions(model)] == [f"model.layers.{depth}.self_attn" for depth in range(11)]
