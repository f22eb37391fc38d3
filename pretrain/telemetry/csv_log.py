"""telemetry.csv: one row per step, continued across resumes, rotated when the columns change."""

import itertools
import os
import re
import stat
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO

import numpy as np

from pretrain.errors import ConfigError
from pretrain.files import Appender
from pretrain.lock import Lock
from pretrain.telemetry.sink import Event, StepRow

Cell = float | int | str | None

COLUMNS = (
    *("attempt", "step", "batch", "loss", "learning_rate"),
    *("gradient_norm", "gradient_norm_clipped", "clip_ratio", "update_norm", "supervised"),
    *("tokens_per_second", "data_seconds", "compute_seconds", "optimizer_seconds", "evidence_seconds"),
    *("loss_scale", "memory_bytes", "gpu_temperature_c", "gpu_power_w", "gpu_utilization", "gpu_clock_mhz"),
    *("mfu", "action"),
)
_BLOCK = 1 << 16
_BLOCK_COLUMN = re.compile(r"block_[0-9]{2,}_gradient_norm")
_values = attrgetter(*COLUMNS)


def columns(num_blocks: int = 0) -> tuple[str, ...]:
    """The columns of a run: COLUMNS, then one gradient norm per block (0 = without them)."""
    return (*COLUMNS, *(_block_column(block) for block in range(num_blocks)))


def cells(row: StepRow) -> dict[str, Cell]:
    """The row's cells by column."""
    by_column: dict[str, Cell] = dict(zip(COLUMNS, _values(row), strict=True))
    for block, norm in enumerate(row.block_gradient_norms):
        by_column[_block_column(block)] = norm
    return by_column


class CsvLog:
    """A sink that writes step rows to a CSV.

    path: where it begins; where the file holds rows of the same columns they are continued without a second
    header, after a last line torn by a kill is dropped; where it holds other columns, the next free
    `name.NNN.csv` is begun (or the newest of those continued, if its columns are these), and a torn last line of
    the log that is left is dropped too. `self.path` is the file that is written. Floats are written as `repr`,
    which reads back to the same bits, non-finite ones as nan, inf and -inf; None is an empty cell.

    Raises ConfigError when the columns changed and `rotate` is off, or when no log can be kept at `path`; BusyError
    while another process writes there; StorageError when writing fails.
    """

    def __init__(self, path: Path, columns: Sequence[str], *, rotate: bool) -> None:
        assert len(set(columns)) == len(columns), "a column is named twice"
        self._columns = tuple(columns)
        self._known = frozenset(columns)
        header = _line(columns)
        _place(path, header, rotate=rotate)
        self._appender: Appender | None = None
        self._lock = _locked(path)
        try:
            newest, self.path, keep = _place(path, header, rotate=rotate)
            if newest != self.path:
                _drop_torn_line(newest)
            self._appender = Appender(self.path, keep)
            if keep == 0:
                self._appender.append(header)
        except BaseException:  # There is no object yet whose owner could close it.
            with self._lock:
                if self._appender is not None:
                    self._appender.close()
            raise

    def emit(self, event: Event) -> None:
        """Write the row of a step; other events are for other sinks."""
        if isinstance(event, StepRow):
            self.write(cells(event))

    def write(self, row: Mapping[str, Cell]) -> None:
        """Append one row in one write, so that a kill leaves it whole or torn at the end, never mixed.

        A column that `row` lacks is an empty cell. Raises StorageError, and then no part of the row stays.
        """
        assert self._appender is not None, "written to after close"
        assert row.keys() <= self._known, f"no such column: {sorted(row.keys() - self._known)}"
        self._appender.append(_line([_cell(row.get(name)) for name in self._columns]))

    def close(self) -> None:
        """Make the rows durable and close the file, so that a manifest can bind it; again does nothing."""
        appender, self._appender = self._appender, None
        with self._lock:
            if appender is not None:
                with appender:
                    appender.sync()


