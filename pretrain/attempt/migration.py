"""Whether a child is another run than the checkpoint it goes on from, and whether it may be."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pretrain.attempt.origin import Origin
from pretrain.build import learning_rate_of
from pretrain.config import ABSENT, MIGRATABLE, RunConfig, difference, is_migratable, resumed
from pretrain.errors import ConfigError, IntegrityError

Keys = Mapping[str, tuple[Any, Any]]


def child_config(origin: Origin, overrides: Sequence[str], *, migrate: bool) -> tuple[RunConfig, Keys]:
    """Return the config of a child of `origin`, and what makes it another run than its checkpoint: key to old and new.

    An attempt that was migrated and died before its first checkpoint is migrated again by its child, to the same row.
    Raises ConfigError for what a resume may not change, and where a migration would change or train nothing.
    """
    config = resumed(origin.config, overrides, migrate=migrate)
    keys = _changed(origin, config)
    if migrate and origin.owner is None:
        raise ConfigError(
            f"--migrate: attempt {origin.number:04d} has no checkpoint to go on from; start another run instead"
        )
    if migrate and not keys:
        raise ConfigError(
            f"--migrate: nothing of {' and '.join(MIGRATABLE)} differs from what the checkpoint was trained with; "
            "resume without it, or give the keys to change"
        )
    if keys and config.training.max_steps <= origin.step:
        raise ConfigError(
            f"--migrate: training.max_steps is {config.training.max_steps}, the checkpoint is of step {origin.step}: "
            "no step is left to train; raise it"
        )
    return config, keys


def _changed(origin: Origin, config: RunConfig) -> Keys:
    if origin.owner is None:
        return {}
    changes = difference(origin.owner, config).refused
    strange = [change.key for change in changes if not is_migratable(change.key)]
    if strange:
        raise IntegrityError(
            f"{origin.checkpoint}: belongs to another configuration: {', '.join(strange)} of attempt "
            f"{origin.number:04d} differs from attempt {origin.folder.name}, and no resume may change it"
        )
    return {change.key: (_known(change.old), _known(change.new)) for change in changes}


def _known(value: Any) -> Any:
    return None if value == ABSENT else value


def jump(origin: Origin, config: RunConfig) -> str | None:
    """Say how far the learning rate jumps where another schedule takes over; None where it goes on as it was."""
    assert origin.owner is not None
    before, after = learning_rate_of(origin.owner)(origin.step), learning_rate_of(config)(origin.step)
    if math.isclose(before, after, rel_tol=1e-9):
        return None
    return f"the learning rate jumps from {before:.6g} to {after:.6g} at step {origin.step}, where the schedule changes"


def refuse_the_same_again(origin: Origin, config: RunConfig) -> None:
    """Raise ConfigError where a run that is done would go on from an older checkpoint to the end that it has."""
    done = origin.finished
    if done is not None and origin.step < done.latest.step and config.training.max_steps <= done.step:
        raise ConfigError(
            f"--checkpoint: attempt {origin.number:04d} is done at step {done.step}, and comes to the same end from "
            f"step {origin.step}; raise training.max_steps, or change scheduler.* with --migrate"
        )


def refuse_passed_over(origin: Origin) -> None:
    """Raise IntegrityError where something newer than the checkpoint of `origin` is none, or does not verify."""
    if origin.passed_over:
        first, *rest = origin.passed_over
        raise IntegrityError(
            f"--require-latest: {first}", *rest, f"without --require-latest the resume goes on from step {origin.step}"
        )
