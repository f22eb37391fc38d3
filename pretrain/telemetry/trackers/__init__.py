"""Tools that are shown the rows of a run while it goes on; one row of a table per tracker."""

import importlib.util
from collections.abc import Iterable
from typing import Any

from pretrain.errors import ConfigError
from pretrain.telemetry.trackers.tensorboard import TensorBoardSettings, TensorBoardTracker
from pretrain.telemetry.trackers.tracker import TrackedRun, Tracker, TrackerEntry
from pretrain.telemetry.trackers.wandb import WandbSettings, WandbTracker

# The name is that of the extra of this package, too.
TRACKERS: dict[str, TrackerEntry[Any]] = {
    "tensorboard": TrackerEntry(TensorBoardSettings, TensorBoardTracker, "tensorboard"),
    "wandb": TrackerEntry(WandbSettings, WandbTracker, "wandb"),
}


def check_installed(names: Iterable[str]) -> None:
    """Raise ConfigError for a tracker whose library is not there; nothing is imported."""
    for name in names:
        library = TRACKERS[name].library
        found = importlib.util.find_spec(library)
        # A folder of that name, such as the one that W&B leaves, is a package without a file to Python.
        if found is None or found.origin is None:
            raise ConfigError(
                f"telemetry.trackers.{name}: the library {library} is missing: pip install 'pretrain[{name}]', or "
                f"set telemetry.trackers.{name}=null"
            )


__all__ = ["TRACKERS", "TrackedRun", "Tracker", "TrackerEntry", "check_installed"]
