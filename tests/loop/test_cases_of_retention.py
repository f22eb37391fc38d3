"""The known ways in which the checkpoint that mattered is lost (cases S28 to S30), each shown not to by whole runs."""

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from pretrain import lineage, syscalls
from pretrain.attempt import start_attempt
from pretrain.evidence import checkpoint
from pretrain.evidence.manifest import read_manifest
from pretrain.machine.signals import StopRequest
from pretrain.telemetry.sink import Event
from pretrain.validation import Validator
from tests.loop.lineages import end_of
from tests.loop.probes import Unsynced
from tests.tiny import go_on, tiny, train

# Every step is validated and saved.
EACH = ("model.layers=1", "validation.validate_every_n_steps=1", "checkpoint.checkpoint_every_n_steps=1")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "system", Unsynced())


def let_validation_find(monkeypatch: pytest.MonkeyPatch, losses: dict[int, float]) -> None:
    """Let the validation after each of these steps find that loss, whatever the model is worth."""
    real, steps = Validator.run, iter(sorted(losses))

    def run(self: Validator, *words: Any) -> Any:
        results, loss = real(self, *words), losses[next(steps)]
        assert results is not None
        return {
            name: dataclasses.replace(result, summary=dataclasses.replace(result.summary, loss=loss))
            for name, result in results.items()
        }

    monkeypatch.setattr(Validator, "run", run)


def saved_in(attempt: Path) -> list[int]:
    return [step for step, _ in checkpoint.list_checkpoints(attempt)]


def best_of(attempt: Path, step: int) -> list[tuple[int, float]]:
    """The list of the best, as the checkpoint of a step holds it."""
    (place,) = [place for number, place in checkpoint.list_checkpoints(attempt) if number == step]
    return [(one["step"], one["value"]) for one in checkpoint.read_record(place).scalars["best"]]


class Watching:
    """A sink that looks at each save, before anything is pruned for it, which checkpoints there are."""

    def __init__(self, attempt: Path) -> None:
        self.attempt = attempt
        self.there: dict[int, list[int]] = {}

    def emit(self, event: Event) -> None:
        if getattr(event, "kind", "") == "saved":
            steps = saved_in(self.attempt)
            self.there[steps[-1]] = steps

    def close(self) -> None:
        """Nothing is open."""


def test_s28_the_best_found_early_stay_and_nothing_goes_before_the_next_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("checkpoint.max_rolling_checkpoints=1", "checkpoint.num_best_checkpoints=2", "training.max_steps=7")
    let_validation_find(monkeypatch, {1: 1.0, 2: 1.1, **dict.fromkeys(range(3, 8), 2.0)})
    attempt = tmp_path / "run/attempts/0001"
    seen = Watching(attempt)
    assert start_attempt(tiny(tmp_path, "text", *EACH, *few), StopRequest(), [seen]).verdict == "done"
    # The newest, the one before it to go back to, and the two best.
    assert saved_in(attempt) == [1, 2, 6, 7]
    assert [(one.step, one.value) for one in read_manifest(attempt)[0].best] == [(1, 1.0), (2, 1.1)]
    assert lineage.verify(attempt).ok
    assert {step: there for step, there in seen.there.items() if step > 3} == {
        4: [1, 2, 3, 4],
        5: [1, 2, 3, 4, 5],
        6: [1, 2, 4, 5, 6],
        7: [1, 2, 5, 6, 7],
    }


def test_s29_a_validation_that_is_nan_captures_no_best_and_a_tie_keeps_the_earlier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the run is stopped in between, and goes on."""
    keep = ("checkpoint.num_best_checkpoints=1", "checkpoint.keep_every_n_steps=1", "training.max_steps=6")
    let_validation_find(monkeypatch, {1: math.nan, 2: 3.0, 3: math.nan, 4: 3.0, 5: math.inf, 6: 2.5})
    assert train(tiny(tmp_path, "text", *EACH, *keep), 3).verdict == "interrupted"
    assert go_on(tmp_path / "run").verdict == "done"
    first, second = (tmp_path / "run/attempts" / name for name in ("0001", "0002"))
    assert [best_of(first, step) for step in (1, 2, 3)] == [[], [(2, 3.0)], [(2, 3.0)]]
    assert [best_of(second, step) for step in (4, 5, 6)] == [[(2, 3.0)], [(2, 3.0)], [(6, 2.5)]]
    rows = [json.loads(line) for line in (second / "metrics.jsonl").read_text().splitlines()]
    found = [row["loss"] for row in rows if row["event"] == "validation"]
    assert found == ["nan", 3.0, "nan", 3.0, "inf", 2.5]


def test_s30_the_newest_checkpoint_is_that_of_the_greatest_step_whatever_the_clock_says(tmp_path: Path) -> None:
    """Steps 9 and 10; the earlier one was, by its time, written last."""
    few = (*EACH, "checkpoint.max_rolling_checkpoints=1", "checkpoint.num_best_checkpoints=0")
    assert train(tiny(tmp_path, "text", *few, run="whole")).verdict == "done"
    assert train(tiny(tmp_path, "text", *few), 10).verdict == "interrupted"
    attempt = tmp_path / "run/attempts/0001"
    assert saved_in(attempt) == [9, 10]
    late = 4_000_000_000
    for path in (attempt / "checkpoints/step_00000009").iterdir():
        os.utime(path, (late, late))
    os.utime(attempt / "checkpoints/step_00000009", (late, late))
    assert go_on(tmp_path / "run").verdict == "done"
    start = json.loads((tmp_path / "run/attempts/0002/events.jsonl").read_text().splitlines()[0])
    assert (start["event"], start["step"]) == ("start", 10)
    assert end_of(tmp_path / "run") == end_of(tmp_path / "whole")


def test_s30_steps_are_listed_as_numbers(tmp_path: Path) -> None:
    """Also those with more digits than the names are filled up to, which would come first as text."""
    steps = (99, 900, 1000, 99_999_999, 100_000_000)
    for step in reversed(steps):
        (tmp_path / f"checkpoints/step_{step:08d}").mkdir(parents=True)
        (tmp_path / f"checkpoints/step_{step:08d}/checkpoint.json").touch()
    assert saved_in(tmp_path) == [*steps]
