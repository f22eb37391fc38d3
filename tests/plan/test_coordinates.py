"""The coordinate check: flat under muP and not under standard, with room; what it refuses; and its picture."""

import math
import xml.etree.ElementTree as ElementTree
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from pretrain.errors import ConfigError
from pretrain.plan import CoordinateCheck, check_coordinates
from pretrain.plan.chart import Panel, svg
from pretrain.plan.coordinates import FLAT, Place, slope
from pretrain.plan.widths import widths_asked
from tests.tiny import tiny

WIDTHS = (16, 32, 64, 128)
BASE = ("model.mup_base_width=16", "model.init_std=0.1")


@cache
def checked(optimizer: str, task: str = "text") -> CoordinateCheck:
    with TemporaryDirectory() as folder:
        config = tiny(Path(folder), task, *BASE, f"optimizer.optimizer_class={optimizer}")
        before = sorted(Path(folder).rglob("*"))
        check = check_coordinates(config, WIDTHS, steps=5, seeds=2)
        assert sorted(Path(folder).rglob("*")) == before
    return check


@pytest.mark.parametrize(
    ("optimizer", "task"), [("adamw", "text"), ("adamw", "iq"), ("lion", "text"), ("muon", "text")]
)
def test_flat_under_mup_and_not_under_standard(optimizer: str, task: str) -> None:
    check = checked(optimizer, task)
    assert check.is_flat("mup")
    assert abs(check.steepest("mup")) < 0.6 * FLAT
    assert not check.is_flat("standard")
    assert check.steepest("standard") > 4 * FLAT
    places = check.places["mup"]
    assert list(places) == ["embedding", "attention logits 0", "block 0", "attention logits 1", "block 1", "logits"]
    for name in ("embedding", "block 0", "block 1"):
        for step in range(check.steps + 1):
            assert abs(places[name].slope("scale", step)) < FLAT, (name, step)


def test_random_products_begin_with_one_over_the_root(tmp_path: Path) -> None:
    places = checked("adamw").places["mup"]
    assert places["logits"].slope("scale", 0) == pytest.approx(-0.5, abs=0.15)
    assert checked("adamw").places["standard"]["logits"].slope("scale", 0) == pytest.approx(0.5, abs=0.15)


def test_the_first_width_is_the_base_where_both_are_the_same() -> None:
    places = checked("adamw").places
    for name in places["mup"]:
        assert places["mup"][name].scale[16] == places["standard"][name].scale[16], name


def test_the_answer_and_the_text_hold_the_same() -> None:
    check = checked("adamw")
    answer, text = check.answer(), check.text()
    assert answer["parametrizations"]["mup"]["flat"] is True
    assert answer["parametrizations"]["standard"]["flat"] is False
    assert "mup: flat, steepest slope" in text
    assert "standard: not flat, steepest slope" in text
    block = answer["parametrizations"]["mup"]["places"]["block 1"]
    assert list(block["moved"]) == ["16", "32", "64", "128"]
    assert [len(block[key]) for key in ("slope_of_scale", "slope_of_moved")] == [6, 5]
    for place in check.places["mup"]:
        assert place in text


def test_the_text_tells_what_has_moved_and_how_large_it_is_at_each_width() -> None:
    check = checked("adamw")
    blocks = check.text().split("\n\n")
    assert len(blocks) == 3  # a table for each parametrization, and how to read them
    for (name, places), block in zip(check.places.items(), blocks, strict=False):
        title, *lines = block.split("\n")
        assert title.startswith(f"{name}: ")
        half = len(places) + 1
        assert len(lines) == 2 * half
        for quantity, rows in (("moved", lines[:half]), ("scale", lines[half:])):
            assert rows[0].split()[:5] == [f"{quantity},", "mean", "magnitude", "width", "16"]
            for row, (place, found) in zip(rows[1:], places.items(), strict=True):
                assert row.startswith(f"  {place} ")
                cells = row[24:].split()
                values = getattr(found, quantity)
                assert cells[: len(WIDTHS)] == [f"{values[width][-1]:.4g}" for width in WIDTHS]
                slopes = [f"{found.slope(quantity, step):.2f}" for step in range(1, check.steps + 1)]
                assert cells[len(WIDTHS) :] == slopes


def test_the_picture_is_svg_with_a_line_for_each_place() -> None:
    tree = ElementTree.fromstring(checked("adamw").picture())
    lines = tree.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 4 * 6
    assert all(len(line.get("points", "").split()) == len(WIDTHS) for line in lines)


def test_the_check_takes_nothing_from_the_global_generator_of_its_caller(tmp_path: Path) -> None:
    config = tiny(tmp_path, "text", *BASE)
    answers = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        answers.append(check_coordinates(config, (16, 32), steps=2, seeds=1).answer())
    assert answers[0] == answers[1]


@pytest.mark.parametrize("power", [-0.5, 0.0, 1.0])
def test_slope(power: float) -> None:
    assert slope([(width, 3.0 * width**power) for width in (16, 32, 128)]) == pytest.approx(power)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0])
def test_what_is_not_finite_is_not_flat(bad: float) -> None:
    assert math.isnan(slope([(16, 1.0), (32, bad)]))
    place = Place(scale={16: (1.0, 1.0), 32: (1.0, bad)}, moved={16: (0.0, 1.0), 32: (0.0, bad)})
    check = CoordinateCheck(1e-3, "adamw", 16, 1, 1, {"mup": {"attention logits 0": place}})
    assert not check.is_flat("mup")


def test_attention_logits_may_fall_and_must_not_grow() -> None:
    for end, flat in ((0.5, True), (1.0, True), (2.0, False)):
        place = Place(scale={16: (1.0, 1.0), 32: (1.0, end)}, moved={16: (0.0, 1.0), 32: (0.0, end)})
        for name, expected in (("attention logits 0", flat), ("block 0", end == 1.0)):
            assert CoordinateCheck(1e-3, "adamw", 16, 1, 1, {"mup": {name: place}}).is_flat("mup") is expected


@pytest.mark.parametrize("text", ["", "64", "64,64", "128,64", "64,x", "1,2", "64,,128", "64,-128"])
def test_widths_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="--widths: expected two widths or more that rise, such as 64,128,256; found"):
        widths_asked(text)


def test_widths() -> None:
    assert widths_asked(None) == (64, 128, 256, 512)
    assert widths_asked("32,48") == (32, 48)


def test_a_width_must_fit_the_heads(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.heads: 2 does not divide model\.width, 33"):
        check_coordinates(tiny(tmp_path), (32, 33), steps=1, seeds=1)


def test_an_optimizer_that_mup_is_not_known_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="how the learning rates of sgd follow the width"):
        check_coordinates(tiny(tmp_path, "text", "optimizer.optimizer_class=sgd"), (16, 32))


def test_a_panel_leaves_out_what_its_axes_cannot_show() -> None:
    lines = {"some": [(1, 0.0), (2, 1.0), (4, math.inf), (8, 10.0)], "none": [(1, math.nan)]}
    text = svg([Panel("a < b", "x", "y", lines), Panel("empty", "x", "y", {"none": [(1, math.nan)]}, log_y=False)])
    tree = ElementTree.fromstring(text)
    points = [line.get("points", "") for line in tree.findall(".//{http://www.w3.org/2000/svg}polyline")]
    assert [len(one.split()) for one in points] == [2, 0]
    assert "a &lt; b" in text
    assert "empty: nothing finite" in text
