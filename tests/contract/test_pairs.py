"""Every pair of an optimizer, a schedule, a feature, a precision and a task meets in a run that goes back and on."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import pytest
import torch

from pretrain.models import MODELS
from pretrain.optimizers import OPTIMIZERS, set_learning_rate
from pretrain.policy.schedule import DECAY_SHAPES, SCHEDULES
from pretrain.tasks import TASKS
from tests.contract.rows import VARIANTS, Run
from tests.contract.test_features import FEATURES, PRECISIONS, fits, made

SHAPED = "warmup_stable_decay"
Row = tuple[str, ...]

SCHEDULE_NAMES = [*(name for name in SCHEDULES if name != SHAPED), *(f"{SHAPED}.{shape}" for shape in DECAY_SHAPES)]
AXES: tuple[Sequence[str], ...] = (
    tuple(FEATURES),
    (*OPTIMIZERS, *VARIANTS),
    tuple(SCHEDULE_NAMES),
    PRECISIONS,
    tuple(TASKS),
)
STEPS = 6
Pair = tuple[int, str, int, str]


def pairs_of(row: Row) -> set[Pair]:
    return {(i, row[i], j, row[j]) for i, j in itertools.combinations(range(len(row)), 2)}


def is_possible(pair: Pair) -> bool:
    at, one, other_at, other = pair
    return (at, other_at) != (0, 4) or fits(other, FEATURES[one])


def possible_rows() -> list[Row]:
    return [row for row in itertools.product(*AXES) if fits(row[4], FEATURES[row[0]])]


def covering(wanted: set[Pair]) -> list[Row]:
    """Return rows that have all of the wanted pairs, the features and the optimizers crossed.

    Greedy: a row is, of those that it may be, the one with the most pairs that no row before it has, the first of
    equals, so that the rows are the same every time.
    """
    left, rows = set(wanted), []

    def add(among: Iterable[Row]) -> None:
        rows.append(max(among, key=lambda row: len(pairs_of(row) & left)))
        left.difference_update(pairs_of(rows[-1]))

    by_cross = {key: list(rows) for key, rows in itertools.groupby(possible_rows(), key=lambda row: row[:2])}
    for feature, optimizer in itertools.product(AXES[0], AXES[1]):
        add(by_cross[feature, optimizer])
    while left:
        i, one, j, other = min(left)
        add(row for row in possible_rows() if (row[i], row[j]) == (one, other))
    return rows


WANTED = {
    pair
    for i, j in itertools.combinations(range(len(AXES)), 2)
    for one, other in itertools.product(AXES[i], AXES[j])
    if is_possible(pair := (i, one, j, other))
}
ROWS = covering(WANTED)


def test_every_pair_is_there() -> None:
    """And a setting of the features is not missing: see `test_features.py`."""
    assert set().union(*map(pairs_of, ROWS)) == WANTED
    assert len(ROWS) == len(set(ROWS)) < 1.1 * len(AXES[0]) * len(AXES[1])
    assert set(MODELS) == {"decoder"}, "a second family needs rows of its own"


def rate_of(schedule: str, peak: float) -> list[float]:
    """Return the rates of a schedule that warms up over two steps and ends with the last one."""
    name, _, shape = schedule.partition(".")
    entry = SCHEDULES[name]
    known = {field.name for field in dataclasses.fields(entry.settings)}
    given = {"scheduler_total_steps": STEPS, "scheduler_warmup_ratio": 0.34, "decay_shape": shape or "linear"}
    multiplier = entry.build(entry.settings(**{key: value for key, value in given.items() if key in known}))
    return [peak * multiplier(step) for step in range(STEPS)]


def run_on(run: Run, rates: list[float], steps: range) -> list[float]:
    losses = []
    for step in steps:
        set_learning_rate(run.optimizer, rates[step])
        losses.append(run.step(step, micro_batches=1))
    return losses


@pytest.mark.parametrize("row", ROWS, ids="-".join)
def test_it_goes_back_and_on_to_the_same_bytes(row: Row) -> None:
    feature, optimizer, schedule, precision, task = row
    torch.manual_seed(1)
    whole = made(feature, task, precision, optimizer=optimizer)
    rates = rate_of(schedule, whole.optimizer.param_groups[0]["lr"])
    begun = whole.bytes()
    run_on(whole, rates, range(3))
    tensors, generator = (
        {name: tensor.detach().clone() for name, tensor in whole.tensors().items()},
        torch.get_rng_state(),
    )
    assert whole.bytes() != begun
    if feature == "experts":  # three steps of as many choices as five experts cannot share out
        assert all(tensor.all() for key, tensor in tensors.items() if key.endswith("e_score_correction_bias"))
    losses = run_on(whole, rates, range(3, STEPS))

    resumed = made(feature, task, precision, seed=4, optimizer=optimizer)
    run_on(resumed, rates, range(1))
    resumed.restore(tensors)
    torch.set_rng_state(generator)
    assert run_on(resumed, rates, range(3, STEPS)) == losses
    assert resumed.bytes() == whole.bytes()
