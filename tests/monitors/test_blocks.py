"""Norms of blocks: their squares add up to those of the whole, before clipping, beside how far each has moved."""

import math

import pytest
import torch

from pretrain.gradients import clip, clip_ratio, global_norm
from pretrain.loop.updates import UpdateNorm
from pretrain.models import blocks
from pretrain.monitors.blocks import REST, Blocks
from pretrain.policy.spikes import UPDATE_EVERY_N_STEPS
from tests.monitors.decoders import decoder, micro_batches, step

NAMES = ["model.layers.0", "model.layers.1", REST]
MEASURES = ["gradient_norm", "parameter_norm", "update_norm"]


def norm_of(tensors):
    return math.sqrt(sum(float(tensor.detach().double().square().sum()) for tensor in tensors))


def of_blocks(model, read):
    """The norm of what `read` gives of each parameter, by the names of the parameters."""
    named = dict(model.named_parameters())
    rest = [name for name in named if not name.startswith("model.layers.")]
    groups = {block: [name for name in named if name.startswith(f"{block}.")] for block in NAMES[:2]} | {REST: rest}
    assert sum(map(len, groups.values())) == len(named)
    return {block: norm_of(read(named[name]) for name in names) for block, names in groups.items()}


def trained(max_norm=None, **changes):
    """A model after one step, with its gradients in place: return it, the clip ratio, and how far what has moved."""
    model = decoder(**changes)
    step(model, micro_batches(2, 1))
    parameters = list(model.parameters())
    expected = of_blocks(model, lambda parameter: parameter.grad)
    before = {parameter: parameter.detach().clone() for parameter in parameters}
    ratio = clip_ratio(float(clip(parameters, max_norm)), max_norm)
    updates = UpdateNorm(parameters)
    updates.before(7, wanted=True)
    torch.optim.SGD(parameters, lr=0.3).step()
    updates.after()
    moved = of_blocks(model, lambda parameter: parameter - before[parameter])
    return model, ratio, updates.by_parameter, expected, moved


@pytest.mark.parametrize("max_norm", [None, 1e-3, 1e6])
@pytest.mark.parametrize("tied", [True, False])
def test_norms_are_those_of_the_parameters_of_each_block_the_gradient_before_clipping(max_norm, tied):
    model, ratio, updates, gradients, moved = trained(max_norm, tie_embeddings=tied)
    assert (ratio < 1) is (max_norm == 1e-3)
    values = Blocks(model, blocks(model)).values(ratio, updates)
    assert {measure: list(of) for measure, of in values.items()} == dict.fromkeys(MEASURES, NAMES)
    assert values["gradient_norm"] == pytest.approx(gradients, rel=1e-5)
    assert values["parameter_norm"] == pytest.approx(of_blocks(model, lambda parameter: parameter), rel=1e-5)
    assert values["update_norm"] == pytest.approx(moved, rel=1e-5)
    assert all(type(value) is float for of in values.values() for value in of.values())


def test_the_root_of_the_sum_of_squares_is_the_global_norm():
    model, ratio, updates, _, _ = trained(1e-3)
    values = Blocks(model, blocks(model)).values(ratio, updates)
    whole = {measure: math.sqrt(sum(value**2 for value in of.values())) for measure, of in values.items()}
    assert whole["gradient_norm"] == pytest.approx(float(global_norm(model.parameters())) / ratio, rel=1e-5)
    assert whole["parameter_norm"] == pytest.approx(norm_of(model.parameters()), rel=1e-5)
    assert whole["update_norm"] == pytest.approx(float(torch.linalg.vector_norm(updates)), rel=1e-5)


def test_updates_that_were_not_measured_are_left_out():
    model, ratio, _, _, _ = trained()
    assert list(Blocks(model, blocks(model)).values(ratio, None)) == MEASURES[:2]


