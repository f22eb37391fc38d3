"""Tools that are shown the rows of a run while it goes on; one row of a table per tracker."""

import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pretrain.errors import ConfigError
from pretrain.telemetry.trackers.tensorboard import TensorBoardSettings, TensorBoardTracker, tensorboard_command
from pretrain.telemetry.trackers.tracker import TrackedRun, Tracker, TrackerEntry
from pretrain.telemetry.trackers.wandb import WandbSettings, WandbTracker, wandb_command

# The name is that of the extra of this package, too.
TRACKERS: dict[str, TrackerEntry[Any]] = {
    "tensorboard": TrackerEntry(TensorBoardSettings, TensorBoardTracker, "tensorboard", tensorboard_command),
    "wandb": TrackerEntry(WandbSettings, WandbTracker, "wandb", wandb_command),
}


def places(trackers: Mapping[str, Any], run_dir: Path) -> list[tuple[str, str]]:
    """Return, for each tracker of a config, its name and the command that shows what it leaves."""
    ways = [(name, TRACKERS[name].shown_by, settings) for name, settings in trackers.items()]
    return [(name, shown_by(settings, run_dir)) for name, shown_by, settings in ways if shown_by is not None]


def check_installed(names: Iterable[str]) -> None:
    """Raise ConfigError for a tracker whose library is not there; nothing is imported."""
    for name in names:
        library = TRACKERS[name].library
        found = importlib.util.find_spec(library)
        # A folder of that name, such as the one that W&B leaves, is a package without a file to Python.
        if found is None or found.origin is None:
            raise ConfigError(
                f"telemetry.trackers.{name}: the library {library} is missing: pip install -e '.[{name}]' in the "
                f"clone, or set telemetry.trackers.{name}=null"
            )


__all__ = ["TRACKERS", "TrackedRun", "Tracker", "TrackerEntry", "check_installed", "places"]
