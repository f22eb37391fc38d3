"""telemetry.csv: what a row reads back to, and what happens to a file that is there already."""

import contextlib
import csv
import math
import os
import re
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain import syscalls
from pretrain.errors import BusyError, ConfigError, StorageError
from pretrain.telemetry.csv_log import COLUMNS, CsvLog, cells, check_place, columns
from pretrain.telemetry.sink import Begin, Note, StepRow

HEADER = (
    "attempt,step,batch,loss,learning_rate,gradient_norm,gradient_norm_clipped,clip_ratio,update_norm,supervised,"
    "tokens_per_second,data_seconds,compute_seconds,optimizer_seconds,evidence_seconds,loss_scale,memory_bytes,"
    "gpu_temperature_c,gpu_power_w,gpu_utilization,gpu_clock_mhz,mfu,action"
)


def row(step: int, **more) -> StepRow:
    given = {"attempt": 1, "batch": step - 1, "loss": 0.1 + step, "learning_rate": 3e-3, "action": "accept"}
    return StepRow(**{**given, "step": step, **more})


def write(path: Path, *rows: StepRow, blocks: int = 0, rotate: bool = True) -> Path:
    log = CsvLog(path, columns(blocks), rotate=rotate)
    for each in rows:
        log.emit(each)
    log.close()
    return log.path


def steps(path: Path) -> list[str]:
    with path.open(newline="") as file:
        return [each["step"] for each in csv.DictReader(file)]


def test_the_columns_are_those_of_the_format():
    assert ",".join(COLUMNS) == HEADER
    assert columns(2)[len(COLUMNS) :] == ("block_00_gradient_norm", "block_01_gradient_norm")
    assert columns(101)[-1] == "block_100_gradient_norm"
    contract = Path(__file__).parents[3] / "shared" / "FORMATS.md"
    if not contract.exists():
        pytest.skip("../shared/FORMATS.md is absent")
    listed = re.search(r"^telemetry\.csv +(.*?), then block_NN", contract.read_text(), re.MULTILINE | re.DOTALL)
    more = {"gpu_clock_mhz"}  # decision 0021
    assert tuple(listed[1].split()) == tuple(name for name in COLUMNS if name not in more)


def test_a_row_reads_back_to_the_same_bits(tmp_path):
    values = {
        "loss": 0.1 + 0.2,
        "learning_rate": 5e-324,
        "gradient_norm": np.float64(1 / 3),
        "clip_ratio": math.nan,
        "gradient_norm_clipped": math.inf,
        "update_norm": -math.inf,
        "supervised": np.int64(2048),
    }
    path = write(tmp_path / "telemetry.csv", row(1, block_gradient_norms=(1e-40, None), **values), blocks=2)
    lines = path.read_text().splitlines()
    assert lines[0] == HEADER + ",block_00_gradient_norm,block_01_gradient_norm"
    with path.open(newline="") as file:
        (found,) = csv.DictReader(file)
    for name, value in values.items():
        assert struct.pack("<d", float(found[name])) == struct.pack("<d", value), name
    assert found["loss"] == "0.30000000000000004"
    assert (found["clip_ratio"], found["gradient_norm_clipped"], found["update_norm"]) == (
        "nan",
        "inf",
        "-inf",
    )
    assert (found["supervised"], found["step"], found["action"]) == ("2048", "1", "accept")
    assert (found["block_00_gradient_norm"], found["block_01_gradient_norm"]) == ("1e-40", "")
    assert (found["mfu"], found["gpu_temperature_c"]) == ("", "")


NUMBERS = st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0])
SINGLES = st.integers(0, 2**32 - 1).map(lambda bits: np.array(bits, np.uint32).view(np.float32)[()])
HALVES = st.integers(0, 2**16 - 1).map(lambda bits: np.array(bits, np.uint16).view(np.float16)[()])
EXTREMES = [0.0, -0.0, 5e-324, -5e-324, 2.2250738585072009e-308, 1.7976931348623157e308, math.nan, math.inf, -math.inf]


