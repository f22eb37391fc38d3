"""The two experiments in scripts/, small: that they run, what they print, and that they say when a claim fails."""

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from scripts import depth, transfer


def test_transfer_prints_the_curves_and_leaves_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "curves.svg"
    words = ["--widths", "16", "32", "--steps", "4", "--last", "2", "--lowest", "-9", "--highest", "-8"]
    monkeypatch.setattr(sys, "argv", ["transfer", *words, "--output", str(picture)])
    code = transfer.main()
    printed = capsys.readouterr().out
    assert printed.startswith(
        "| rate | mup, 16 | mup, 32 | standard, 16 | standard, 32 |\n|---|---|---|---|---|\n| 2^-9 |"
    )
    assert "steps of the grid apart" in printed
    # Two rates cannot be two steps apart.
    assert (code, printed.splitlines()[-1].startswith("NOT shown")) == (1, True)
    assert len(ElementTree.parse(picture).findall(".//{http://www.w3.org/2000/svg}polyline")) == 4


@pytest.mark.parametrize(("curve", "expected"), [({-3: 2.0, -2: 1.0, -1: 1.5}, -2), ({-3: 1.0, -2: float("inf")}, -3)])
def test_the_best_rate_has_the_lowest_loss(curve: dict[int, float], expected: int) -> None:
    assert transfer.best(curve) == expected


def test_depth_trains_both_and_says_that_a_shallow_model_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["model.layers=1", "training.max_steps=12", "training.batch_size=1", "data.train.pydoc.span=[0.0, 0.05]"]
    monkeypatch.setattr(sys, "argv", ["depth", *small, "--run-dir", str(tmp_path), "--json"])
    assert depth.main() == 1
    found = json.loads(capsys.readouterr().out)
    assert found["holds"] is False
    assert {name: run["steps"] for name, run in found["runs"].items()} == {"post": 12, "pre": 12}
    assert (tmp_path / "post" / "attempts" / "0001" / "manifest.json").exists()
