"""What a person asks of `pretrain plan`: the costs of a run, or the coordinate check and its picture."""

import os
from collections.abc import Sequence
from pathlib import Path

from pretrain import files
from pretrain.config import load
from pretrain.errors import ConfigError, StorageError
from pretrain.plan.coordinates import CoordinateCheck
from pretrain.plan.costs import Costs, costs_of
from pretrain.plan.widths import check_coordinates, widths_asked


def plan_asked(
    config: Path,
    overrides: Sequence[str],
    coordinate_check: bool = False,
    widths: str | None = None,
    output: Path | None = None,
) -> Costs | CoordinateCheck:
    """Return what is asked of a config file under `KEY=VALUE` overrides; only the picture is written, to `output`.

    Raises ConfigError and DataError for what `train` would refuse and for options that mean nothing together, and
    StorageError where the picture cannot be written.
    """
    if not coordinate_check:
        if widths is not None or output is not None:
            raise ConfigError("--widths and --output are of the coordinate check: use --coordinate-check too")
        return costs_of(load(config, overrides))
    if output is not None:
        _check_place(output)
    check = check_coordinates(load(config, overrides), widths_asked(widths))
    if output is not None:
        _write(output, check.picture())
    return check


def _check_place(output: Path) -> None:
    """Refuse a picture that could not be written, before the minutes that the check takes."""
    folder = output.parent
    if output.suffix != ".svg":
        raise ConfigError(f"--output: {output} must end in .svg, since that is what is written")
    if not folder.is_dir():
        raise ConfigError(f"--output: {output}: {folder} is no folder; make it, or choose another place")
    if output.is_dir():
        raise ConfigError(f"--output: {output} is a folder; choose a file name in it, such as {output / 'check.svg'}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"--output: {output}: {folder} is not writable; choose another place")


def _write(output: Path, picture: str) -> None:
    try:
        files.publish(output, picture.encode())
    except StorageError as error:
        reason = getattr(error.__cause__, "strerror", None) or error
        raise StorageError(
            f"--output: {output}: the picture cannot be written: {reason}; mend that or choose another place, and run "
            "the check again"
        ) from error