@given(
    values=st.lists(
        st.one_of(NUMBERS, SINGLES, HALVES, NUMBERS.map(np.float64), st.sampled_from(EXTREMES)),
        min_size=4,
        max_size=4,
    )
)
def test_s35_any_float_reads_back_to_the_same_bits(values):
    """Case S35: over random bit patterns, subnormal ones, -0.0 and numpy's scalars among them; a NaN is a NaN."""
    names = ("loss", "learning_rate", "gradient_norm", "update_norm")
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "t.csv", row(1, **dict(zip(names, values, strict=True))))
        with path.open(newline="") as file:
            (found,) = csv.DictReader(file)
    for name, value in zip(names, values, strict=True):
        if math.isnan(value):
            assert found[name] == "nan"
        else:
            assert struct.pack("<d", float(found[name])) == struct.pack("<d", value), (found[name], value)
            assert float(type(value)(found[name])) == float(value)


def test_every_step_row_has_a_cell_for_every_column():
    assert tuple(cells(row(1, block_gradient_norms=(1.0, 2.0)))) == columns(2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"colour": 1.0}, "colour"), ({"action": "a,b"}, "word"), ({"action": "a\nb"}, "word")],
)
def test_what_is_no_cell_is_not_written(tmp_path, wrong, message):
    log = CsvLog(tmp_path / "t.csv", columns(), rotate=True)
    with pytest.raises(AssertionError, match=message):
        log.write(wrong)
    log.close()
    assert (tmp_path / "t.csv").read_text() == HEADER + "\n"


def test_other_events_are_for_other_sinks(tmp_path):
    log = CsvLog(tmp_path / "t.csv", columns(), rotate=True)
    log.emit(Begin(attempt="a", step=0, max_steps=1, unit="tokens"))
    log.emit(Note(kind="saved", text="step 1"))
    log.close()
    log.close()
    assert (tmp_path / "t.csv").read_text() == HEADER + "\n"


def test_the_same_columns_are_continued_without_a_second_header(tmp_path):
    path = tmp_path / "telemetry.csv"
    for step in (1, 2, 3):
        assert write(path, row(step)) == path
    assert path.read_text().count("attempt") == 1
    assert steps(path) == ["1", "2", "3"]


def test_a_kill_at_any_byte_costs_the_torn_line_and_nothing_else(tmp_path):
    path = tmp_path / "telemetry.csv"

    def write_short(*steps):
        with contextlib.closing(CsvLog(path, ("step", "loss", "action"), rotate=True)) as log:
            for step in steps:
                log.write({"step": step, "loss": 0.5, "action": "accept"})

    write_short(1, 2)
    whole = path.read_bytes()
    assert whole == b"step,loss,action\n1,0.5,accept\n2,0.5,accept\n"
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        write_short(9)
        kept = whole[: max(end for end in [ends[0], *ends] if end <= cut or end == ends[0])]
        assert path.read_bytes() == kept + b"9,0.5,accept\n", cut
    assert os.listdir(tmp_path) == ["telemetry.csv"]


def test_a_tail_longer_than_a_block_without_a_newline_is_dropped(tmp_path):
    path = tmp_path / "telemetry.csv"
    write(path, row(1))
    with path.open("ab") as file:
        file.write(bytes(200_000))  # what a power cut leaves of data that never reached the disk
    write(path, row(2))
    assert steps(path) == ["1", "2"]


def test_changed_columns_rotate_to_the_next_free_name_and_back(tmp_path):
    path = tmp_path / "telemetry.csv"
    first = write(path, row(1))
    assert first == path
    assert write(path, row(2), blocks=1).name == "telemetry.001.csv"
    assert write(path, row(3), blocks=1).name == "telemetry.001.csv"  # the newest has these columns
    assert write(path, row(4)).name == "telemetry.002.csv"  # never back into an older file: rows stay in order
    assert write(path, row(5)).name == "telemetry.002.csv"
    assert {name.name: steps(name) for name in sorted(tmp_path.iterdir())} == {
        "telemetry.001.csv": ["2", "3"],
        "telemetry.002.csv": ["4", "5"],
        "telemetry.csv": ["1"],
    }


def test_a_torn_line_does_not_stay_behind_in_a_log_that_is_left(tmp_path):
    """Half a number reads as a number, and nobody writes to that file again."""
    path = tmp_path / "telemetry.csv"
    write(path, row(1), row(2))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert write(path, row(2), blocks=1).name == "telemetry.001.csv"
    assert path.read_bytes() == whole[: whole[:-1].rfind(b"\n") + 1]
    assert (steps(path), steps(tmp_path / "telemetry.001.csv")) == (["1"], ["2"])


