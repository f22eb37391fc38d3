"""What goes through a layer counts its bad points, wants enough of them, and never passes over what cannot be made."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.drill.layer import Layer, LeftOut
from tests.drill.run import drill
from tests.drill.signals import ROOT
from tests.drill.workers import drill_all


class TwoPoints:
    def points(self, *, whole: bool) -> Sequence[str]:
        return ["good", "bad"]

    def check(self, point: str, folder: Path) -> None:
        assert point == "good", "it is lost"


@contextmanager
def opened(folder: Path, seed: int) -> Iterator[TwoPoints]:
    yield TwoPoints()


@contextmanager
def not_opened(folder: Path, seed: int) -> Iterator[TwoPoints]:
    raise KeyError("no such run")
    yield TwoPoints()


@contextmanager
def killed(folder: Path, seed: int) -> Iterator[TwoPoints]:
    os.kill(os.getpid(), signal.SIGKILL)
    yield TwoPoints()


class Raising(TwoPoints):
    """Its first point raises what is no AssertionError."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def check(self, point: str, folder: Path) -> None:
        if point == "good":
            raise self.error
        super().check(point, folder)


def raising(error: BaseException) -> Layer:
    @contextmanager
    def opened(folder: Path, seed: int) -> Iterator[Raising]:
        yield Raising(error)

    return replace(LAYER, open=opened)


class Without(TwoPoints):
    """The third point cannot be made here."""

    def left_out(self, *, whole: bool) -> Sequence[LeftOut]:
        return [LeftOut("disks", "nothing may be mounted", 1), LeftOut("what is opened", "strace is not installed")]

    def counted(self) -> str:
        return "7 states of 2 points"


@contextmanager
def without(folder: Path, seed: int) -> Iterator[Without]:
    yield Without()


LAYER = Layer("L0", "a layer of two points", (2, 3), opened)


def test_a_bad_point_is_told_with_its_command(tmp_path: Path) -> None:
    found = drill(LAYER, tmp_path, seed=4, whole=False)
    assert [(one.point, one.what.splitlines()[0]) for one in found.wrong] == [("bad", "it is lost")]
    assert found.wrong[0].command == "python -m tests.drill --layer L0 --seed 4 --point bad --keep"
    assert found.line().split()[:3] == ["L0", "2", "1"]


@pytest.mark.parametrize("error", [KeyError("state"), RuntimeError("torn"), OSError(28, "full"), AssertionError()])
def test_whatever_a_check_raises_is_told_with_its_place_and_the_points_after_it_are_made(
    tmp_path: Path, error: Exception
) -> None:
    found = drill(raising(error), tmp_path, seed=4, whole=False)
    assert [one.point for one in found.wrong] == ["good", "bad"]
    assert type(error).__name__ in found.wrong[0].what
    assert "raise self.error" in found.wrong[0].what
    assert found.wrong[0].command == "python -m tests.drill --layer L0 --seed 4 --point good --keep"
    assert found.points == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_who_ends_the_drill_ends_it(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        drill(raising(error), tmp_path, seed=0, whole=False)


def test_a_layer_that_cannot_be_set_up_is_told_with_its_command(tmp_path: Path) -> None:
    found = drill(replace(LAYER, open=not_opened), tmp_path, seed=4, whole=False)
    assert (found.points, len(found.wrong)) == (0, 1)
    assert "Traceback" in found.wrong[0].what
    assert "no such run" in found.wrong[0].what
    assert found.wrong[0].command == "python -m tests.drill --layer L0 --seed 4 --quick --keep"
    whole = drill(replace(LAYER, open=not_opened), tmp_path / "whole", seed=4, whole=True)
    assert whole.wrong[0].command == "python -m tests.drill --layer L0 --seed 4 --keep"


def test_a_layer_that_cannot_be_set_up_takes_none_with_it(tmp_path: Path) -> None:
    layers = [replace(LAYER, name="L1", open=not_opened), LAYER]
    first, second = drill_all(layers, tmp_path, 0, 1, whole=False, only=(), keep=False)
    assert "no such run" in first.wrong[0].what
    assert (second.layer, second.points, [one.point for one in second.wrong]) == ("L0", 2, ["bad"])


def test_a_layer_whose_process_dies_takes_none_with_it(tmp_path: Path) -> None:
    layers = [replace(LAYER, name="L1", open=killed), replace(LAYER, name="L2", open=not_opened), LAYER]
    first, second, third = drill_all(layers, tmp_path, 0, 2, whole=False, only=(), keep=False)
    assert [one.command for one in first.wrong] == ["python -m tests.drill --layer L1 --seed 0 --quick --keep"]
    assert "has died" in first.wrong[0].what
    assert "no such run" in second.wrong[0].what
    assert (third.layer, third.points, [one.point for one in third.wrong]) == ("L0", 2, ["bad"])


def test_what_this_machine_cannot_do_is_told_and_not_wanted(tmp_path: Path) -> None:
    found = drill(replace(LAYER, open=without), tmp_path, seed=0, whole=True)
    assert [one.point for one in found.wrong] == ["bad"], "the third point is wanted all the same"
    assert found.not_tested() == [
        "SKIPPED L0: disks, nothing may be mounted; 1 points fewer",
        "SKIPPED L0: what is opened, strace is not installed; unseen",
    ]
    assert found.counted == "7 states of 2 points"


def test_a_point_that_is_not_there_is_wrong(tmp_path: Path) -> None:
    found = drill(LAYER, tmp_path, seed=0, whole=True, only=["god"])
    assert [one.what for one in found.wrong] == ["there is no such point: god; --list has the names"]


def test_fewer_points_than_there_must_be_are_wrong(tmp_path: Path) -> None:
    found = drill(LAYER, tmp_path, seed=0, whole=True)
    assert "expected at least 3 points, found 2" in found.wrong[-1].what


def test_a_layer_that_cannot_be_made_here_is_told_as_skipped(tmp_path: Path) -> None:
    found = drill(replace(LAYER, missing=lambda: "no such tool"), tmp_path, seed=0, whole=True)
    assert (found.points, found.wrong) == (0, ())
    assert found.line().startswith("L0    SKIPPED: no such tool")


def test_a_drill_in_the_background_of_a_script_is_as_good_as_any() -> None:
    """There SIGINT is ignored, under nohup SIGHUP, and a process has that from the one that starts it."""

    def in_the_background() -> None:
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    words = ["-m", "tests.drill", "--layer", "L3", "--point", "second save=SIGHUP+SIGINT"]
    ended = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=120, preexec_fn=in_the_background
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[1].split()[:3] == ["L3", "1", "0"]
