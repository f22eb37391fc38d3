"""Experts against a second implementation in float64, one position after the other, and what they leave behind."""

import copy
import math
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pretrain.batch import Batch, InputSpec, StepBatch
from pretrain.gradients import accumulate
from pretrain.models import DecoderSettings, ExpertSettings, active_parameters, balance, build_decoder, roles, routers
from pretrain.models.experts import Mixture
from pretrain.models.feedforward import ACTIVATIONS, gelu, squared_relu
from pretrain.models.grouped import apply_each, apply_grouped, can_be_grouped
from pretrain.models.initialization import initialize
from pretrain.tasks import TextSettings, build_text
from tests.contract.rows import Tokens

CPU, WIDTH, FFN = torch.device("cpu"), 16, 32
TEXT = build_text(TextSettings(), Tokens(), 8)
CASES = (
    ExpertSettings(count=5, top_k=2),
    ExpertSettings(count=4, top_k=1, shared=1, balance=0.0),
    ExpertSettings(count=3, top_k=3, shared=2, width=8, auxiliary_weight=0.5, router_z_weight=0.25),
    ExpertSettings(count=6, top_k=2, auxiliary_weight=2.0, balance=0.1),
)


def layer(settings: ExpertSettings, activation: str = "swiglu", seed: int = 1) -> Mixture:
    made = Mixture(WIDTH, FFN, activation, settings)
    initialize(nn.ModuleDict({"mlp": made}), 0.5, 2, torch.Generator().manual_seed(seed))
    bias = made.gate.e_score_correction_bias
    if bias is not None:
        bias.copy_(torch.linspace(0.3, -0.3, len(bias)))
    return made


def hidden(*shape: int, seed: int = 2) -> torch.Tensor:
    return torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(seed))


def plain(module: nn.Module, position: torch.Tensor, activation: str) -> torch.Tensor:
    """A feed-forward layer of one position, from its matrices."""
    weight = dict(module.named_parameters())
    up = weight["up_proj.weight"] @ position
    if activation == "swiglu":
        gate = weight["gate_proj.weight"] @ position
        return weight["down_proj.weight"] @ (gate * torch.sigmoid(gate) * up)
    known: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"gelu": gelu, "squared_relu": squared_relu}
    return weight["down_proj.weight"] @ known[activation](up)


def by_position(
    mixture: Mixture, inputs: torch.Tensor, activation: str
) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """The layer's output, its own loss and its loads, in float64 and as the papers write them."""
    settings, bias = mixture.settings, mixture.gate.e_score_correction_bias
    written, loads, scores, squares = [], [0] * settings.count, [], []
    for position in inputs.flatten(0, -2):
        logits = mixture.gate.weight @ position
        exps = [math.exp(one) for one in logits.tolist()]
        score = torch.exp(logits) / torch.exp(logits).sum()
        ranked = [exp / sum(exps) + (0.0 if bias is None else float(bias[at])) for at, exp in enumerate(exps)]
        chosen = sorted(range(settings.count), key=lambda at: -ranked[at])[: settings.top_k]
        total = sum(score[at] for at in chosen) if settings.top_k > 1 else 1.0
        made = sum(score[at] / total * plain(mixture.experts[at], position, activation) for at in chosen)
        if mixture.shared_experts is not None:
            made = made + plain(mixture.shared_experts, position, activation)
        written.append(made)
        scores.append(score)
        squares.append(torch.exp(logits).sum().log() ** 2)
        for at in chosen:
            loads[at] += 1
    shares = torch.tensor([load / sum(loads) for load in loads], dtype=torch.float64)
    own = settings.auxiliary_weight * settings.count * (shares * torch.stack(scores).mean(dim=0)).sum()
    own = own + settings.router_z_weight * torch.stack(squares).mean()
    return torch.stack(written).view(inputs.shape), own, loads  # type: ignore[arg-type]


