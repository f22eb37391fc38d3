"""The script that compares experts with a dense model: what it reads off a run, what it says, and a short run of it."""

import runpy
from pathlib import Path
from typing import Any

import pytest

PARTS = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "experts.py"))
Found = PARTS["Found"]


def look(step: int, *shares: float) -> dict[str, Any]:
    load = {f"gate.{expert}": share for expert, share in enumerate(shares)}
    return {"event": "monitor", "name": "experts", "step": step, "values": {"load": load}}


def test_the_least_share_is_that_of_the_worst_look_of_the_second_half_of_a_run() -> None:
    rows = [look(20, 0.0, 1.0), look(40, 0.9, 0.1), look(60, 0.2, 0.8), {"event": "step", "step": 60}]
    assert PARTS["least_share"](rows) == pytest.approx(PARTS["COUNT"] * 0.1)
    assert PARTS["least_share"](rows[-1:]) is None


def test_an_expert_is_dead_once_however_often_the_alarm_comes() -> None:
    alarm = {"event": "alarm", "name": "dead_expert", "state": "raised", "subject": "gate.3"}
    rows = [
        alarm,
        {**alarm, "state": "cleared"},
        alarm,
        {**alarm, "subject": "gate.4"},
        {**alarm, "name": "loss_spike"},
    ]
    assert PARTS["dead"](rows) == 2


@pytest.mark.parametrize(
    ("loss", "share", "dead", "idle", "expected"),
    [
        (1.0, 0.9, 0, 3, [True] * 4),
        (1.2, 0.9, 0, 3, [False, True, True, True]),
        (1.0, 0.9, 1, 3, [True, True, False, True]),
        (1.0, 0.2, 0, 0, [True, False, True, False]),
    ],
)
def test_what_is_shown(loss: float, share: float, dead: int, idle: int, expected: list[bool]) -> None:
    found = [
        Found("dense", 1, 1.1, 10, 10, None, 0),
        Found("balanced", 1, loss, 20, 10, share, dead),
        Found("unbalanced", 1, 1.0, 20, 10, 0.0, idle),
    ]
    assert list(PARTS["verdicts"](found).values()) == expected


@pytest.mark.slow
def test_a_short_run_of_each_kind(tmp_path: Path) -> None:
    short = ("data.sequence_length=16", "validation.validate_every_n_steps=40", "model.width=16")
    found = {kind: PARTS["run"](kind, 1, 40, tmp_path / kind, short) for kind in PARTS["KINDS"]}
    assert found["dense"].parameters == found["dense"].active
    assert found["dense"].smallest_share is None
    for kind in ("balanced", "unbalanced"):
        one = found[kind]
        assert one.active == found["dense"].active + 2 * 16 * PARTS["COUNT"]
        assert one.parameters > one.active
        assert 0.0 <= one.smallest_share < 1.0
        assert one.dead == 0  # an expert is called dead after a hundred steps
    assert len({one.loss for one in found.values()}) == 3
    assert PARTS["line"](found["balanced"]).split()[:2] == ["balanced", "1"]
