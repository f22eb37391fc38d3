"""What each block writes, against the outputs of the blocks as they were kept on the side."""

import math

import pytest
import torch
from torch import nn

from pretrain.models import blocks
from pretrain.monitors.activations import Activations
from tests.monitors.decoders import (
    decoder,
    micro_batches,
    step,
    watch_ends_with_an_exception,
    watch_leaves_no_trace,
)

NAMES = ["model.layers.0", "model.layers.1"]


def written(model, batches):
    """What each block writes for these tokens, one micro-batch after the other, by a walk through the model by hand."""
    found = {name: [] for name in NAMES}
    trunk = model.model
    with torch.no_grad():
        for tokens in batches:
            hidden = trunk.embed_tokens(tokens)
            for name, block in zip(NAMES, trunk.layers, strict=True):
                hidden = block(hidden, trunk.cos[: tokens.shape[1]], trunk.sin[: tokens.shape[1]])
                found[name].append(hidden.flatten())
    return {name: torch.cat(rows).double() for name, rows in found.items()}


@pytest.mark.parametrize("rows", [(3,), (2, 2), (5, 1, 1)])
@pytest.mark.parametrize("position", ["pre", "post"])
def test_rms_and_largest_are_those_of_all_that_a_block_writes_in_all_micro_batches(rows, position):
    model, batches = decoder(norm_position=position), micro_batches(*rows)
    watch = Activations(blocks(model))
    with watch.watching():
        step(model, batches)
    values, expected = watch.values(), written(model, batches)
    assert {measure: list(of) for measure, of in values.items()} == {"rms": NAMES, "largest": NAMES}
    for name in NAMES:
        assert values["rms"][name] == pytest.approx(expected[name].square().mean().sqrt().item(), rel=1e-5)
        assert values["largest"][name] == pytest.approx(expected[name].abs().amax().item(), rel=1e-6)
    assert all(type(value) is float for of in values.values() for value in of.values())


class Given(nn.Module):
    """Writes what it is given."""

    def forward(self, values):
        return values


def given(*outputs):
    module = Given()
    watch = Activations([("x", module)])
    with watch.watching():
        for output in outputs:
            module(torch.as_tensor(output))
    values = watch.values()
    return values["rms"]["x"], values["largest"]["x"]


@pytest.mark.parametrize(
    ("outputs", "rms", "largest"),
    [
        ([[3.0, -4.0]], math.sqrt(12.5), 4.0),  # the magnitude of what is negative too
        ([[-3.0, -4.0]], math.sqrt(12.5), 4.0),
        ([[0.0, 0.0]], 0.0, 0.0),
        ([[1.0] * 99, [10.0]], math.sqrt(1.99), 10.0),  # of micro-batches that are not of one size
        ([[10.0], [1.0] * 99], math.sqrt(1.99), 10.0),
        ([[1e18, 1e18]], 1e18, 1e18),
        ([[1.0, math.inf]], math.inf, math.inf),
        ([[1.0], [-math.inf], [1.0]], math.inf, math.inf),
    ],
)
def test_values_written_out_by_hand(outputs, rms, largest):
    assert given(*outputs) == (pytest.approx(rms), pytest.approx(largest))


@pytest.mark.parametrize("outputs", [[[1.0, math.nan]], [[1.0], [math.nan], [2.0]]])
def test_a_nan_anywhere_shows(outputs):
    assert all(math.isnan(value) for value in given(*outputs))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_squared_in_thirty_two(kind):
    rms, largest = given(torch.full((5000,), 300.0, dtype=kind))  # whose square float16 does not have
    assert rms == pytest.approx(300.0, rel=1e-5)
    assert largest == 300.0


def test_the_next_step_begins_anew_and_what_is_outside_is_not_read():
    model, (first, second, third) = decoder(), micro_batches(2, 3, 1)
    watch = Activations(blocks(model))
    with watch.watching():
        step(model, [first])
    step(model, [second])
    with watch.watching():
        step(model, [third])
    expected = written(model, [third])
    for name in NAMES:
        assert watch.values()["rms"][name] == pytest.approx(expected[name].square().mean().sqrt().item(), rel=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_the_model_computes_what_it_would_to_the_bit(precision):
    watch_leaves_no_trace(decoder, lambda model: Activations(blocks(model)).watching(), precision)


def test_no_hook_is_left_after_an_exception():
    model = decoder()
    watch_ends_with_an_exception(model, Activations(blocks(model)).watching())


def test_nothing_to_watch_is_nothing_measured():
    watch = Activations([])
    assert watch.values() == {"rms": {}, "largest": {}}
    with watch.watching():
        pass
    assert watch.values() == {"rms": {}, "largest": {}}
