"""The load of experts, counted where a real router chooses, and the fault made for real: one that collapses."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pretrain.monitors.experts import Experts
from pretrain.policy.alarms import AlarmState, update_alarms
from pretrain.policy.experts import judge_experts, load_entropy
from tests.monitors.decoders import hooks_of, watch_ends_with_an_exception, watch_leaves_no_trace

WIDTH = 8


class TopRouter(nn.Module):
    """Chooses the top_k of a softmax over a linear layer: weights [positions, top_k], and the chosen experts."""

    def __init__(self, experts: int, top_k: int) -> None:
        super().__init__()
        self.experts, self.top_k = experts, top_k
        self.gate = nn.Linear(WIDTH, experts, bias=False)

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, chosen = self.gate(hidden).softmax(-1).topk(self.top_k, dim=-1)
        return weights / weights.sum(-1, keepdim=True), chosen


class Layer(nn.Module):
    """A mixture of linear experts, each position through those that its router chose."""

    def __init__(self, experts: int, top_k: int) -> None:
        super().__init__()
        self.router = TopRouter(experts, top_k)
        self.experts = nn.Parameter(torch.empty(experts, WIDTH, WIDTH))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(hidden)
        written = torch.einsum("pi,eio->peo", hidden, self.experts)
        picked = written.gather(1, chosen[..., None].expand(-1, -1, WIDTH))
        return hidden + (picked * weights[..., None]).sum(dim=1)


class Mixed(nn.Module):
    """Two such layers of different sizes between an embedding and a head: tokens [B, T] to logits."""

    def __init__(self, first: tuple[int, int] = (6, 2), second: tuple[int, int] = (4, 1)) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, WIDTH)
        self.layers = nn.ModuleList([Layer(*first), Layer(*second)])
        generator = torch.Generator().manual_seed(6)
        for parameter in self.parameters():
            nn.init.normal_(parameter, 0.0, 0.5, generator=generator)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens).flatten(0, 1)
        for layer in self.layers:
            hidden = layer(hidden)
        return F.linear(hidden, self.embedding.weight).unflatten(0, tokens.shape)


def routers(model):
    return [(name, module) for name, module in model.named_modules() if isinstance(module, TopRouter)]


def tokens_of(*rows):
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(0, 11, (count, 9), generator=generator) for count in rows]


@pytest.mark.parametrize("rows", [(2,), (4, 1, 1)])
def test_the_load_is_the_share_of_the_choices_of_each_router_over_all_micro_batches(rows):
    model, batches = Mixed(), tokens_of(*rows)
    watch = Experts(routers(model))
    with watch.watching(), torch.no_grad():
        for tokens in batches:
            model(tokens)
    expected, first, second = {}, Counter(), Counter()
    with torch.no_grad():
        for tokens in batches:
            for position in model.embedding(tokens).flatten(0, 1):
                ranked = (model.layers[0].router.gate.weight @ position).argsort(descending=True)
                first.update(ranked[:2].tolist())
                hidden = model.layers[0](position[None])[0]
                second.update([int((model.layers[1].router.gate.weight @ hidden).argmax())])
    for layer, (count, counted) in enumerate([(6, first), (4, second)]):
        for expert in range(count):
            expected[f"layers.{layer}.router.{expert}"] = counted[expert] / counted.total()
    (load,) = watch.values().values()
    assert load == pytest.approx(expected)
    assert list(load) == list(expected)
    assert len(set(load.values())) > 3
    assert all(type(share) is float for share in load.values())


def test_the_next_step_begins_anew_and_what_is_outside_is_not_counted():
    model, (first, second) = Mixed(), tokens_of(2, 3)
    watch, told = Experts(routers(model)), []
    for tokens in (first, second, first):
        with watch.watching(), torch.no_grad():
            model(tokens)
        told.append(watch.values())
        with torch.no_grad():
            model(second)
    assert told[0] == told[2] != told[1]


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_the_model_computes_what_it_would_to_the_bit(precision):
    watch_leaves_no_trace(Mixed, lambda model: Experts(routers(model)).watching(), precision)


def test_no_hook_is_left_after_an_exception():
    model = Mixed()
    watch_ends_with_an_exception(model, Experts(routers(model)).watching())


def test_nothing_to_watch_is_nothing_measured():
    watch = Experts([])
    assert watch.values() == {"load": {}}
    with watch.watching():
        pass
    assert watch.values() == {"load": {}}


def test_a_router_that_had_nothing_to_choose_for_has_no_load():
    idle, empty, works = TopRouter(3, 1), TopRouter(2, 1), TopRouter(1, 1)
    watch = Experts([("idle", idle), ("empty", empty), ("works", works)])
    with watch.watching(), torch.no_grad():
        empty(torch.zeros(0, WIDTH))
        works(torch.zeros(5, WIDTH))
    assert watch.values() == {"load": {"works.0": 1.0}}


class Run:
    """What a loop does with the routers of a model: look at every so many steps, judge, raise and clear."""

    def __init__(self, model, every):
        self.model, self.every = model, every
        self.watch, self.known, self.state, self.told = Experts(routers(model)), {}, AlarmState(), []
        self.generator = torch.Generator().manual_seed(1)

    def go(self, begin, end):
        for step in range(begin, end + 1):
            if step % self.every:
                continue
            with self.watch.watching(), torch.no_grad():
                self.model(torch.randn(128, WIDTH, generator=self.generator))
            values = self.watch.values()
            raised = {(alarm.name, alarm.subject) for alarm in self.state.raised}
            seen, self.known = judge_experts(values, self.known, raised, step)
            changes, self.state = update_alarms(seen, step, self.state)
            self.told += [(step, change.state, change.seen.name, change.seen.subject) for change in changes]
        return values


def balanced(experts=4):
    """A router whose experts win in turn: rows of a Hadamard matrix, so that none is before another."""
    router = TopRouter(experts, 1)
    signs = torch.tensor([[(-1.0) ** (row & column).bit_count() for column in range(WIDTH)] for row in range(experts)])
    with torch.no_grad():
        router.gate.weight.copy_(signs)
    return router


@pytest.mark.parametrize("every", [1, 20])
def test_a_router_that_collapses_on_one_expert_leaves_the_others_dead_after_a_hundred_steps_and_not_before(every):
    router = balanced()
    run = Run(router, every)
    run.go(1, 200)
    assert run.told == []
    kept = router.gate.weight.detach().clone()
    with torch.no_grad():  # its logits collapse: all but the third are the same, and behind it for every input
        router.gate.weight.zero_()
        router.forward = lambda hidden: TopRouter.forward(router, hidden.abs())
        router.gate.weight[2] = 1.0
    first = 200 + every
    values = run.go(201, first + 99)
    assert values["load"][".2"] == 1.0
    assert run.told == []
    run.go(first + 100, first + 100)
    assert run.told == [(first + 100, "raised", "dead_expert", f".{expert}") for expert in (0, 1, 3)]
    assert load_entropy(values) == {"": 0.0}
    run.go(first + 101, 600)
    assert len(run.told) == 3
    del router.forward
    with torch.no_grad():
        router.gate.weight.copy_(kept)
    run.go(601, 700)
    assert [change[1] for change in run.told[3:]] == ["cleared"] * 3
    assert run.known == {}
    assert hooks_of(router) == 0


def test_a_balanced_router_raises_nothing_in_a_thousand_looks():
    run = Run(balanced(8), 20)
    values = run.go(1, 20_000)
    assert run.told == []
    assert 0.9 < load_entropy(values)[""] <= 1.0