def test_a_model_without_blocks_is_all_rest():
    model, ratio, updates, _, _ = trained()
    values = Blocks(model, []).values(ratio, updates)
    assert {measure: list(of) for measure, of in values.items()} == {key: [REST] for key in MEASURES}
    assert values["parameter_norm"][REST] == pytest.approx(norm_of(model.parameters()), rel=1e-5)


def test_parameters_that_do_not_train_are_no_part_of_it():
    model = decoder()
    model.model.layers[0].requires_grad_(False)
    model.model.layers[1].mlp.up_proj.weight.requires_grad_(False)
    step(model, micro_batches(2))
    trains = [parameter for parameter in model.parameters() if parameter.requires_grad]
    updates = torch.arange(1.0, len(trains) + 1)
    values = Blocks(model, blocks(model)).values(1.0, updates)
    assert {measure: of["model.layers.0"] for measure, of in values.items()} == dict.fromkeys(MEASURES, 0.0)
    second = [parameter for parameter in model.model.layers[1].parameters() if parameter.requires_grad]
    assert values["parameter_norm"]["model.layers.1"] == pytest.approx(norm_of(second), rel=1e-5)
    numbers = [number for number, parameter in enumerate(trains, 1) if any(parameter is one for one in second)]
    expected = math.sqrt(sum(number**2 for number in numbers))
    assert values["update_norm"]["model.layers.1"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e25])
def test_a_norm_that_is_not_finite_is_of_its_own_block_alone(bad):
    model, _, updates, gradients, _ = trained()
    model.model.layers[1].mlp.up_proj.weight.grad[0, 0] = bad
    found = Blocks(model, blocks(model)).values(1.0, updates)["gradient_norm"]
    assert not math.isfinite(found.pop("model.layers.1"))
    assert found == pytest.approx({name: gradients[name] for name in found}, rel=1e-5)


def test_gradients_that_are_gone_are_a_mistake_of_the_caller():
    model, _, _, _, _ = trained()
    model.zero_grad(set_to_none=True)
    with pytest.raises(AssertionError, match="still there"):
        Blocks(model, blocks(model)).values(1.0, None)


@pytest.mark.parametrize(
    ("number", "wanted", "is_own"),
    [
        (UPDATE_EVERY_N_STEPS, False, True),
        (UPDATE_EVERY_N_STEPS, True, True),
        (UPDATE_EVERY_N_STEPS + 1, True, False),
        (UPDATE_EVERY_N_STEPS + 1, False, False),
    ],
)
def test_each_parameters_update_is_there_where_it_was_wanted_and_the_norm_of_all_at_its_own_steps(
    number, wanted, is_own
):
    parameters = [torch.nn.Parameter(torch.full((size,), 2.0)) for size in (3, 1, 4)]
    updates = UpdateNorm(parameters)
    for last in (True, wanted):  # what an earlier step left behind is not told again
        updates.before(number, wanted=last)
        with torch.no_grad():
            for distance, parameter in enumerate(parameters, 1):
                parameter.sub_(distance)
        norm = updates.after()
    expected = [math.sqrt(3), 2.0, 3 * math.sqrt(4)]
    if wanted:
        assert updates.by_parameter.tolist() == pytest.approx(expected)
    else:
        assert updates.by_parameter is None
    assert norm == (pytest.approx(math.hypot(*expected)) if is_own else None)


def test_looking_moves_nothing():
    model, ratio, updates, _, _ = trained(1e-3)
    kept = [(parameter.detach().clone(), parameter.grad.clone()) for parameter in model.parameters()]
    generator = torch.get_rng_state()
    watch = Blocks(model, blocks(model))
    assert watch.values(ratio, updates) == watch.values(ratio, updates)
    assert torch.equal(torch.get_rng_state(), generator)
    for parameter, (value, gradient) in zip(model.parameters(), kept, strict=True):
        assert torch.equal(parameter, value)
        assert torch.equal(parameter.grad, gradient)
