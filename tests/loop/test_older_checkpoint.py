"""`resume --checkpoint STEP`: the rows end where that checkpoint does; what came after is no part of the lineage."""

import json
from pathlib import Path

import pytest

from pretrain.attempt.ancestry import checkpoints_of
from pretrain.errors import ConfigError, IntegrityError
from tests.cli.calling import contents, flip, pretrain
from tests.loop.lineages import end_of
from tests.loop.probes import newest_attempt
from tests.tiny import go_on


def test_it_comes_to_the_same_bytes_and_leaves_the_parent_alone(made: Path, stopped: Path) -> None:
    before = contents(stopped / "attempts/0001")
    answer = pretrain("resume", "--attempt", stopped, "--checkpoint", 4)
    assert (answer.code, "attempt 0001 keeps steps up to 14 for itself" in answer.err) == (0, True)
    assert contents(stopped / "attempts/0001") == before
    assert end_of(stopped) == end_of(made / "whole")
    assert pretrain("verify-manifest", stopped, "--lineage").code == 0
    environment = json.loads((newest_attempt(stopped) / "environment.json").read_text())
    assert environment["parent"]["kind"] == "checkpoint"


def test_what_the_parent_saved_later_is_no_part_of_the_lineage(stopped: Path) -> None:
    assert go_on(stopped, step=4, stop_after=2).verdict == "interrupted"
    found = [(place.parent.parent.name, step) for step, place in checkpoints_of(stopped, 2)]
    assert found == [("0002", 6), ("0001", 0), ("0001", 4)]
    assert go_on(stopped, stop_after=1).verdict == "interrupted"
    found = [(place.parent.parent.name, step) for step, place in checkpoints_of(stopped, 3)]
    assert found == [("0003", 7), ("0002", 6), ("0001", 0), ("0001", 4)]


def test_one_that_is_not_there_or_damaged_is_refused(stopped: Path) -> None:
    flip(stopped / "attempts/0001/checkpoints/step_00000008/shard_00000.safetensors")
    before = contents(stopped)
    with pytest.raises(IntegrityError, match="step_00000008"):
        go_on(stopped, step=8)
    with pytest.raises(ConfigError, match="no checkpoint of step 5; it holds those of 0, 4, 8, 12, 14"):
        go_on(stopped, step=5)
    answer = pretrain("resume", "--attempt", stopped, "--checkpoint", 5, "--json")
    assert (answer.code, answer.json["exit_code"]) == (2, 2)
    assert contents(stopped) == before


def test_s23_require_latest_refuses_what_would_be_passed_over(stopped: Path) -> None:
    place = stopped / "attempts/0001/checkpoints/step_00000014"
    (place / "checkpoint.json").unlink()
    before = contents(stopped)
    answer = pretrain("resume", "--attempt", stopped, "--require-latest")
    assert (answer.code, "step_00000014 has no record" in answer.err) == (3, True)
    assert pretrain("resume", "--attempt", stopped, "--require-latest", "--checkpoint", 8).code == 2
    assert contents(stopped) == before
    assert go_on(stopped).verdict == "done"


def test_s23_require_latest_is_not_about_what_a_kill_left_of_an_older_one(stopped: Path) -> None:
    (stopped / "attempts/0001/checkpoints/step_00000004/checkpoint.json").unlink()
    answer = pretrain("resume", "--attempt", stopped, "--require-latest")
    assert (answer.code, "step_00000004 has no record" in answer.err) == (0, True)
