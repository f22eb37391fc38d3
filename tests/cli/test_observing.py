"""`--profile` and `--memory-snapshot` of `train` and `resume`: the same words, and a line where they never came."""

import json
from pathlib import Path
from typing import Any

import pytest

from pretrain import lineage
from tests.cli.calling import contents, pretrain
from tests.cli.test_profile import steps_of
from tests.tiny import write_config


def warned(attempt: Path) -> list[str]:
    rows = [json.loads(line) for line in (attempt / "events.jsonl").read_text().splitlines()]
    return [row["text"] for row in rows if row["event"] == "warning" and row["text"].startswith("--")]


def left_by(attempt: Path) -> dict[str, Any]:
    return {name: json.loads(path.read_text()) for name in NAMES if (path := attempt / name).exists()}


NAMES = ("trace.json", "memory.json")
NEVER = [
    "--profile {}: this attempt took none of these steps, so that there is no trace.json",
    "--memory-snapshot {}: this attempt did not take that step, so that there is no memory.json",
]


@pytest.mark.parametrize(
    ("profile", "snapshot", "traced"),
    [
        ("8:9", "10", ["step 8", "step 9"]),
        ("5:7", "7", ["step 7"]),  # those of it that are left
        ("12:12", "12", ["step 12"]),
    ],
)
def test_a_resume_leaves_them_and_ends_in_the_same_bytes(
    stopped: Path, made: Path, profile: str, snapshot: str, traced: list[str]
) -> None:
    answer = pretrain("resume", "--attempt", stopped, "--profile", profile, "--memory-snapshot", snapshot, "--json")
    assert answer.code == 0, answer.err
    attempt = stopped / "attempts/0002"
    left = left_by(attempt)
    assert steps_of(left["trace.json"]["traceEvents"]) == traced
    assert left["memory.json"]["step"] == int(snapshot)
    assert warned(attempt) == []
    assert lineage.verify(attempt).ok
    whole = made / "finished/attempts/0001"
    assert (attempt / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_steps_that_a_resume_begins_behind_are_told_of(stopped: Path) -> None:
    answer = pretrain("resume", "--attempt", stopped, "--profile", "3:6", "--memory-snapshot", "6")
    assert answer.code == 0, answer.err
    expected = [NEVER[0].format("3:6"), NEVER[1].format("6")]
    assert sorted(warned(stopped / "attempts/0002")) == sorted(expected)
    assert [answer.err.count(f"warning: {line}\n") for line in expected] == [1, 1]
    assert left_by(stopped / "attempts/0002") == {}


def test_steps_that_an_attempt_ended_before_are_told_of(tmp_path: Path) -> None:
    words = ["guard.inf_post_clip_threshold=1e-9", "guard.max_nan_retries=0"]  # diverges at its first batch
    given = ["--profile", "2:12", "--memory-snapshot", "1"]
    answer = pretrain("train", "--config", write_config(tmp_path), *words, *given)
    assert answer.code == 4
    expected = [NEVER[0].format("2:12"), NEVER[1].format("1")]
    assert sorted(warned(tmp_path / "run/attempts/0001")) == sorted(expected)
    assert [answer.err.count(f"warning: {line}\n") for line in expected] == [1, 1]


def test_a_run_that_is_done_takes_none_of_them(finished: Path) -> None:
    before = contents(finished)
    answer = pretrain("resume", "--attempt", finished, "--profile", "1:2", "--memory-snapshot", "12")
    assert answer.code == 0
    assert f"warning: {NEVER[0].format('1:2')}\n" in answer.err
    assert f"warning: {NEVER[1].format('12')}\n" in answer.err
    assert contents(finished) == before


@pytest.mark.parametrize("given", [("--profile", "1:13"), ("--profile", "3"), ("--memory-snapshot", "13")])
def test_a_resume_refuses_the_same_words(stopped: Path, given: tuple[str, str]) -> None:
    before = contents(stopped)
    answer = pretrain("resume", "--attempt", stopped, *given)
    assert answer.code == 2
    assert f"{given[0]}: expected " in answer.err
    assert "of the 12 of training.max_steps" in answer.err
    assert contents(stopped) == before
