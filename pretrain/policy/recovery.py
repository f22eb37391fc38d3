"""The ladder of recovery: skip, roll back, roll back further and slower, stop; and the way down again."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pretrain.policy.spikes import Spike, SpikeSettings

Action = Literal["accept", "skip", "roll_back", "stop"]
Window = tuple[int, int]

GROUND, SKIPPED, ROLLED_BACK, SLOWED = 0, 1, 2, 3
# A batch that stands out is most often an outlier. When this many in a row do, under the same weights, it is not the
# batches: the state is at fault.
SKIPS_IN_A_ROW = 2
# And when this many do before the run is back on the ground, skipping is no cure either.
SKIPS = 16
# Checkpoints that can be gone back to. Retention keeps as many of each attempt, whatever else it keeps.
TARGETS = 2


@dataclass(frozen=True)
class LadderState:
    """Where a run stands on the ladder; it belongs to the ledger, which never goes back.

    rung: GROUND, SKIPPED, ROLLED_BACK or SLOWED; on the ground the four counts below are 0.
    skips, skips_in_a_row: spikes that were skipped since the last rollback or the ground, and since the last step.
    rollbacks: those since the ground.
    healthy: steps that were taken and kept since the last skip, rollback or climb down.
    learning_rate_factor: what the schedule is multiplied by; it only falls.
    rewarm_from: completed steps at which the rate begins to rise to that factor, None = it never fell.
    quarantined: first and last batch of each window that is not read again; ascending, apart from each other.
    """

    rung: int = GROUND
    skips: int = 0
    skips_in_a_row: int = 0
    rollbacks: int = 0
    healthy: int = 0
    learning_rate_factor: float = 1.0
    rewarm_from: int | None = None
    quarantined: tuple[Window, ...] = ()


@dataclass(frozen=True)
class Target:
    """A checkpoint of the regular cadence: completed steps and consumed batches."""

    step: int
    batch: int


@dataclass(frozen=True)
class Decision:
    """What to do, and the ladder after it: `accept`, `skip` the step, `roll_back` to `target`, or `stop`."""

    action: Action
    state: LadderState
    target: Target | None = None


def newest_targets(targets: Iterable[Target], state: LadderState) -> list[Target]:
    """Return what can be gone back to, ascending: the newest TARGETS, none from before the last slowing.

    What else lies on the disk depends on where the run was stopped and what its retention keeps, and may be undone.
    """
    found = sorted(targets, key=lambda target: target.step)
    return [target for target in found if is_behind_slowing(target.step, state)][-TARGETS:]


def is_behind_slowing(step: int, state: LadderState) -> bool:
    """Whether the run may go back to `step`: to before its last slowing it never does."""
    return state.rewarm_from is None or step >= state.rewarm_from


def on_spike(
    spike: Spike, state: LadderState, targets: Sequence[Target], batch: int, settings: SpikeSettings
) -> Decision:
    """Decide about the strongest spike of global batch `batch`, before its step is taken.

    targets: what can be gone back to, ascending. An update that stands out has been taken already: it is damage.
    """
    if spike.action == "record":
        return Decision("accept", state)
    in_a_row = state.skips_in_a_row >= SKIPS_IN_A_ROW and spike.action == "roll_back"
    if spike.signal == "update" or in_a_row or state.skips >= SKIPS:
        return on_damage(state, targets, batch, settings)
    skipped = replace(
        state,
        rung=max(state.rung, SKIPPED),
        skips=state.skips + 1,
        skips_in_a_row=state.skips_in_a_row + 1,
        healthy=0,
    )
    return Decision("skip", skipped)


def on_damage(state: LadderState, targets: Sequence[Target], batch: int, settings: SpikeSettings) -> Decision:
    """Decide when the state itself is damaged: back to the newest target, or the next time further and slower.

    What was read from the target on, `batch` included, led here: it is quarantined.
    """
    if state.rollbacks >= settings.max_rollbacks or not targets:
        return Decision("stop", state)
    again = state.rollbacks > 0
    # The newest checkpoint may hold the damage already, from before it showed.
    target = targets[-2] if again and len(targets) > 1 else targets[-1]
    slower = replace(
        state,
        learning_rate_factor=state.learning_rate_factor * settings.learning_rate_factor,
        rewarm_from=target.step,
    )
    climbed = replace(
        slower if again else state,
        rung=SLOWED if again else max(state.rung, ROLLED_BACK),
        skips=0,
        skips_in_a_row=0,
        rollbacks=state.rollbacks + 1,
        healthy=0,
        quarantined=_joined((*state.quarantined, (target.batch, batch))),
    )
    return Decision("roll_back", climbed, target)


def on_healthy(state: LadderState, settings: SpikeSettings) -> LadderState:
    """Return the ladder after a step that was taken and kept; a long stretch of them climbs down one rung.

    A spike that is only recorded does not break the stretch. The learning rate stays lowered, and what is quarantined
    stays so: the run has shown what it does not bear.
    """
    if state.rung == GROUND:
        return state
    healthy = state.healthy + 1
    if healthy < settings.healthy_steps:
        return replace(state, skips_in_a_row=0, healthy=healthy)
    rung = state.rung - 1
    if rung == GROUND:
        return replace(state, rung=rung, skips=0, skips_in_a_row=0, rollbacks=0, healthy=0)
    return replace(state, rung=rung, skips_in_a_row=0, healthy=0)


def learning_rate_multiplier(state: LadderState, step: int, settings: SpikeSettings) -> float:
    """Return what the schedule's rate is multiplied by for the step after `step` completed ones.

    From the rollback on it rises from 1 / rewarm_steps of the factor to the factor, in `rewarm_steps` steps.
    """
    if state.rewarm_from is None:
        return state.learning_rate_factor
    # Nothing goes back further than the last slowing did without slowing again.
    assert step >= state.rewarm_from, "a step before the rollback that the rise began at"
    done = step + 1 - state.rewarm_from
    if done >= settings.rewarm_steps:
        return state.learning_rate_factor
    return state.learning_rate_factor * done / settings.rewarm_steps


def _joined(windows: Sequence[Window]) -> tuple[Window, ...]:
    """Return the windows in their order, those that meet made one."""
    joined: list[Window] = []
    for first, last in sorted(windows):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return tuple(joined)
