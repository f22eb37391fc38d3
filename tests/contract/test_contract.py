"""What every row of MODELS, TASKS and OPTIMIZERS owes: it builds, learns, and comes back byte for byte."""

import pytest
import torch

from pretrain.batch import Batch
from pretrain.models import MODELS, blocks
from pretrain.optimizers import OPTIMIZERS
from pretrain.tasks import TASKS
from tests.contract.rows import COMBINATIONS, DEVICE, LENGTH, ROWS, VARIANTS, Run, build

every_row = pytest.mark.parametrize("combination", COMBINATIONS, ids="-".join)


def clones(run: Run) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in run.tensors().items()}


def test_every_row_is_in_a_combination() -> None:
    assert {task for task, _, _ in COMBINATIONS} == set(TASKS)
    assert {model for _, model, _ in COMBINATIONS} == set(MODELS)
    assert {optimizer for _, _, optimizer in COMBINATIONS} == {*OPTIMIZERS, *VARIANTS}


@every_row
def test_it_builds_from_defaults_and_moves_no_global_generator(combination: tuple[str, str, str]) -> None:
    before = torch.get_rng_state()
    run = build(combination, seed=3)
    assert torch.equal(before, torch.get_rng_state())
    assert run.bytes() == build(combination, seed=3).bytes()
    assert run.bytes() != build(combination, seed=4).bytes()
    assert all(torch.isfinite(tensor).all() for tensor in run.tensors().values())
    assert len(blocks(run.model)) >= 1


@every_row
def test_it_lowers_a_loss(combination: tuple[str, str, str]) -> None:
    run = build(combination, seed=3)
    losses = [run.step(index, micro_batches=1) for index in range(40)]
    assert losses[-1] < 0.7 * losses[0]


@every_row
def test_its_state_has_the_same_names_at_step_0_and_later(combination: tuple[str, str, str]) -> None:
    run = build(combination, seed=3)
    names = {name: (kind, shape) for name, (kind, shape, _) in run.bytes().items()}
    run.step(0)
    assert {name: (kind, shape) for name, (kind, shape, _) in run.bytes().items()} == names


@every_row
@pytest.mark.parametrize("steps", [0, 3])
def test_its_state_round_trips_exactly(combination: tuple[str, str, str], steps: int) -> None:
    run = build(combination, seed=3)
    for index in range(steps):
        run.step(index)
    other = build(combination, seed=4)
    other.step(9)
    other.restore(clones(run))
    assert other.bytes() == run.bytes()


@every_row
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_it_resumes_bit_exactly_in_mid_run(combination: tuple[str, str, str], precision: str) -> None:
    whole = build(combination, seed=3, precision=precision)
    for index in range(3):
        whole.step(index)
    saved = clones(whole)
    losses = [whole.step(index) for index in range(3, 6)]

    resumed = build(combination, seed=4, precision=precision)
    resumed.restore(saved)
    assert [resumed.step(index) for index in range(3, 6)] == losses
    assert resumed.bytes() == whole.bytes()


@pytest.mark.parametrize("name", sorted(TASKS))
def test_the_scores_of_a_task_agree_with_its_loss(name: str) -> None:
    run = build((name, "decoder", "adamw"), seed=3)
    batch = Batch(run.source.samples(0), 0, 0, ("",) * ROWS)
    scores = run.task.score(run.model, batch, DEVICE) | run.task.score_reference(batch, run.task.fit_reference([batch]))
    assert all(values.shape == (ROWS,) and values.dtype == torch.float64 for values in scores.values())
    assert not any(values.requires_grad for values in scores.values())
    assert scores["supervised"].sum() == run.task.supervised(batch)
    assert scores["samples"].tolist() == [1.0] * ROWS
    summary = run.task.summarize({"": {key: float(values.sum()) for key, values in scores.items()}})
    loss = run.task.loss_sum(run.model, batch, DEVICE)
    assert loss.dtype == torch.float32
    assert loss.requires_grad
    assert summary.loss == pytest.approx(float(loss.detach()) / run.task.supervised(batch), rel=1e-5)
    rows = run.task.sample_losses(run.model, batch, DEVICE)
    assert rows.shape == (ROWS,)
    assert float(rows.mean()) == pytest.approx(summary.loss, rel=1e-6)
    assert run.task.unit in ("tokens", "samples")
    assert run.task.max_positions <= LENGTH
