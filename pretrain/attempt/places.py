"""Where a run may lie: in a folder, which its own config can name, and which holds no other run."""

import os
from pathlib import Path

from pretrain.attempt.show import resume_command
from pretrain.config import RunConfig, parse, to_yaml
from pretrain.errors import ConfigError
from pretrain.evidence import namespace


def refuse_unusable(run_dir: Path) -> None:
    """Refuse a run.dir that is, or lies under, something else than a folder; what is missing will be made."""
    nearest = next(place for place in (run_dir, *run_dir.parents) if os.path.lexists(place) or place == place.parent)
    if not nearest.is_dir():
        raise ConfigError(f"run.dir: {nearest} is no folder; choose another run.dir")


def check_readable(config: RunConfig) -> None:
    """Refuse a run that was moved to a path which its own config.yaml could not say."""
    try:
        same = parse(to_yaml(config), "config.yaml") == config
    except (ConfigError, UnicodeError):
        same = False
    if not same:
        raise ConfigError(f"run.dir: {config.run.dir!r} cannot stand in a config.yaml; move the run to a plainer path")


def refuse_old_run(run_dir: Path) -> None:
    """Refuse to begin a run where there is one."""
    if namespace.list_attempts(run_dir):
        raise ConfigError(
            f"run.dir: {run_dir} already holds attempts; go on with `{resume_command(run_dir)}`, "
            "or choose another run.dir"
        )


def refuse_another_folder(named: str, before: str, run_dir: Path) -> None:
    """Refuse a resume whose overrides name another run.dir than the run that it goes on with.

    named, before: `run.dir` with the overrides, and without.
    """
    if named != before and Path(named).resolve() != run_dir.resolve():
        raise ConfigError(
            f"run.dir: a resume opens its attempt in the run that it goes on with, {run_dir}, found {named}; leave "
            "run.dir out, or move or copy the whole folder and resume it there"
        )
