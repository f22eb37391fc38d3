"""Retention as tables of steps: what stays and why, what goes, and who is best."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.policy.cadence import is_due_or_last
from pretrain.policy.retention import CheckpointSettings, most_checkpoints, plan, rank_best

derandomised = settings(derandomize=True, deadline=None, max_examples=120)
REASONS = {"newest", "rolling", "target", "best", "keep_every"}


def checkpoints(rolling=3, best=1, every=None):
    return CheckpointSettings(max_rolling_checkpoints=rolling, num_best_checkpoints=best, keep_every_n_steps=every)


@pytest.mark.parametrize(
    ("regular", "best", "chosen", "off_cadence", "keep", "remove"),
    [
        ((), (), checkpoints(), (), {}, ()),
        ((0,), (), checkpoints(), (), {0: "newest rolling target"}, ()),
        (
            (0, 100, 200, 300),
            ((100, 1.5),),
            checkpoints(rolling=1),
            (),
            {100: "best", 200: "target", 300: "newest rolling target"},
            (0,),
        ),
        (  # kept for ever, 0 being a multiple too
            (0, 100, 200, 300, 400),
            (),
            checkpoints(rolling=1, every=200),
            (),
            {0: "keep_every", 200: "keep_every", 300: "target", 400: "newest rolling target keep_every"},
            (100,),
        ),
        (  # a signal checkpoint is kept as the newest alone, and displaces no target
            (0, 100, 200),
            (),
            checkpoints(rolling=1),
            (250,),
            {100: "target", 200: "rolling target", 250: "newest"},
            (0,),
        ),
        (  # and goes once a newer durable one exists
            (0, 100, 200, 300),
            (),
            checkpoints(rolling=1),
            (250,),
            {200: "target", 300: "newest rolling target"},
            (0, 100, 250),
        ),
        (  # it is never best, nor kept for ever
            (0, 100),
            ((150, 0.1), (100, 0.2)),
            checkpoints(rolling=1, best=2, every=50),
            (150, 175),
            {0: "target keep_every", 100: "rolling target best keep_every", 175: "newest"},
            (150,),
        ),
        (  # saved for a signal at a step of the cadence: it is of the cadence
            (0, 100),
            (),
            checkpoints(),
            (100,),
            {0: "rolling target", 100: "newest rolling target"},
            (),
        ),
        (  # the first life was killed at 5, before anything of the cadence
            (),
            (),
            checkpoints(),
            (5,),
            {5: "newest"},
            (),
        ),
        (  # an ancestor's best step is not among this attempt's: nothing to keep here
            (300, 400, 500),
            ((100, 0.5),),
            checkpoints(rolling=1),
            (),
            {400: "target", 500: "newest rolling target"},
            (300,),
        ),
        (
            (0, 1, 2),
            ((0, 1.0),),
            checkpoints(rolling=1, best=0),
            (),
            {1: "target", 2: "newest rolling target"},
            (0,),
        ),
    ],
)
def test_what_stays_and_why(regular, best, chosen, off_cadence, keep, remove):
    found = plan(regular, best, chosen, off_cadence)
    assert {step: " ".join(why) for step, why in found.keep.items()} == keep
    assert found.remove == remove


def test_s20_the_checkpoint_of_step_0_is_a_rollback_target():
    assert "target" in plan((0,), (), checkpoints(rolling=1, best=0)).keep[0]
    assert "target" in plan((0, 100), (), checkpoints(rolling=1, best=0), off_cadence=(3, 150)).keep[0]


def test_s28_the_best_found_early_outlives_every_rolling_one():
    chosen = checkpoints(rolling=1, best=2)
    best = ()
    saved = [0]
    for step, value in zip(range(100, 2100, 100), [1.0, 1.1, *[2.0] * 18], strict=True):
        best = rank_best(best, step, value, chosen.num_best_checkpoints)
        found = plan([*saved, step], best, chosen)
        saved = list(found.keep)
        assert saved[-1] == step
        assert {at for at, _ in best} <= set(saved)
    assert best == ((100, 1.0), (200, 1.1))
    assert saved == [100, 200, 1900, 2000]


def test_s29_a_nan_never_captures_best_and_a_tie_keeps_the_earlier():
    assert rank_best((), 100, math.nan, 1) == ()
    assert rank_best(rank_best((), 100, math.nan, 1), 200, 3.0, 1) == ((200, 3.0),)
    assert rank_best(((200, 3.0),), 300, math.nan, 1) == ((200, 3.0),)
    assert rank_best(((200, 3.0),), 300, -math.inf, 1) == ((200, 3.0),)
    assert rank_best(((200, 3.0),), 300, 3.0, 1) == ((200, 3.0),)
    assert rank_best(((200, 3.0),), 300, 2.0, 2) == ((300, 2.0), (200, 3.0))
    assert rank_best(((200, 3.0),), 300, 2.0, 0) == ()


def test_a_step_reached_again_after_a_rollback_replaces_its_own_entry():
    assert rank_best(((200, 3.0), (100, 4.0)), 200, 5.0, 2) == ((100, 4.0), (200, 5.0))
    assert rank_best(((200, 3.0), (100, 4.0)), 200, math.nan, 2) == ((100, 4.0),)


def test_s30_steps_are_ordered_as_numbers():
    found = plan((900, 99, 1000), (), checkpoints(rolling=1, best=0), targets=1)
    assert (tuple(found.keep), found.remove) == ((1000,), (99, 900))


steps = st.sets(st.integers(0, 60), max_size=25)
ranked = st.lists(st.tuples(st.integers(0, 60), st.floats(0, 9)), max_size=5)


@derandomised
@given(
    steps,
    steps,
    ranked,
    st.integers(1, 4),
    st.integers(0, 3),
    st.none() | st.integers(1, 20),
    st.integers(0, 3),
)
def test_every_plan_keeps_what_it_must_and_names_a_reason(regular, off, best, rolling, num, every, targets):
    found = plan(regular, best, checkpoints(rolling, num, every), off, targets)
    saved = regular | off
    kept, removed = set(found.keep), set(found.remove)
    assert kept | removed == saved
    assert not kept & removed
    assert list(found.remove) == sorted(found.remove)
    assert list(found.keep) == sorted(found.keep)
    assert all(why and set(why) <= REASONS for why in found.keep.values())
    assert not saved or max(saved) in kept
    assert set(sorted(regular)[-max(rolling, targets) :]) <= kept
    assert {step for step, _ in best[:num]} & regular <= kept
    assert {step for step in off - regular if step in kept} <= {max(saved, default=0)}
    again = plan(regular & kept, best, checkpoints(rolling, num, every), off & kept, targets)
    assert again.remove == ()  # pruning is done in one go: a second pass finds nothing


@derandomised
@given(steps, steps, ranked, st.integers(1, 4))
def test_a_signal_changes_nothing_of_what_the_cadence_keeps(regular, off, best, rolling):
    def of_the_cadence(found):
        return {step: set(why) - {"newest"} for step, why in found.keep.items() if set(why) != {"newest"}}

    chosen = checkpoints(rolling)
    assert of_the_cadence(plan(regular, best, chosen, off)) == of_the_cadence(plan(regular, best, chosen))


@derandomised
@given(st.lists(st.tuples(st.integers(0, 30), st.floats(allow_nan=True)), max_size=30), st.integers(0, 4))
def test_the_best_list_is_the_lowest_finite_values_of_each_step(seen, num):
    best = ()
    latest = {}
    for step, value in dict(seen).items():
        best = rank_best(best, step, value, num)
        if math.isfinite(value):
            latest[step] = value
    expected = sorted(latest.items(), key=lambda entry: (entry[1], entry[0]))[:num]
    assert list(best) == expected


def counted_one_by_one(chosen: CheckpointSettings, validate_every: int, max_steps: int, begun_at: int) -> int:
    every = chosen.checkpoint_every_n_steps
    regular = [step for step in range(0, max_steps + 1, every) if step > begun_at]
    kept = plan(regular, (), chosen, () if max_steps % every == 0 else (max_steps,)).keep
    could_be_best = sum(
        step not in kept and step > 0 and is_due_or_last(step, validate_every, max_steps) for step in regular
    )
    return len(kept) + min(chosen.num_best_checkpoints, could_be_best)


@settings(derandomize=True, deadline=None, max_examples=1000)
@given(
    every=st.integers(1, 9),
    rolling=st.integers(1, 5),
    best=st.integers(0, 4),
    forever=st.none() | st.integers(1, 12),
    validate_every=st.integers(0, 9),
    max_steps=st.integers(1, 60),
    begun_at=st.integers(-1, 60),
)
def test_most_checkpoints_is_what_the_plan_leaves(
    every: int, rolling: int, best: int, forever: int | None, validate_every: int, max_steps: int, begun_at: int
) -> None:
    chosen = CheckpointSettings(
        checkpoint_every_n_steps=every,
        max_rolling_checkpoints=rolling,
        num_best_checkpoints=best,
        keep_every_n_steps=forever,
    )
    expected = counted_one_by_one(chosen, validate_every, max_steps, begun_at)
    assert most_checkpoints(chosen, validate_every, max_steps, begun_at) == expected


def test_most_checkpoints_of_a_run_that_no_list_could_hold() -> None:
    chosen = CheckpointSettings(checkpoint_every_n_steps=1, keep_every_n_steps=1)
    assert most_checkpoints(chosen, 1, 10**12) == 10**12 + 1
