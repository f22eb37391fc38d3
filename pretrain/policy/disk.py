"""How much of a disk a run will need, from what is known of it at its start."""

from collections.abc import Sequence
from dataclasses import dataclass

# A file takes whole blocks. The rest are sizes as they are seen, or somewhat more, in bytes.
_BLOCK = 4096
_STEP_ROW, _VALIDATION_ROW, _CSV_ROW, _SAVED_EVENT = 280, 1600, 280, 700
_CELL = 48  # one value of a monitor row with its name, or of a block in the CSV
_RECORD = 16384  # checkpoint.json
_ATTEMPT = 65536  # config, environment, manifest, incidents


@dataclass(frozen=True)
class Need:
    """What will be written, at its most at one time: bytes and files; checkpoints: how many of them at a time."""

    bytes: int
    files: int
    checkpoints: int


@dataclass(frozen=True)
class Looks:
    """Rows that come every so many steps, and how many values each holds."""

    every: int
    values: int


def need_of(
    *,
    checkpoint_bytes: int,
    kept: int,
    steps: int,
    checkpoint_every: int,
    validate_every: int,
    domains: int,
    monitors: Sequence[Looks] = (),
    prefix_bytes: int = 0,
    csv_cells: int | None = None,
) -> Need:
    """What the `steps` that are left will need of the disk.

    kept: checkpoints that stay at a time; there is one more while it is saved. prefix_bytes: of the stream that a child
    begins with. csv_cells: values of a CSV row beyond the columns that all have; None = the CSV lies on another disk.
    """
    checkpoints = kept + 1
    streams = prefix_bytes + steps * _STEP_ROW
    streams += (steps // validate_every + 1) * domains * _VALIDATION_ROW
    streams += (steps // checkpoint_every + 2) * _SAVED_EVENT
    streams += sum(steps // looks.every * (_STEP_ROW + looks.values * _CELL) for looks in monitors if looks.every > 0)
    if csv_cells is not None:
        streams += steps * (_CSV_ROW + csv_cells * _CELL)
    each = -(-checkpoint_bytes // _BLOCK) * _BLOCK + _RECORD + _BLOCK
    # A checkpoint is a folder and two files, and one more with a temporary name; the attempt is some ten of its own.
    return Need(checkpoints * each + streams + _ATTEMPT, 3 * checkpoints + 1 + 16, checkpoints)


def is_short(needed: int, free: int | None) -> bool:
    """Whether less is free than is needed; what a system does not say is no shortage."""
    return free is not None and free < needed
