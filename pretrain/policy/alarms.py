"""Alarms: raised once when a signal begins to stand out, cleared once it has not done so for a stretch of steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pretrain.policy.spikes import SIGNALS, Spike, SpikeSettings, SpikeState, Values, threshold_of

# An alarm is cleared by the first observation at least this many steps after the newest one that stood out: the
# twentieth of a signal that is seen at every step, the first of the update norm, which is measured every 32nd.
CLEAR_AFTER_STEPS = 20


@dataclass(frozen=True)
class Observation:
    """A signal as it was seen at one step.

    name: of the alarm, such as `loss_spike`. is_out: whether it stands out. threshold: the greatest value that does
    not. subject: which one, where an alarm watches several things of a kind.
    """

    name: str
    is_out: bool
    value: float
    threshold: float
    subject: str | None = None


@dataclass(frozen=True)
class Change:
    """An alarm that is `raised` or `cleared`, and the observation that made it so."""

    state: Literal["raised", "cleared"]
    seen: Observation


@dataclass(frozen=True)
class RaisedAlarm:
    """One that is raised; out_at_step: the newest step at which its signal stood out, or was not finite."""

    name: str
    subject: str | None
    out_at_step: int


@dataclass(frozen=True)
class AlarmState:
    """The alarms that are raised, by name and subject; it goes back with the trajectory.

    A rollback therefore leaves raised what was so at its target. It writes no alarm row: to one who reads the stream, a
    `rolled_back` row takes back the alarm rows of the steps after its own, as it does with their step rows.
    """

    raised: tuple[RaisedAlarm, ...] = ()


def update_alarms(seen: Sequence[Observation], step: int, state: AlarmState) -> tuple[tuple[Change, ...], AlarmState]:
    """Return what changes with the observations of `step`, in their order, and the state after it.

    At most one observation for each name and subject; one that is not raised and does not stand out may be left out.
    A value that is not finite neither raises an alarm, being the business of the guard, nor brings one nearer its end.
    """
    raised = {(alarm.name, alarm.subject): alarm for alarm in state.raised}
    changes: list[Change] = []
    for one in seen:
        key = (one.name, one.subject)
        is_finite = math.isfinite(one.value)
        if key not in raised:
            if one.is_out and is_finite:
                raised[key] = RaisedAlarm(*key, out_at_step=step)
                changes.append(Change("raised", one))
        elif one.is_out or not is_finite:
            raised[key] = RaisedAlarm(*key, out_at_step=step)
        elif step - raised[key].out_at_step >= CLEAR_AFTER_STEPS:
            del raised[key]
            changes.append(Change("cleared", one))
    return tuple(changes), AlarmState(
        tuple(sorted(raised.values(), key=lambda alarm: (alarm.name, alarm.subject or "")))
    )


def spike_observations(
    values: Values, spikes: Sequence[Spike], known: SpikeState, settings: SpikeSettings, state: AlarmState
) -> tuple[Observation, ...]:
    """Return what the alarms have to know of a step that was taken: the signals that stand out or did before.

    known: the healthy steps that `values` were compared with. Of the others nothing is asked, so that a healthy step
    without an alarm costs nothing.
    """
    found = {spike.signal: spike for spike in spikes}
    raised = {alarm.name for alarm in state.raised}
    seen: list[Observation] = []
    for signal in SIGNALS:
        name, value = f"{signal}_spike", values.get(signal)
        if signal in found:
            seen.append(Observation(name, True, found[signal].value, found[signal].threshold))
        elif name in raised and value is not None:
            threshold = threshold_of(signal, known, settings)
            if threshold is not None:
                seen.append(Observation(name, False, value, threshold))
    return tuple(seen)
