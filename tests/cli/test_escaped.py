"""What a name brings along is escaped in every error; the line breaks of a message with several lines stay."""

import json
import re
from pathlib import Path

import pytest

from pretrain import errors
from pretrain.errors import ConfigError, PretrainError, RunInterruptedError
from tests.cli.calling import Answer, pretrain
from tests.tiny import write_config

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
NASTY = "let\n\x1b[31m\r\x9bters"
SHOWN = r"let\x0a\x1b[31m\x0d\x9bters"


def assert_lines(answer: Answer, *beginnings: str) -> None:
    """There is one line of the screen for each problem, and none speaks to a terminal."""
    assert answer.code == 2
    assert CONTROL.search(answer.err) is None, answer.err
    lines = answer.err.splitlines()
    assert len(lines) == len(beginnings), answer.err
    for line, beginning in zip(lines, beginnings, strict=True):
        assert line.removeprefix("pretrain: ").startswith(beginning)
    assert answer.json["reason"] == answer.err.removeprefix("pretrain: ").removesuffix("\n")


def test_names_of_a_config(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    config.write_text(config.read_text().replace("letters:", f"{json.dumps(NASTY)}:"))
    answer = pretrain("train", "--config", config, "--json")
    assert_lines(answer, f"{config}: data.train.{SHOWN} is no", f"{config}: data.validation.{SHOWN} is no")


@pytest.mark.parametrize(
    ("override", "beginning"),
    [
        (f"{NASTY}=1", ""),
        (f"model.{NASTY}=1", ""),
        (f"telemetry.trackers.{NASTY}=1", ""),
        (f"data.train.letters.path={NASTY}", SHOWN),
        (f"run.dir=/proc/{NASTY}", f"/proc/{SHOWN}"),
    ],
)
def test_names_of_an_override_and_of_a_path(tmp_path: Path, override: str, beginning: str) -> None:
    answer = pretrain("train", "--config", write_config(tmp_path), override, "--json")
    assert answer.code in (2, 6)
    assert CONTROL.search(answer.err) is None
    assert answer.err.count("\n") == 1
    assert beginning in answer.err


def test_a_config_and_an_attempt_that_are_not_there(tmp_path: Path) -> None:
    for words in (["train", "--config"], ["resume", "--attempt"], ["verify-manifest"], ["inspect-checkpoint"]):
        answer = pretrain(*words, tmp_path / NASTY)
        assert (answer.code, answer.err.count("\n")) == (2, 1)
        assert SHOWN in answer.err
        assert CONTROL.search(answer.err) is None


def test_an_outcome_says_the_same(stopped: Path) -> None:
    moved = stopped.rename(stopped.with_name(NASTY))
    words = ["guard.inf_post_clip_threshold=1e-9"]  # is no setting that a resume may change
    answer = pretrain("resume", "--attempt", moved, *words)
    assert answer.code == 2
    assert CONTROL.search(answer.err) is None


CLASSES = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, PretrainError)]


@pytest.mark.parametrize("kind", CLASSES)
def test_of_every_class(kind: type[PretrainError]) -> None:
    made = kind(NASTY, "SIGTERM") if kind is RunInterruptedError else kind(NASTY)  # type: ignore[call-arg]
    assert str(made) == SHOWN


def test_several_lines_stay_several() -> None:
    assert str(ConfigError("one\ttwo", "three\n", "")) == "one\\x09two\nthree\\x0a\n"
    assert str(ConfigError()) == ""