def gradients(module: nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
    found = [inputs.grad, *(parameter.grad for parameter in module.parameters())]
    assert all(gradient is not None for gradient in found)
    return [gradient.clone() for gradient in found if gradient is not None]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("settings", CASES, ids=str)
def test_output_own_loss_loads_and_gradients_are_those_of_the_formulas(
    settings: ExpertSettings, activation: str
) -> None:
    mixture, inputs = layer(settings, activation), hidden(3, 7).requires_grad_()
    exact, doubled = copy.deepcopy(mixture).double(), inputs.detach().double().requires_grad_()
    written = mixture(inputs)
    loads = mixture._loads
    own = mixture.take_own_loss()
    expected, expected_own, expected_loads = by_position(exact, doubled, activation)
    torch.testing.assert_close(written, expected.float(), rtol=1e-5, atol=1e-5)
    assert loads is not None
    assert loads.tolist() == expected_loads
    assert (own is None) == (settings.auxiliary_weight == settings.router_z_weight == 0)
    loss, expected_loss = written.square().sum(), expected.square().sum()
    if own is not None:
        torch.testing.assert_close(own, expected_own.float(), rtol=1e-5, atol=1e-6)
        loss, expected_loss = loss + 10 * own, expected_loss + 10 * expected_own
    loss.backward()
    expected_loss.backward()
    for parameter in exact.parameters():  # one that is never chosen has no part in the loop above
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    for found, wanted in zip(gradients(mixture, inputs), gradients(exact, doubled), strict=True):
        torch.testing.assert_close(found, wanted.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_a_grouped_product_gives_the_same_and_zeros_for_an_expert_without_rows(
    activation: str, precision: torch.dtype | None
) -> None:
    """PyTorch has it on a CPU too, so that what a GPU would take is tested here."""
    mixture, rows = layer(ExpertSettings(count=5), activation), hidden(11)
    ends = torch.tensor([4, 4, 9, 11, 11])
    found = []
    for apply in (apply_each, apply_grouped):
        inputs = rows.clone().requires_grad_()
        mixture.zero_grad()
        with torch.autocast("cpu", dtype=precision) if precision else nullcontext():
            written = apply(mixture.experts, inputs, ends)
        written.float().square().sum().backward()
        experts = dict(mixture.experts.named_parameters())
        assert all(parameter.grad is not None for parameter in experts.values())
        idle = [parameter.grad for name, parameter in experts.items() if name[0] in "14"]
        assert not any(torch.count_nonzero(gradient) for gradient in idle if gradient is not None)
        found.append([written.detach(), inputs.grad, *(parameter.grad.clone() for parameter in experts.values())])  # type: ignore[union-attr]
    for each, grouped in zip(*found, strict=True):
        torch.testing.assert_close(grouped, each, rtol=2e-2 if precision else 1e-5, atol=2e-2 if precision else 1e-6)
    assert not can_be_grouped(mixture.experts, CPU)
    assert can_be_grouped(mixture.experts, torch.device("cuda"))
    assert not can_be_grouped(nn.ModuleList([nn.Linear(6, 8, bias=False)]), torch.device("cuda"))


def test_the_router_is_in_float32_under_autocast() -> None:
    mixture, inputs = layer(ExpertSettings(count=8)), hidden(64)
    logits, *_, chosen = mixture.gate(inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low, scores, weights, same = mixture.gate(inputs)
    assert low.dtype == scores.dtype == weights.dtype == torch.float32
    assert torch.equal(low, logits)
    assert torch.equal(same, chosen)


def test_among_equals_the_expert_of_the_lower_number_is_chosen() -> None:
    mixture = layer(ExpertSettings(count=6, top_k=3, balance=0.0))
    with torch.no_grad():
        mixture.gate.weight.zero_()
    assert mixture.gate(hidden(4))[-1].tolist() == [[0, 1, 2]] * 4


def test_the_bias_moves_by_the_loads_of_all_passes_of_a_step_and_decides_only_the_choice() -> None:
    mixture = layer(ExpertSettings(count=4, balance=0.25))
    bias = mixture.gate.e_score_correction_bias
    assert bias is not None
    bias.zero_()
    mixture._loads = torch.tensor([3, 5, 4, 4])
    mixture.rebalance()
    assert bias.tolist() == [0.25, -0.25, 0.0, 0.0]
    assert mixture._loads is None
    mixture.rebalance()
    assert bias.tolist() == [0.25, -0.25, 0.0, 0.0]
    bias.copy_(torch.tensor([9.0, 9.0, 0.0, 0.0]))
    _, scores, weights, chosen = mixture.gate(hidden(20))
    assert {tuple(sorted(row)) for row in chosen.tolist()} == {(0, 1)}
    of_both = scores[:, :2] / scores[:, :2].sum(dim=1, keepdim=True)
    torch.testing.assert_close(weights, of_both.gather(1, chosen))


def test_a_bias_may_choose_experts_whose_scores_are_zero() -> None:
    mixture = layer(ExpertSettings(count=4, balance=0.25))
    assert mixture.gate.e_score_correction_bias is not None
    with torch.no_grad():
        mixture.gate.e_score_correction_bias.copy_(torch.tensor([0.0, 0.0, 9.0, 9.0]))
        mixture.gate.weight.zero_()
        mixture.gate.weight[0] = 100.0
    inputs = hidden(6).abs().requires_grad_()
    _, scores, weights, chosen = mixture.gate(inputs)
    assert not scores.gather(1, chosen).any()
    assert weights.tolist() == [[0.5, 0.5]] * 6
    mixture(inputs).square().sum().backward()
    assert all(gradient.isfinite().all() for gradient in gradients(mixture, inputs))


def test_only_a_pass_that_leads_gradients_back_is_counted() -> None:
    mixture = layer(CASES[3])
    with torch.no_grad():
        mixture(hidden(5))
    mixture.eval()
    mixture(hidden(5))
    assert (mixture._loads, mixture.take_own_loss()) == (None, None)
    mixture.train()
    mixture(hidden(5))
    mixture(hidden(6))
    assert mixture._loads is not None
    assert int(mixture._loads.sum()) == 22
    assert mixture.take_own_loss() is not None
    assert mixture.take_own_loss() is None


def model(settings: ExpertSettings, **built: Any) -> nn.Module:
    chosen = DecoderSettings(width=WIDTH, heads=2, kv_heads=2, ffn_width=FFN, init_std=0.3, experts=settings)
    return build_decoder(chosen, InputSpec("tokens", 16), 8, 3, **built)


def step_of(*rows: int) -> StepBatch:
    generator = torch.Generator().manual_seed(4)
    batches = [torch.randint(0, 16, (count, 9), generator=generator) for count in rows]
    return StepBatch(tuple(Batch(samples, 0, 0, ("",) * len(samples)) for samples in batches), 0, 0)


def test_the_loss_of_a_step_has_the_own_losses_by_the_units_of_each_micro_batch() -> None:
    made, batches = model(CASES[2]), step_of(1, 3)
    loss, total = accumulate(made, TEXT, batches, CPU, nullcontext())
    expected = torch.zeros(())
    kept = {name: parameter.grad for name, parameter in made.named_parameters()}
    made.zero_grad()
    for batch in batches.micro_batches:
        logits = made(batch.samples[:, :-1])
        nats = F.cross_entropy(logits.flatten(0, 1), batch.samples[:, 1:].flatten())
        own = made.own_loss()  # type: ignore[operator]
        expected = expected + (nats + own) * TEXT.supervised(batch) / total
    expected.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-6, atol=1e-6)
    for name, parameter in made.named_parameters():
        torch.testing.assert_close(parameter.grad, kept[name], rtol=1e-5, atol=1e-6)
    scores = [float(TEXT.sample_losses(made, batch, CPU).mean()) for batch in batches.micro_batches]
    assert (scores[0] + 3 * scores[1]) / 4 < float(loss) - 0.5


@pytest.mark.parametrize("how", ["full", "selective"])
def test_what_is_computed_again_is_the_same_and_is_counted_once(how: str) -> None:
    found = []
    for checkpointing in ("none", how):
        made, watch = model(CASES[3], activation_checkpointing=checkpointing), Counter[str]()
        hooks = [gate.register_forward_hook(lambda *_, seen=watch: seen.update("x")) for _, gate in routers(made)]
        loss, _ = accumulate(made, TEXT, step_of(2, 2), CPU, nullcontext())
        for hook in hooks:
            hook.remove()
        assert watch.total() == 4
        again, _ = accumulate(made, TEXT, step_of(2, 2), CPU, nullcontext())
        loads = [module._loads.tolist() for module in made.modules() if isinstance(module, Mixture)]  # type: ignore[union-attr]
        assert [sum(one) for one in loads] == [2 * 32] * 2
        found.append((float(loss), float(again), loads, [parameter.grad for parameter in made.parameters()]))
    assert found[0][:3] == found[1][:3]
    assert all(torch.equal(one, other) for one, other in zip(found[0][3], found[1][3], strict=True))


def test_a_step_that_is_not_taken_leaves_no_load_for_the_next() -> None:
    taken, other = model(CASES[3]), model(CASES[3])
    accumulate(other, TEXT, step_of(4), CPU, nullcontext())  # refused: nobody calls balance
    for made in (taken, other):
        accumulate(made, TEXT, step_of(2, 1), CPU, nullcontext())
        balance(made)
    assert {name: tensor.tolist() for name, tensor in taken.named_buffers()} == {
        name: tensor.tolist() for name, tensor in other.named_buffers()
    }


def test_names_roles_and_sizes() -> None:
    made = model(ExpertSettings(count=4, top_k=1, shared=1, balance=0.0))
    named = roles(made)
    assert {name: role for name, role in named.items() if name.startswith("model.layers.0.mlp")} == {
        "model.layers.0.mlp.gate.weight": "router",
        **{
            f"model.layers.0.mlp.{of}.{matrix}_proj.weight": "feed_forward"
            for of in (*(f"experts.{number}" for number in range(4)), "shared_experts")
            for matrix in ("gate", "up", "down")
        },
    }
    assert made.state_dict().keys() == named.keys()
    total = sum(parameter.numel() for parameter in made.parameters())
    assert total - active_parameters(made) == 2 * 3 * 3 * WIDTH * FFN // 2
    assert [name for name, _ in routers(made)] == ["model.layers.0.mlp.gate", "model.layers.1.mlp.gate"]


@pytest.mark.parametrize(("top_k", "shared"), [(1, 0), (2, 0), (1, 1), (2, 2), (4, 0)])
def test_a_position_meets_as_many_parameters_as_in_the_dense_model(top_k: int, shared: int) -> None:
    settings = ExpertSettings(count=4, top_k=top_k, shared=shared)
    plain_settings = DecoderSettings(width=WIDTH, heads=2, kv_heads=2, ffn_width=FFN)
    dense = build_decoder(plain_settings, InputSpec("tokens", 16), 8, 3)
    assert active_parameters(model(settings)) - active_parameters(dense) == 2 * 4 * WIDTH
    assert active_parameters(dense) == sum(parameter.numel() for parameter in dense.parameters())
