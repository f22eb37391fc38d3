"""What survived of a lineage, and where the rest of its wall time went."""

from typing import Any

import pytest

from pretrain.policy.goodput import Goodput, add_up


def start(step: int) -> dict[str, Any]:
    return {"event": "start", "step": step}


def saved(step: int, steps: float, **more: float) -> dict[str, Any]:
    return {"event": "saved", "step": step, "seconds": {"steps": steps, **more}}


def back(step: int) -> dict[str, Any]:
    return {"event": "rolled_back", "step": step}


def end(step: int, steps: float, **more: float) -> dict[str, Any]:
    return {"event": "end", "step": step, "seconds": {"steps": steps, **more}}


WHOLE = [start(0), saved(0, 0.0, start_up=2.0), saved(4, 4.0, saving=1.0), end(4, 4.0, start_up=2.0, saving=2.0)]
KILLED = [start(0), saved(0, 0.0), saved(4, 4.0, saving=1.0), saved(8, 8.0, saving=2.0)]
# Ends at step 10 by a fault, with nothing saved after 8.
FAULT = [*KILLED, end(10, 10.0, saving=2.0)]


def test_an_attempt_alone() -> None:
    found = add_up([WHOLE])
    assert found == Goodput({"steps": 4.0, "start_up": 2.0, "saving": 2.0, "undone": 0.0}, 1, 0)
    assert (found.total, found.share) == (8.0, 0.5)
    assert (Goodput().total, Goodput().share) == (0.0, 0.0)
    assert add_up([]).attempts == 0


@pytest.mark.parametrize(
    ("lineage", "steps", "undone"),
    [
        pytest.param([FAULT], 8.0, 2.0, id="the steps after the last checkpoint did not survive"),
        pytest.param([[start(8), end(12, 4.0), saved(12, 4.0)], FAULT], 12.0, 2.0, id="a child of the last checkpoint"),
        pytest.param([[start(4), saved(12, 8.0), end(12, 8.0)], FAULT], 12.0, 6.0, id="a child of an earlier one"),
        pytest.param([[start(8), saved(12, 4.0), end(12, 4.0)], KILLED], 12.0, 0.0, id="killed: known up to there"),
        pytest.param(
            [[start(8), back(4), saved(8, 5.0), end(8, 5.0, undone=1.0)], FAULT], 9.0, 7.0, id="back to an ancestor's"
        ),
        pytest.param(
            [[start(4), saved(5, 1.0), end(5, 1.0)], [start(8), back(4), end(4, 3.0)], FAULT],
            *(5.0, 9.0),
            id="back to an ancestor's, and killed before a checkpoint of its own",
        ),
        pytest.param([[start(8), end(8, 0.0)], [*FAULT[:-1], back(4), saved(8, 6.0)]], 6.0, 0.0, id="the newer 8"),
        pytest.param([[start(0), saved(8, 8.0), end(8, 8.0)], [start(0)]], 8.0, 0.0, id="died before a checkpoint"),
    ],
)
def test_what_survives(lineage: list[list[dict[str, Any]]], steps: float, undone: float) -> None:
    found = add_up(lineage)
    assert found.seconds["steps"] == steps
    assert found.seconds["undone"] == undone
    assert found.attempts == len(lineage)
    spent = sum(
        sum([row["seconds"] for row in one if "seconds" in row][-1].values()) for one in lineage if len(one) > 1
    )
    assert found.total == spent  # every second that was told of, under one kind or another


def test_what_is_no_ancestor_made_nothing_that_survived() -> None:
    found = add_up([WHOLE], [FAULT])
    assert found.seconds == {"steps": 4.0, "undone": 10.0, "start_up": 2.0, "saving": 4.0}
    assert (found.attempts, found.unended) == (2, 0)
    assert add_up([WHOLE], [KILLED]).unended == 1
