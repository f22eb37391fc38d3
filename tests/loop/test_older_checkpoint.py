"""`resume --checkpoint STEP`: the rows end where that checkpoint does; what came after is no part of the lineage."""

import json
import shutil
from pathlib import Path

import pytest

from pretrain.attempt.origin import checkpoints_of
from pretrain.errors import ConfigError, IntegrityError
from tests.cli.calling import contents, flip, pretrain
from tests.loop.lineages import end_of, whole_and_stopped
from tests.loop.probes import newest_attempt
from tests.tiny import go_on


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_and_stopped(tmp_path_factory.mktemp("made"))


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made / "stopped", tmp_path / "run")


def test_it_comes_to_the_same_bytes_and_leaves_the_parent_alone(made: Path, run: Path) -> None:
    before = contents(run / "attempts/0001")
    answer = pretrain("resume", "--attempt", run, "--checkpoint", 4)
    assert (answer.code, "attempt 0001 keeps steps up to 14 for itself" in answer.err) == (0, True)
    assert contents(run / "attempts/0001") == before
    assert end_of(run) == end_of(made / "whole")
    assert pretrain("verify-manifest", run, "--lineage").code == 0
    environment = json.loads((newest_attempt(run) / "environment.json").read_text())
    assert environment["parent"]["kind"] == "checkpoint"


def test_what_the_parent_saved_later_is_no_part_of_the_lineage(run: Path) -> None:
    assert go_on(run, step=4, stop_after=2).verdict == "interrupted"
    found = [(place.parent.parent.name, step) for step, place in checkpoints_of(run, 2)]
    assert found == [("0002", 6), ("0001", 0), ("0001", 4)]
    assert go_on(run, stop_after=1).verdict == "interrupted"
    found = [(place.parent.parent.name, step) for step, place in checkpoints_of(run, 3)]
    assert found == [("0003", 7), ("0002", 6), ("0001", 0), ("0001", 4)]


def test_one_that_is_not_there_or_damaged_is_refused(run: Path) -> None:
    flip(run / "attempts/0001/checkpoints/step_00000008/shard_00000.safetensors")
    before = contents(run)
    with pytest.raises(IntegrityError, match="step_00000008"):
        go_on(run, step=8)
    with pytest.raises(ConfigError, match="no checkpoint of step 5; it holds those of 0, 4, 8, 12, 14"):
        go_on(run, step=5)
    answer = pretrain("resume", "--attempt", run, "--checkpoint", 5, "--json")
    assert (answer.code, answer.json["exit_code"]) == (2, 2)
    assert contents(run) == before


def test_s23_require_latest_refuses_what_would_be_passed_over(run: Path) -> None:
    place = run / "attempts/0001/checkpoints/step_00000014"
    (place / "checkpoint.json").unlink()
    before = contents(run)
    answer = pretrain("resume", "--attempt", run, "--require-latest")
    assert (answer.code, "step_00000014 has no record" in answer.err) == (3, True)
    assert pretrain("resume", "--attempt", run, "--require-latest", "--checkpoint", 8).code == 2
    assert contents(run) == before
    assert go_on(run).verdict == "done"


def test_s23_require_latest_is_not_about_what_a_kill_left_of_an_older_one(run: Path) -> None:
    (run / "attempts/0001/checkpoints/step_00000004/checkpoint.json").unlink()
    answer = pretrain("resume", "--attempt", run, "--require-latest")
    assert (answer.code, "step_00000004 has no record" in answer.err) == (0, True)
