"""A cool-down from a checkpoint of a stable phase: another run from there on, on record, and deterministic."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pretrain import lineage
from pretrain.attempt import AttemptResult
from pretrain.errors import ConfigError, IntegrityError
from pretrain.evidence import canonical, checkpoint
from pretrain.machine.signals import StopRequest
from tests.cli.calling import contents, pretrain
from tests.loop.lineages import end_of
from tests.loop.probes import killed_at, last_record, newest_attempt
from tests.loop.states import States
from tests.tiny import Recorder, go_on, resume_attempt, tiny, train

STABLE = (
    *("training.max_steps=1000", "scheduler={scheduler_type: warmup_stable_decay, scheduler_warmup_ratio: 0.002}"),
    *("training.gradient_accumulation_steps=1", "model.layers=1", "checkpoint.keep_every_n_steps=4"),
)
# From the checkpoint of step 8 on, down to 0 in the 4 steps to step 12.
COOL = ("training.max_steps=12", "scheduler.scheduler_total_steps=12", "scheduler.decay_ratio=0.3333333333")


def rows(run: Path, event: str) -> list[dict[str, Any]]:
    lines = (newest_attempt(run) / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["event"] == event]


@pytest.fixture(scope="module")
def stable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in its stable phase that was stopped at step 14 of 1000, with checkpoints of 4, 8, 12 and 14."""
    folder = tmp_path_factory.mktemp("stable")
    assert train(tiny(folder, "text", *STABLE), 14).verdict == "interrupted"
    return folder / "run"


@pytest.fixture
def run(stable: Path, tmp_path: Path) -> Path:
    return shutil.copytree(stable, tmp_path / "run")


def cool(run: Path, **how: Any) -> AttemptResult:
    return go_on(run, *COOL, step=8, migrate=True, **how)


def test_a_cool_down_is_on_record_and_falls_as_it_says(run: Path) -> None:
    before = contents(run / "attempts/0001")
    assert cool(run).verdict == "done"
    assert contents(run / "attempts/0001") == before
    (row,) = rows(run, "migrated")
    assert row == {
        "event": "migrated",
        "step": 8,
        "keys": {
            "training.max_steps": [1000, 12],
            "scheduler.scheduler_total_steps": [1000, 12],
            "scheduler.decay_ratio": [0.2, 0.3333333333],
        },
    }
    rates = [step["learning_rate"] for step in rows(run, "step")]
    assert rates[1:9] == [0.01] * 8
    assert rates[8:] == pytest.approx([0.01, 0.0075, 0.005, 0.0025])
    # The validation of step 8 is the parent's, and is not done again.
    assert [validation["step"] for validation in rows(run, "validation")] == [4, 8, 12]
    manifest = json.loads((newest_attempt(run) / "manifest.json").read_text())
    parent = checkpoint.read_record(run / "attempts/0001/checkpoints/step_00000008")
    assert manifest["parent"] == {"attempt": 1, "kind": "checkpoint", "record_sha256": parent.record_sha256}
    assert manifest["identity_sha256"] == last_record(run).identity_sha256 != parent.identity_sha256
    # The surroundings were the same: the same command gives the same bytes. That it is another run is in the stream.
    assert manifest["bit_exact"] is True


def test_the_lineage_verifies_and_says_where_it_became_another_run(run: Path) -> None:
    cool(run)
    answer = pretrain("verify-manifest", run, "--lineage", "--json")
    assert (answer.code, answer.json["ok"], len(answer.json["lineage"])) == (0, True, 1)
    assert [row["step"] for row in answer.json["migrated"]] == [8]
    text = pretrain("verify-manifest", run, "--lineage").out
    assert "migrated at step 8, another run from there on: " in text
    assert "scheduler.decay_ratio 0.2 -> 0.3333333333" in text
    assert "migrated" not in pretrain("verify-manifest", run, "--json").json


@pytest.mark.parametrize("stops", [(1,), (2, 1), (1, 1, 1, 1)])
def test_a_cool_down_that_is_stopped_ends_in_the_same_bytes(run: Path, tmp_path: Path, stops: tuple[int, ...]) -> None:
    whole = shutil.copytree(run, tmp_path / "whole")
    cool(whole)
    result = cool(run, stop_after=stops[0])
    for count in stops[1:]:
        assert result.verdict == "interrupted"
        result = go_on(run, stop_after=count)  # needs no --migrate: it is that run by now
    if result.verdict == "interrupted":
        result = go_on(run)
    assert end_of(run) == end_of(whole)