def check_place(path: Path, columns: Sequence[str], *, rotate: bool) -> None:
    """Raise the ConfigError or BusyError that a CsvLog at `path` would raise; nothing is written."""
    newest, file, _ = _place(path, _line(tuple(columns)), rotate=rotate)
    # Room for `.NNN`, by which a log is rotated.
    longest = os.pathconf(path.parent, "PC_NAME_MAX") - 4
    if len(os.fsencode(path.name)) > longest:
        raise ConfigError(f"telemetry.csv_log_path: {path}: its name is longer than {longest} bytes; choose another")
    for place in {path, newest, file}:
        if not os.access(place if os.path.lexists(place) else place.parent, os.W_OK):
            raise ConfigError(f"telemetry.csv_log_path: {place}: cannot be written there; choose another path")
    if os.path.lexists(path):
        _locked(path).release()


def _locked(path: Path) -> Lock:
    """Rows of two processes in one file could be told apart by nobody, and one would cut off the other's."""
    return Lock.acquire(path, f"telemetry.csv_log_path: {path}", "it")


def _block_column(block: int) -> str:
    return f"block_{block:02d}_gradient_norm"


def _cell(value: Cell) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        assert not set(value) & set(',"\r\n'), "a cell is one plain word"
        return value
    # float() first, for a numpy float has a repr that is not a number, and one of 32 bits is no `float` at all.
    return str(int(value)) if isinstance(value, int | np.integer) else repr(float(value))


def _line(words: Sequence[str]) -> bytes:
    return (",".join(words) + "\n").encode()


def _place(path: Path, header: bytes, *, rotate: bool) -> tuple[Path, Path, int]:
    """The newest file there, the one to write, and how many of its bytes to keep; 0 = begin it with the header."""
    if not path.parent.is_dir():
        raise ConfigError(
            f"telemetry.csv_log_path: {path}: the folder {path.parent} does not exist; make it, or choose another path"
        )
    if not os.path.lexists(path):
        return path, path, 0
    newest, free = path, path
    for number in itertools.count(1):
        free = path.with_name(f"{path.stem}.{number:03d}{path.suffix}")
        if not os.path.lexists(free):
            break
        newest = free
    keep = _continues(newest, header)
    if keep is not None:
        return newest, newest, keep
    if rotate:
        return newest, free, 0
    raise ConfigError(
        f"telemetry.csv_log_path: {newest} has other columns than this run: {_difference(newest, header)};"
        " set telemetry.csv_rotate_on_schema_change=true to begin a new file, or choose another path"
    )


def _continues(path: Path, header: bytes) -> int | None:
    """The bytes of whole lines in `path` if it has this header (0: the header is torn), else None."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise ConfigError(
                f"telemetry.csv_log_path: {path}: expected a regular file or none, found something"
                " else; choose another path"
            )
        with path.open("rb") as file:
            found = file.read(len(header))
            if found == header:
                return _end_of_last_line(file)
    except OSError as error:
        raise ConfigError(
            f"telemetry.csv_log_path: {path}: cannot be read: {error.strerror}; choose another path"
        ) from error
    # A file that is not ours has another beginning, and is never cut: it keeps all of its bytes.
    return 0 if header.startswith(found) else None


def _drop_torn_line(path: Path) -> None:
    """Cut what a kill tore off a log that is left for a new one, where all of its columns are names of ours.

    Nobody writes to it again, and half a number reads as a number.
    """
    with path.open("rb") as file:
        names = file.readline(_BLOCK).decode(errors="replace").rstrip("\n").split(",")
        end = _end_of_last_line(file)
        is_torn = end < file.seek(0, os.SEEK_END)
    is_ours = tuple(names[:5]) == COLUMNS[:5] and all(
        name in COLUMNS or _BLOCK_COLUMN.fullmatch(name) for name in names
    )
    if is_torn and is_ours:
        Appender(path, end).close()


def _end_of_last_line(file: BinaryIO) -> int:
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - _BLOCK)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _difference(path: Path, header: bytes) -> str:
    with path.open("rb") as file:
        found = file.readline(_BLOCK).decode(errors="replace").rstrip("\n").split(",")
    expected = header.decode().rstrip("\n").split(",")
    parts = [
        f"{word} {', '.join(names)}"
        for word, names in (
            ("missing there:", [name for name in expected if name not in found]),
            ("only there:", [name for name in found if name not in expected]),
        )
        if names
    ]
    return "; ".join(parts) or "the same names in another order"
