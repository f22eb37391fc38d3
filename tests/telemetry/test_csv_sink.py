"""A CSV whose disk is full or broken costs rows and a warning, and never the run."""

import errno
import os
from functools import partial
from pathlib import Path

import pytest

from pretrain import syscalls
from pretrain.errors import ConfigError
from pretrain.telemetry.csv_log import CsvLog, columns
from pretrain.telemetry.csv_sink import CsvSink
from pretrain.telemetry.sink import Note, StepRow


class Failing(syscalls.System):
    """A disk that refuses the writes, or the fsyncs, while it is told to."""

    def __init__(self) -> None:
        self.writes = self.fsyncs = False

    def write(self, fd: int, data: memoryview) -> int:
        if self.writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(fd, data)

    def fsync(self, fd: int) -> None:
        if self.fsyncs:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Failing:
    failing = Failing()
    monkeypatch.setattr(syscalls, "system", failing)
    return failing


def row(step: int) -> StepRow:
    return StepRow(attempt=1, step=step, batch=step - 1, loss=1.0, learning_rate=0.1, action="accept")


def opened(path: Path, said: list[str]) -> CsvSink:
    return CsvSink(partial(CsvLog, path, columns(), rotate=True), said.append)


def steps(path: Path) -> list[str]:
    return [line.split(",")[1] for line in path.read_text().splitlines()[1:]]


def test_rows_are_written(tmp_path: Path, disk: Failing) -> None:
    said: list[str] = []
    sink = opened(tmp_path / "steps.csv", said)
    for event in (row(1), Note(kind="saved", text="x"), row(2)):
        sink.emit(event)
    sink.close()
    sink.close()
    sink.emit(row(3))
    assert (steps(tmp_path / "steps.csv"), said) == (["1", "2"], [])


def test_a_full_disk_leaves_a_gap_and_no_torn_row(tmp_path: Path, disk: Failing) -> None:
    said: list[str] = []
    sink = opened(tmp_path / "steps.csv", said)
    for step in range(1, 8):
        disk.writes = 3 <= step <= 5
        sink.emit(row(step))
    sink.close()
    assert steps(tmp_path / "steps.csv") == ["1", "2", "6", "7"]
    first, last = said
    assert first.startswith("the training goes on, the row of step 3 is missing in the CSV: ")
    assert "No space left on device" in first
    assert last == f"{tmp_path / 'steps.csv'}: 3 rows are missing, because they could not be written"


def test_one_row_is_said_once(tmp_path: Path, disk: Failing) -> None:
    said: list[str] = []
    sink = opened(tmp_path / "steps.csv", said)
    disk.writes = True
    sink.emit(row(1))
    disk.writes = False
    sink.close()
    assert len(said) == 1


def test_a_log_that_cannot_be_begun(tmp_path: Path, disk: Failing) -> None:
    said: list[str] = []
    disk.writes = True
    sink = opened(tmp_path / "steps.csv", said)
    disk.writes = False
    sink.emit(row(1))
    sink.close()
    (text,) = said
    assert text.startswith("there is no CSV of this attempt: ")
    assert (tmp_path / "steps.csv").read_bytes() == b""


def test_rows_that_do_not_become_durable(tmp_path: Path, disk: Failing) -> None:
    said: list[str] = []
    sink = opened(tmp_path / "steps.csv", said)
    sink.emit(row(1))
    disk.fsyncs = True
    sink.close()
    (text,) = said
    assert text.startswith("the newest rows of the CSV may be lost: ")


def test_what_is_wrong_with_the_path_is_no_fault_of_the_disk(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        opened(tmp_path / "none" / "steps.csv", [])
