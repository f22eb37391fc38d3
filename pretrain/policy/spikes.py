"""Whether a step stands out from the healthy steps before it: robust location and scale of three signals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Literal

from pretrain.registry import limited

Signal = Literal["loss", "gradient", "update"]
SIGNALS: tuple[Signal, ...] = ("loss", "gradient", "update")
# The stronger, the later.
ACTIONS = ("record", "skip", "roll_back")
Values = Mapping[Signal, float | None]

# What a value has over the mean of its two neighbours varies by the root of 3/2 times what the values do; a twentieth
# of normal ones is more than 1.645 standard deviations up, and half of them less than 0.6745 away.
_UPPER_TWENTIETH = 1.645 * math.sqrt(1.5)
_MIDDLE = 0.6745 * math.sqrt(1.5)
# The least scale that is believed, since a window can be calmer than the run: of the loss, as a share of it; of a norm,
# in nats. Six of them are 15 % of a loss, a factor of 20 of a gradient norm, which jumps by 6 to 14 now and then in a
# sound run at a high rate without any harm, and a factor of 6 of an update norm.
_LEAST_SCALE: Mapping[Signal, float] = {"loss": 0.025, "gradient": 0.5, "update": 0.3}
# The update norm takes a copy of the parameters, which costs more than the update: it is measured every so many steps.
# No setting of the telemetry moves it, since it stands in the metric stream and can decide.
UPDATE_EVERY_N_STEPS = 32
# No signal is judged by fewer values than this; the update norm is seen seldom, and varies least.
_LEAST_KNOWN: Mapping[Signal, int] = {"loss": 16, "gradient": 16, "update": 6}
_LAST = 16
_SMALLEST = 1e-300


@dataclass(frozen=True)
class SignalSettings:
    """How far the loss or the gradient norm may stand out, and what is done when it stands out further.

    action: `record` it and go on; `skip` the step, before the weights move, up to 16 times before the run goes back;
        `roll_back` once two steps in a row have been skipped and the next one stands out as well.
    threshold: robust standard deviations above the recent healthy steps, of a norm in its logarithm; the default is
        15 % of a loss, or a factor of 20 of a norm, where these vary little, and more where they vary more.
    """

    action: str = limited("record", choices=ACTIONS)
    threshold: float = limited(6.0, above=0)


@dataclass(frozen=True)
class UpdateSignalSettings:
    """How far the update norm, which is only known once the weights have moved, may stand out.

    action: `record` it and go on, or `roll_back`.
    threshold: robust standard deviations of its logarithm above the recent healthy steps.
    """

    action: str = limited("record", choices=("record", "roll_back"))
    threshold: float = limited(6.0, above=0)


@dataclass(frozen=True)
class SpikeSettings:
    """When a step is a spike, and how the run recovers from one.

    loss: the mean loss of the step.
    gradient: the global gradient norm before clipping.
    update: the norm of the update over its learning rate, at the steps at which it is measured.
    window_steps: the newest healthy values of each signal, which a step is compared with.
    warmup_steps: healthy steps that must be known before anything is called a spike.
    max_rollbacks: rollbacks before the run has climbed down the whole ladder; one more is exit code 4.
    learning_rate_factor: what the learning rate is multiplied by at every rollback but the first.
    rewarm_steps: steps over which a lowered learning rate is reached from zero.
    healthy_steps: healthy steps in a row after which the run climbs down one rung of the ladder, which is skip, roll
        back, roll back slower.
    targets_in_memory: newest rollback targets, of which there are two, that are kept in memory too; 0 = they are read
        from the disk.
    """

    loss: SignalSettings = field(default_factory=lambda: SignalSettings("roll_back"))
    gradient: SignalSettings = field(default_factory=lambda: SignalSettings("skip"))
    update: UpdateSignalSettings = field(default_factory=UpdateSignalSettings)
    window_steps: int = limited(128, at_least=16)
    warmup_steps: int = limited(100, at_least=16)
    max_rollbacks: int = limited(3, at_least=0)
    learning_rate_factor: float = limited(0.5, above=0, at_most=1)
    rewarm_steps: int = limited(50, at_least=0)
    healthy_steps: int = limited(500, at_least=1)
    targets_in_memory: int = limited(1, at_least=0, at_most=2)


@dataclass(frozen=True)
class SpikeState:
    """What is known of the healthy steps; it goes back with the trajectory.

    steps: how many there were. loss, gradient, update: the newest values of each signal, oldest first.
    """

    steps: int = 0
    loss: tuple[float, ...] = ()
    gradient: tuple[float, ...] = ()
    update: tuple[float, ...] = ()


@dataclass(frozen=True)
class Spike:
    """A signal that stands out: its value, the greatest value that would have passed, and its robust deviations."""

    signal: Signal
    action: str
    value: float
    threshold: float
    deviations: float


def find_spikes(values: Values, state: SpikeState, settings: SpikeSettings) -> tuple[Spike, ...]:
    """Return every signal that stands out, the strongest action first, then the furthest; empty = healthy.

    values: None, or absent, where a signal is not measured at this step. A value that is not finite is no spike: it is
    the guard's business. Only upward is out: a loss that falls is what a run is for.
    """
    if state.steps < settings.warmup_steps:
        return ()
    found = [spike for signal in SIGNALS if (spike := _judge(signal, values.get(signal), state, settings)) is not None]
    return tuple(sorted(found, key=lambda spike: (-ACTIONS.index(spike.action), -spike.deviations)))


def warnings(settings: SpikeSettings, max_steps: int) -> tuple[str, ...]:
    """What a person should know about settings that differ from the defaults; nothing here is an error."""
    found = []
    if settings != SpikeSettings() and settings.warmup_steps >= max_steps:
        found.append(
            f"spikes.warmup_steps ({settings.warmup_steps}) is not below training.max_steps ({max_steps}): no step is "
            "ever called a spike"
        )
    judged = UPDATE_EVERY_N_STEPS * (_LEAST_KNOWN["update"] + 1)
    if settings.update.action != "record" and max_steps < judged:
        found.append(
            f"spikes.update.action is {settings.update.action}, and training.max_steps ({max_steps}) is below {judged}:"
            " the update norm is not judged before that step"
        )
    return tuple(found)


def threshold_of(signal: Signal, state: SpikeState, settings: SpikeSettings) -> float | None:
    """Return the greatest value of the signal that would pass, None where too little is known to judge it."""
    known: tuple[float, ...] = getattr(state, signal)
    if state.steps < settings.warmup_steps or len(known) < _LEAST_KNOWN[signal]:
        return None
    scale = max(_LEAST_SCALE[signal], _spread(known))
    return _passing(signal, _location(signal, known), getattr(settings, signal).threshold * scale)


def remember(values: Values, spikes: Sequence[Spike], state: SpikeState, settings: SpikeSettings) -> SpikeState:
    """Return the state after a step that was taken; a rejected one is not remembered.

    Neither what is not finite nor a signal among `spikes` (one that is only recorded) enters what it is compared with.
    """
    out = {spike.signal for spike in spikes}
    known = {
        signal: _longer(getattr(state, signal), None if signal in out else values.get(signal), settings)
        for signal in SIGNALS
    }
    return SpikeState(steps=state.steps + 1, **known)


def _judge(signal: Signal, value: float | None, state: SpikeState, settings: SpikeSettings) -> Spike | None:
    known: tuple[float, ...] = getattr(state, signal)
    if value is None or not math.isfinite(value) or len(known) < _LEAST_KNOWN[signal]:
        return None
    own: SignalSettings | UpdateSignalSettings = getattr(settings, signal)
    location = _location(signal, known)
    # Batches move a loss by a share of it, up as far as down; a norm varies by factors.
    excess = value / location - 1 if signal == "loss" else math.log(max(value, _SMALLEST) / location)
    scale = _LEAST_SCALE[signal]
    # Nearly every step ends here; the scale of the window costs as much again, and can only be larger.
    if excess <= own.threshold * scale:
        return None
    scale = max(scale, _spread(known))
    if excess <= own.threshold * scale:
        return None
    return Spike(signal, own.action, value, _passing(signal, location, own.threshold * scale), excess / scale)


def _passing(signal: Signal, location: float, allowed: float) -> float:
    """Return the greatest value that passes where `allowed` is the greatest excess that does."""
    return location * (1 + allowed if signal == "loss" else math.exp(min(allowed, 700.0)))


def _location(signal: Signal, known: Sequence[float]) -> float:
    # The lowest median of the four quarters: a signal that falls leaves its past behind, and one that creeps up does
    # not take what it is compared with along.
    ends = [len(known) * part // 4 for part in range(5)]
    lowest = min(median(known[begin:end]) for begin, end in pairwise(ends))
    # But a gradient norm rises and stays there while a model learns fast, with a falling loss: what stands out does so
    # from the last ones too. Nothing is remembered of a step that was skipped, so that it could never catch up.
    return max(lowest, median(known[-_LAST:]) if signal == "gradient" else 0.0, _SMALLEST)


def _spread(values: Sequence[float]) -> float:
    """Return the robust standard deviation of the logarithm of values about its trend, upward.

    It is read off the upper twentieth, since the norms of healthy steps have a long upper tail, above all with small
    batches; but no more than doubled by it, so that spikes among the first values, before any was judged, do not count.
    """
    logs = [math.log(max(value, _SMALLEST)) for value in values]
    over = sorted(value - (before + after) / 2 for before, value, after in zip(logs, logs[1:], logs[2:], strict=False))
    return min(over[len(over) * 19 // 20] / _UPPER_TWENTIETH, 2 * median(map(abs, over)) / _MIDDLE)


def _longer(known: tuple[float, ...], value: float | None, settings: SpikeSettings) -> tuple[float, ...]:
    if value is None or not math.isfinite(value):
        return known
    return (*known, value)[-settings.window_steps :]
