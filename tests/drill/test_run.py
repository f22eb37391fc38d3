"""What goes through a layer counts its bad points, wants enough of them, and never passes over what cannot be made."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.drill.layer import Layer
from tests.drill.run import drill
from tests.drill.signals import ROOT


class TwoPoints:
    def points(self, *, whole: bool) -> Sequence[str]:
        return ["good", "bad"]

    def check(self, point: str, folder: Path) -> None:
        assert point == "good", "it is lost"


@contextmanager
def opened(folder: Path, seed: int) -> Iterator[TwoPoints]:
    yield TwoPoints()


LAYER = Layer("L0", "a layer of two points", (2, 3), opened)


def test_a_bad_point_is_told_with_its_command(tmp_path: Path) -> None:
    found = drill(LAYER, tmp_path, seed=4, whole=False)
    assert [(one.point, one.what.splitlines()[0]) for one in found.wrong] == [("bad", "it is lost")]
    assert found.wrong[0].command == "python -m tests.drill --layer L0 --seed 4 --point 'bad' --keep"
    assert found.line().split()[:3] == ["L0", "2", "1"]


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