@pytest.mark.parametrize("there", [b"step,loss\n1,2", HEADER.encode() + b",colour\n1,2", HEADER.encode()[:-3]])
def test_what_looks_torn_in_a_file_that_is_not_ours_stays(tmp_path, there):
    path = tmp_path / "telemetry.csv"
    path.write_bytes(there)
    assert write(path, row(1), blocks=1).name in ("telemetry.001.csv", "telemetry.csv")
    assert path.read_bytes().startswith(there)


def test_a_file_that_is_not_ours_keeps_every_byte(tmp_path):
    path = tmp_path / "notes.csv"
    path.write_bytes(b"no newline here, and not our header")
    assert write(path, row(1)).name == "notes.001.csv"
    assert path.read_bytes() == b"no newline here, and not our header"


@pytest.mark.parametrize(
    ("there", "message"),
    [
        ("step,loss\n1,2\n", "missing there: attempt, batch"),
        (HEADER + ",colour\n", "only there: colour"),
        (HEADER.replace("attempt,step", "step,attempt") + "\n", "another order"),
    ],
)
def test_with_rotation_off_changed_columns_are_refused(tmp_path, there, message):
    path = tmp_path / "telemetry.csv"
    path.write_text(there)
    with pytest.raises(ConfigError, match=message) as raised:
        write(path, row(1), rotate=False)
    assert "telemetry.csv_rotate_on_schema_change" in str(raised.value)
    assert os.listdir(tmp_path) == ["telemetry.csv"]
    assert path.read_text() == there


def test_a_path_that_can_hold_no_log_is_refused_and_named(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "link.csv").symlink_to(tmp_path / "target.csv")
    os.mkfifo(tmp_path / "fifo.csv")
    for name in ("folder.csv", "link.csv", "fifo.csv", "nowhere/t.csv"):
        with pytest.raises(ConfigError, match=r"telemetry\.csv_log_path.*" + re.escape(name)):
            CsvLog(tmp_path / name, columns(), rotate=True)
    assert not (tmp_path / "target.csv").exists()


def test_a_row_is_one_write_and_a_full_disk_leaves_whole_rows(tmp_path, monkeypatch):
    written = []

    class Full(syscalls.System):
        def write(self, fd, data):
            if len(written) == 3:
                os.write(fd, data[:7])
                raise OSError(28, "No space left on device")
            written.append(bytes(data))
            return os.write(fd, data)

    log = CsvLog(tmp_path / "t.csv", columns(), rotate=True)
    monkeypatch.setattr(syscalls, "system", Full())
    for step in (1, 2, 3):
        log.emit(row(step))
    assert [data.count(b"\n") for data in written] == [1, 1, 1]
    with pytest.raises(StorageError, match=r"t\.csv"):
        log.emit(row(4))
    log.close()
    assert steps(tmp_path / "t.csv") == ["1", "2", "3"]


def test_closing_makes_the_rows_durable(tmp_path, monkeypatch):
    synced = []

    class Counting(syscalls.System):
        def fsync(self, fd):
            synced.append(fd)

    log = CsvLog(tmp_path / "t.csv", columns(), rotate=True)
    monkeypatch.setattr(syscalls, "system", Counting())
    log.emit(row(1))
    assert synced == []
    log.close()
    assert len(synced) == 1


def test_a_log_that_another_process_writes_is_busy_until_it_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    first = CsvLog(path, COLUMNS, rotate=True)
    for call in (CsvLog, check_place):
        with pytest.raises(BusyError, match="another process writes it"):
            call(path, COLUMNS, rotate=True)
    first.close()
    first.close()
    check_place(path, COLUMNS, rotate=True)
    CsvLog(path, COLUMNS, rotate=True).close()
    assert path.read_text().count("\n") == 1


def test_a_place_that_cannot_be_written_is_refused_before_anything_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="longer than 251 bytes"):
        check_place(tmp_path / ("n" * 300 + ".csv"), COLUMNS, rotate=True)
    # Root may write anywhere; on a file system that is mounted read-only it is told so as well.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match="cannot be written there"):
        check_place(tmp_path / "log.csv", COLUMNS, rotate=True)
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_cannot_be_begun_holds_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(syscalls.System):
        def write(self, fd: int, data: memoryview) -> int:
            raise OSError(28, "No space left on device")

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(syscalls, "system", Full())
        with pytest.raises(StorageError, match="No space left"):
            CsvLog(tmp_path / "log.csv", COLUMNS, rotate=True)
    assert len(os.listdir("/proc/self/fd")) == before
    CsvLog(tmp_path / "log.csv", COLUMNS, rotate=True).close()
