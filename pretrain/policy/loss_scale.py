"""What the loss of a float16 run is multiplied by, so that small gradients do not vanish and large ones fit."""

from dataclasses import dataclass

INITIAL, LEAST, LARGEST = 2.0**16, 1.0, 2.0**24
GROWTH_INTERVAL = 2000


@dataclass(frozen=True)
class LossScale:
    """The factor, and the accepted steps since it last changed; part of the trajectory, which a rollback puts back.

    scale: a power of two, so that dividing the gradients by it again loses nothing.
    """

    scale: float = INITIAL
    growth_tracker: int = 0


def on_accepted(state: LossScale) -> LossScale:
    """Return the scale after a step that was taken: twice as large after GROWTH_INTERVAL of them without overflow."""
    if state.growth_tracker + 1 < GROWTH_INTERVAL:
        return LossScale(state.scale, state.growth_tracker + 1)
    return LossScale(state.scale if state.scale >= LARGEST else state.scale * 2)


def can_fall(state: LossScale) -> bool:
    """Whether an overflow can be the scale's: at LEAST the loss is as it is, and so are its gradients."""
    return state.scale > LEAST


def on_overflow(state: LossScale) -> LossScale:
    """Return half the scale, for gradients that overflow with it and would not without."""
    return LossScale(max(state.scale / 2, LEAST))
