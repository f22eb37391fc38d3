"""One CSV for a whole lineage: what its rows say after 20 kills, a rollback and a change of columns."""

import csv
import itertools
import json
import math
import random
import struct
from pathlib import Path
from typing import Any

import pandas
import pytest

from pretrain.telemetry.csv_log import columns
from tests.loop.forks import Forks, Order
from tests.loop.lineages import Lineage, end_of, small_config
from tests.loop.probes import newest_attempt

STEPS, EVERY, KILLS = 120, 5, 20
# The weights are hurt by the step that a checkpoint is due after, so that a step that was taken is undone.
TAKEN, BATCH, BACK = 25, 25, 20
MORE = "telemetry.enable_block_grad_norms=true"
# What a row has in common with its row of the evidence stream.
SHARED = ("loss", "learning_rate", "gradient_norm", "clip_ratio", "update_norm", "supervised")

Row = dict[str, str]


@pytest.fixture(scope="module")
def lineage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `steps.csv`, which a run wrote in 20 lives that were killed and one that came to its end."""
    folder = tmp_path_factory.mktemp("lineage")
    config = small_config(
        *(folder, "text", STEPS, EVERY, f"faults.inject=[nan_grad@7, nan_weight@{BATCH}]"),
        *(f"telemetry.csv_log_path={folder / 'steps.csv'}", "telemetry.telemetry_log_interval=2"),
        "telemetry.gradient_log_interval=1",
    )
    chance = random.Random(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRETRAIN_ALLOW_FAULTS", "1")
        with Forks() as forks:
            elsewhere = (f"telemetry.csv_log_path={folder / 'untouched.csv'}",)
            forks.live(Order(str(folder / "untouched"), str(folder / "log"), str(config), overrides=elsewhere))
            run = Lineage(forks, config, folder / "run")
            for number in range(KILLS):
                overrides = (MORE,) if number >= KILLS // 2 else ()
                if number == KILLS // 2 - 1:  # In the middle of a row of the file that is then left.
                    is_torn = not (folder / "steps.csv").read_bytes().endswith(b"\n")  # and is cut back first
                    life = run.live(armed_by="steps.csv", kill_at=7 + is_torn, torn=True)
                    assert life.last == f"write {folder / 'steps.csv'}"
                    assert not (folder / "steps.csv").read_bytes().endswith(b"\n")
                else:
                    run.live(kill_at=chance.randint(20, 110), torn=chance.random() < 0.7, overrides=overrides)
            assert [life.exit_code for life in run.lives] == [None] * KILLS, "a life ended before its kill"
            assert run.live(overrides=(MORE,)).exit_code == 0
    assert end_of(folder / "run") == end_of(folder / "untouched")
    return folder


def files(lineage: Path) -> list[Path]:
    return [lineage / "steps.csv", lineage / "steps.001.csv"]


def rows(lineage: Path) -> list[Row]:
    """Return every row of both files, in their order."""
    found: list[Row] = []
    for path in files(lineage):
        with path.open(newline="") as file:
            found += csv.DictReader(file, strict=True)
    return found


def evidence(lineage: Path) -> dict[tuple[int, int], dict[str, Any]]:
    """Return the rows of the steps, taken and refused, of the stream that survived, by step and batch."""
    stream = (newest_attempt(lineage / "run") / "metrics.jsonl").read_text().splitlines()
    listed = [row for row in map(json.loads, stream) if row["event"] in ("step", "skipped")]
    found = {(row["step"], row["batch"]): row for row in listed}
    assert len(found) == len(listed)
    return found


def bits(value: float | str) -> bytes:
    return struct.pack("<d", float(value))


def test_s34_one_header_in_each_file_and_no_torn_line(lineage: Path) -> None:
    assert sorted(path.name for path in lineage.glob("steps*.csv")) == ["steps.001.csv", "steps.csv"]
    for path, names in zip(files(lineage), (columns(), columns(1)), strict=True):
        assert path.read_bytes().endswith(b"\n")
        first, *lines = path.read_text().splitlines()
        assert tuple(first.split(",")) == names
        assert [line for line in lines if line.startswith("attempt") or line.count(",") != len(names) - 1] == []
        assert len(lines) > 20


def test_s34_every_value_stands_under_its_name(lineage: Path) -> None:
    """Bit for bit the one of the evidence stream; a cell that was not measured is empty, in no place a 0."""
    known = evidence(lineage)
    for row in rows(lineage):
        assert all(
            math.isfinite(float(row[name] or 0)) or row["action"] != "accept" for name in row if name != "action"
        )
        expected = known[int(row["step"]), int(row["batch"])]
        for name in SHARED:
            if name in expected:
                assert (row[name] == "") == (expected[name] is None), (name, row)
                assert row[name] == "" or bits(row[name]) == bits(expected[name]), (name, row)
        action = "accept" if expected["event"] == "step" else "skip"
        assert row["action"] == ("roll_back" if int(row["batch"]) == BATCH else action)
        assert all(row[name] == "" for name in row if name.startswith("gpu_") or name in ("mfu", "memory_bytes"))
        if "block_00_gradient_norm" in row and action == "accept":
            assert (row["block_00_gradient_norm"] != "") == (int(row["step"]) % 2 == 0)


def test_s34_no_step_twice_but_behind_a_mark(lineage: Path) -> None:
    """The mark of a resume is another attempt, that of a rollback the action of the row before."""
    found = rows(lineage)
    attempts = [int(row["attempt"]) for row in found]
    assert attempts == sorted(attempts)
    assert len(set(attempts)) > KILLS // 2
    marks = 0
    for before, row in itertools.pairwise(found):
        if row["attempt"] != before["attempt"]:
            assert int(row["batch"]) <= int(before["batch"]) + 2  # one row may have died with its life
        elif before["action"] == "roll_back":
            marks += 1
            assert (int(before["step"]), int(before["batch"])) == (TAKEN, BATCH)
            assert (int(row["step"]), int(row["batch"])) == (BACK + 1, BATCH + 1)
        else:
            assert int(row["batch"]) == int(before["batch"]) + 1
            assert int(row["step"]) == int(before["step"]) + (row["action"] != "skip")
    assert marks > 0


def test_every_step_that_counts_has_a_row(lineage: Path) -> None:
    """But one that a kill took between a checkpoint and its row: there the next life goes on behind it."""
    missing = evidence(lineage).keys() - {(int(row["step"]), int(row["batch"])) for row in rows(lineage)}
    assert [step for step, _ in missing if step % EVERY] == []
    assert len(missing) < KILLS


def test_pandas_reads_what_csv_reads(lineage: Path) -> None:
    for path in files(lineage):
        table = pandas.read_csv(path)
        with path.open(newline="") as file:
            found = list(csv.DictReader(file))
        assert list(table.columns) == list(found[0])
        assert len(table) == len(found)
        for name in table.columns:
            for cell, value in zip((row[name] for row in found), table[name], strict=True):
                if cell == "":
                    assert pandas.isna(value), name
                elif name == "action":
                    assert value == cell
                elif math.isnan(float(cell)):
                    assert pandas.isna(value), name
                else:
                    assert bits(value) == bits(cell), (name, cell, value)