def test_a_cool_down_killed_before_its_first_checkpoint_is_migrated_again(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = shutil.copytree(run, tmp_path / "whole")
    cool(whole)

    with killed_at(monkeypatch, "pretrain.attempt.run.train"):
        cool(run)
    assert not (run / "attempts/0002/checkpoints").exists()
    assert rows(run, "migrated")
    assert go_on(run).verdict == "done"
    assert end_of(run) == end_of(whole)
    assert len(rows(run, "migrated")) == 1


def test_a_migrated_run_goes_back_to_a_checkpoint_of_its_parent(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled = []

    def spoil(parts: Any, row: Any) -> None:
        if row.step == 10 and not spoiled:
            spoiled.append(row.step)
            next(parts.state.model.parameters()).data.fill_(float("nan"))

    states = States(monkeypatch, then=spoil)
    result = resume_attempt(run, list(COOL), StopRequest(), [Recorder(), states], step=8, migrate=True)
    assert result.verdict == "done"
    (back,) = rows(run, "rolled_back")
    assert back["step"] == 8
    assert lineage.verify(run).ok


def test_another_schedule_altogether_jumps_and_says_so(run: Path) -> None:
    screen = Recorder()
    changes = ["training.max_steps=12", "scheduler.scheduler_type=linear", "scheduler.scheduler_total_steps=12"]
    result = resume_attempt(run, changes, StopRequest(), [screen], step=8, migrate=True)
    assert result.verdict == "done"
    assert any("jumps from 0.01 to 0.00333333 at step 8" in getattr(event, "text", "") for event in screen.events)
    keys = rows(run, "migrated")[0]["keys"]
    assert keys["scheduler.scheduler_type"] == ["warmup_stable_decay", "linear"]
    assert keys["scheduler.decay_ratio"] == [0.2, None]


def test_what_a_migration_is_refused(run: Path) -> None:
    before = contents(run)
    for step, migrate, changes, expected in (
        (8, False, COOL, "With --migrate it may change"),
        (8, True, (), "nothing of scheduler"),
        (8, True, ("training.max_steps=8", "scheduler.scheduler_total_steps=8"), "no step is left to train"),
        (8, True, ("optimizer.lr=1", *COOL), "optimizer.lr was"),
        (9, True, COOL, "holds no checkpoint of step 9; it holds those of 0, 4, 8, 12, 14"),
    ):
        with pytest.raises(ConfigError, match=expected):
            go_on(run, *changes, step=step, migrate=migrate)
    assert contents(run) == before


def test_a_run_that_died_before_its_first_checkpoint_has_nothing_to_migrate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("pretrain.attempt.run.save", kill)
        patch.setattr("pretrain.attempt.run.record_outcome", lambda *_: None)
        with pytest.raises(Killed):
            train(tiny(tmp_path, "text", *STABLE))
    with pytest.raises(ConfigError, match="no checkpoint to go on from; start another run"):
        go_on(tmp_path / "run", *COOL, migrate=True)


def test_the_config_of_the_parent_is_what_its_checkpoint_is_compared_with(run: Path) -> None:
    record = run / "attempts/0001/checkpoints/step_00000008/checkpoint.json"
    other = json.loads(record.read_text())["identity_sha256"]
    whole = json.loads(record.read_text())
    whole["identity_sha256"] = other[::-1]
    del whole["self_sha256"]
    record.write_bytes(canonical.encode(canonical.seal(whole)))
    with pytest.raises(IntegrityError, match="belongs to another configuration"):
        cool(run)


def test_a_finished_run_is_cooled_down_and_is_not_done_twice(tmp_path: Path) -> None:
    train(tiny(tmp_path, "text", *STABLE, "training.max_steps=8", "scheduler.scheduler_total_steps=1000"))
    run = tmp_path / "run"
    with pytest.raises(ConfigError, match="is done at step 8, and comes to the same end from step 4"):
        go_on(run, step=4)
    assert go_on(run, step=8).attempt == 1  # nothing to do
    assert go_on(run, *COOL, migrate=True).verdict == "done"
    manifest = json.loads((newest_attempt(run) / "manifest.json").read_text())
    assert manifest["parent"]["kind"] == "manifest"
    assert pretrain("verify-manifest", run, "--lineage").code == 0
