"""What a person asks of `pretrain plan`: the costs of a run, or the coordinate check and its picture."""

from collections.abc import Sequence
from pathlib import Path

from pretrain import files
from pretrain.config import load
from pretrain.errors import ConfigError
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
    if output is not None and output.suffix != ".svg":
        raise ConfigError(f"--output: {output} must end in .svg, since that is what is written")
    check = check_coordinates(load(config, overrides), widths_asked(widths))
    if output is not None:
        files.publish(output, check.picture().encode())
    return check
