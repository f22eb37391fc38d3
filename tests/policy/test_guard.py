"""The guard as tables: what reaches the weights, what is skipped, and when an attempt fails."""

import math

import pytest

from pretrain.policy import guard
from pretrain.policy.guard import GuardSettings, GuardState, Judgement, StepReport, judge, needs_scan

NAN, INF = math.nan, math.inf
HEALTHY = StepReport(loss=2.0, gradient_norm=3.0, clipped_norm=1.0)
POISONED = StepReport(loss=NAN, gradient_norm=3.0, clipped_norm=1.0)


def run(reports: list[StepReport], settings: GuardSettings, state: GuardState | None = None, step: int = 0):
    """What a loop does: the step moves on `accept` alone, and `fail` ends it."""
    state, judgements = state or GuardState(), []
    for report in reports:
        judgement = judge(report, state, settings, step)
        judgements.append(judgement)
        state = judgement.state
        if judgement.action == "fail":
            break
        step += judgement.action == "accept"
    return judgements, state, step


@pytest.mark.parametrize(
    ("loss", "norm", "clipped", "largest", "reason"),
    [
        (2.0, 3.0, 1.0, None, None),
        (0.0, 0.0, 0.0, None, None),
        (-2.0, 3.0, 3.0, None, None),
        (1e308, 1e308, 1.0, None, None),
        (NAN, 3.0, 1.0, None, "non_finite_loss"),
        (INF, 3.0, 1.0, None, "non_finite_loss"),
        (-INF, 3.0, 1.0, None, "non_finite_loss"),
        (2.0, NAN, NAN, None, "non_finite_norm"),
        (2.0, INF, INF, None, "non_finite_norm"),
        (NAN, NAN, NAN, None, "non_finite_loss"),  # the loss is named first: it came first
        (2.0, 30.0, 30.0, 10.0, None),  # at the threshold nothing is refused
        (2.0, 30.0, 30.0, 10.000001, "post_clip"),
        (2.0, 30.0, 30.0, NAN, "post_clip"),  # NaN fails every comparison, so it must not pass this one
        (2.0, 30.0, 30.0, INF, "post_clip"),
        (2.0, 30.0, 30.0, 0.5, None),  # a large norm of small elements
        (2.0, 3.0, 1.0, 11.0, "post_clip"),  # a scan that was not asked for is believed all the same
    ],
)
def test_health_is_stated_positively(loss, norm, clipped, largest, reason):
    report = StepReport(loss, norm, clipped, largest)
    state = GuardState((7,))
    expected = (
        Judgement("accept", None, 1, state) if reason is None else Judgement("skip", reason, 1, GuardState((7, 8)))
    )
    assert judge(report, state, GuardSettings(), step=8) == expected


@pytest.mark.parametrize(
    ("loss", "norm", "clipped", "step", "interval", "expected"),
    [
        (2.0, 3.0, 1.0, 0, 1, False),  # max|g| <= the norm, so 1.0 answers for every element
        (2.0, 30.0, 10.0, 0, 1, False),
        (2.0, 30.0, 10.1, 0, 1, True),
        (2.0, 30.0, 30.0, 3, 4, False),  # off the interval
        (2.0, 30.0, 30.0, 4, 4, True),
        (2.0, 30.0, NAN, 0, 1, True),
        (2.0, INF, INF, 0, 1, False),  # refused already: a scan could add nothing
        (NAN, 30.0, 30.0, 0, 1, False),
    ],
)
def test_elements_are_scanned_only_where_they_could_matter(loss, norm, clipped, step, interval, expected):
    settings = GuardSettings(nan_check_interval=interval)
    assert needs_scan(StepReport(loss, norm, clipped), settings, step) is expected


def test_a_report_without_the_scan_it_needs_is_not_judged():
    with pytest.raises(AssertionError, match="scan"):
        judge(StepReport(2.0, 30.0, 30.0), GuardState(), GuardSettings(), step=0)
    off_interval = GuardSettings(nan_check_interval=2)
    assert judge(StepReport(2.0, 30.0, 30.0), GuardState(), off_interval, step=1).action == "accept"


def test_a_nan_is_caught_on_every_step_whatever_the_scan_interval():
    settings = GuardSettings(nan_check_interval=1000)
    assert judge(POISONED, GuardState(), settings, step=3).reason == "non_finite_loss"


@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_as_many_skips_as_allowed_then_failure(allowed):
    judgements, state, step = run([POISONED] * 10, GuardSettings(max_nan_retries=allowed))
    assert [j.action for j in judgements] == ["skip"] * allowed + ["fail"]
    assert [j.retries for j in judgements] == list(range(allowed + 1))
    assert (state, step) == (GuardState((0,) * allowed), 0)


@pytest.mark.parametrize(
    ("window", "refused_at", "step", "retries", "left"),
    [
        (10, (5,), 14, 1, (5,)),
        (10, (5,), 15, 0, ()),  # forgotten after 10 steps
        (10, (5, 9, 14), 16, 2, (9, 14)),
        (0, (5, 9), 10**9, 2, (5, 9)),  # 0 = never forgotten
        (1, (5, 5), 5, 2, (5, 5)),  # in a row: `step` has not moved, so both count
        (1, (5, 5), 6, 0, ()),
        (10, (40,), 20, 1, (40,)),  # a rollback puts `step` back, never the ledger
    ],
)
def test_what_is_remembered_and_what_leaves_the_state(window, refused_at, step, retries, left):
    judgement = judge(HEALTHY, GuardState(refused_at), GuardSettings(nan_retry_window_steps=window), step)
    assert (judgement.action, judgement.retries, judgement.state.retries) == ("accept", retries, left)


def test_the_state_stays_bounded_however_long_the_run():
    settings = GuardSettings(max_nan_retries=3, nan_retry_window_steps=50)
    state, step, longest = GuardState(), 0, 0
    for turn in range(5000):
        judgement = judge(POISONED if turn % 20 == 0 else HEALTHY, state, settings, step)
        if judgement.action == "fail":
            pytest.fail("three refusals in 50 steps are allowed")
        state, step = judgement.state, step + (judgement.action == "accept")
        longest = max(longest, len(state.retries))
    assert longest == 3


def test_good_steps_between_do_not_reset_the_count_within_the_window():
    reports = [POISONED, HEALTHY, POISONED, HEALTHY, POISONED, HEALTHY, POISONED]
    judgements, state, step = run(reports, GuardSettings())
    assert [j.action for j in judgements] == ["skip", "accept"] * 3 + ["fail"]
    assert (state.retries, step) == ((0, 1, 2), 3)


def test_s20_a_nan_at_the_first_steps_is_counted_and_named_every_time():
    judgements, _, step = run([HEALTHY] + [POISONED] * 9, GuardSettings())
    assert [(j.action, j.reason, j.retries) for j in judgements[1:]] == [
        ("skip", "non_finite_loss", 0),
        ("skip", "non_finite_loss", 1),
        ("skip", "non_finite_loss", 2),
        ("fail", "non_finite_loss", 3),
    ]
    assert step == 1


def test_stopping_and_resuming_between_any_two_steps_changes_no_judgement():
    settings = GuardSettings(nan_retry_window_steps=3)
    reports = [POISONED if at in (1, 2, 6, 9) else HEALTHY for at in range(12)]
    whole, _, _ = run(reports, settings)
    for cut in range(len(reports)):
        first, state, step = run(reports[:cut], settings)
        rest, _, _ = run(reports[cut:], settings, GuardState(tuple(state.retries)), step)
        assert first + rest == whole


@pytest.mark.parametrize(
    ("threshold", "max_norm", "warned"),
    [(10.0, 1.0, True), (1.0, 1.0, True), (0.5, 1.0, False), (10.0, None, False)],
)
def test_a_threshold_that_clipping_makes_idle_is_warned_about(threshold, max_norm, warned):
    found = guard.warnings(GuardSettings(inf_post_clip_threshold=threshold), max_norm)
    assert len(found) == warned
    for text in found:
        assert "guard.inf_post_clip_threshold" in text
        assert "training.grad_clip_max_norm" in text
        assert "non-finite" in text
