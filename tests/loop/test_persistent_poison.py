"""Poison that does not end: the run takes a bounded number of retries, and ends the same way however it is stopped."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from pretrain import lineage, syscalls
from pretrain.attempt import AttemptResult, start_attempt
from pretrain.evidence import checkpoint, namespace
from pretrain.machine.signals import StopRequest
from tests.loop.lineages import end_of
from tests.loop.probes import Unsynced, hook_loss, newest_attempt, noise, poison
from tests.loop.states import States
from tests.tiny import go_on, tiny, train

SAMPLES = 4  # of one step of the tiny runs
LAST = 46  # the tiny text has 46 steps in an epoch
EVERY = 4
QUICK = ("model.layers=1", "training.max_steps=30", f"checkpoint.checkpoint_every_n_steps={EVERY}")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "system", Unsynced())
    monkeypatch.setenv("PRETRAIN_ALLOW_FAULTS", "1")


def weights_from(first: int) -> str:
    """Return the override that makes a weight NaN in every step from batch `first` on."""
    return f"faults.inject=[{', '.join(f'nan_weight@{batch}' for batch in range(first, LAST))}]"


def attempts(run: Path) -> list[Path]:
    return [namespace.attempt_folder(run, number) for number in namespace.list_attempts(run)]


def rows_of(attempt: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (attempt / "metrics.jsonl").read_text().splitlines()]


def records(attempt: Path) -> dict[int, str]:
    """Return the record of each checkpoint of the cadence by step; every number of every checkpoint is finite."""
    found = {}
    for step, folder in checkpoint.list_checkpoints(attempt):
        record = checkpoint.verify_checkpoint(folder)
        tensors = {name: tensor for shard in folder.glob("*.safetensors") for name, tensor in load_file(shard).items()}
        assert any(name.startswith("model.") for name in tensors)
        assert any(name.startswith("optimizer.") for name in tensors)
        assert all(bool(tensor.isfinite().all()) for tensor in tensors.values()), f"{folder} is not finite"
        if step % EVERY == 0:
            found[step] = record.record_sha256
    return found


def check_diverged(result: AttemptResult, run: Path) -> dict[str, Any]:
    """Exit code 4, an outcome that says so, no manifest, and what is there is sound; return the outcome."""
    assert (result.verdict, result.exit_code, result.manifest_sha256) == ("diverged", 4, None)
    attempt = newest_attempt(run)
    outcome = json.loads((attempt / "outcome.json").read_text())
    assert (outcome["verdict"], outcome["exit_code"], outcome["resume"]) == ("diverged", 4, None)
    assert not list(run.rglob("manifest.json"))
    found = lineage.verify(attempt)
    assert not found.ok
    assert found.sound, found.text()
    return outcome


# What is spoiled from a batch on, that batch, steps at the end, and the rows of the incident; then where it is stopped.
GUARD = {"skipped": 4}
BACK = {"skipped": 4, "rolled_back": 3}
CASES = [
    ("loss", 9, (), 9, GUARD, (8, 10, 12)),
    ("gradient", 9, (), 9, GUARD, (9, 11)),
    ("gradient", 8, ("training.precision=float16",), 8, GUARD, (8, 9, 11)),
    ("gradient", 0, (), 0, GUARD, (1, 3)),
    ("weights", 0, (), 1, BACK, (1, 2, 4, 7)),
    ("weights", 9, (), 5, BACK, (8, 10, 11, 13, 15)),
    ("weights", 11, (), 5, {"skipped": 3, "rolled_back": 3}, (11, 12, 13)),  # damage where a checkpoint is due
    ("weights", 18, (), 13, BACK, (5, 13, 19, 20, 22, 24)),
]


@pytest.mark.parametrize(("kind", "first", "overrides", "steps", "events", "stops"), CASES)
def test_it_ends_with_exit_code_4_and_nothing_that_is_not_finite_on_disk(
    kind: str,
    first: int,
    overrides: tuple[str, ...],
    steps: int,
    events: dict[str, int],
    stops: tuple[int, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then the same run is stopped after each of some batches, and once more two batches later: the same end."""
    hook_loss(monkeypatch, noise)
    overrides = (*QUICK, *overrides)
    if kind == "weights":
        overrides = (*overrides, weights_from(first))
    else:
        hook_loss(monkeypatch, poison({(0, SAMPLES * batch): kind for batch in range(first, LAST)}))
    saved: set[tuple[int, str]] = set()
    with monkeypatch.context() as patch:
        states = States(
            patch, lambda parts, _: saved.update((at.step, at.record_sha256) for at in parts.writer.saved.values())
        )
        result = start_attempt(tiny(tmp_path, "text", *overrides, run="whole"), StopRequest(), [states])
    whole = newest_attempt(tmp_path / "whole")
    outcome = check_diverged(result, tmp_path / "whole")
    counts = Counter(row["event"] for row in rows_of(whole))
    assert (result.step, {event: counts[event] for event in events}) == (steps, events)
    assert outcome["checkpoint"]["step"] == max(records(whole)), "the newest"
    if kind != "weights":
        assert states.parts.state.is_finite()
    for stop in stops:
        run = tmp_path / f"run-{stop}"
        assert train(tiny(tmp_path, "text", *overrides, run=run.name), stop).exit_code == 75
        result = go_on(run, stop_after=2)
        if result.verdict == "interrupted":
            result = go_on(run)
        again = check_diverged(result, run)
        assert (newest_attempt(run) / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes(), stop
        for field in ("reason", "step", "batch"):
            assert again[field] == outcome[field], f"stopped after {stop} batches"
        kept = {(step, sha) for attempt in attempts(run) for step, sha in records(attempt).items()}
        assert kept <= saved, f"stopped after {stop} batches"
        assert (outcome["checkpoint"]["step"], outcome["checkpoint"]["record_sha256"]) in kept


@pytest.mark.parametrize(
    "kept",
    [
        "checkpoint.max_rolling_checkpoints=9",
        "checkpoint.max_rolling_checkpoints=1",
        "checkpoint.keep_every_n_steps=4",
        "checkpoint.num_best_checkpoints=0",
    ],
)
def test_what_is_kept_on_the_disk_does_not_change_where_it_goes_back_to(kept: str, tmp_path: Path) -> None:
    """Nor does what an earlier attempt has left there: only two can be gone back to."""
    ends = []
    for run, overrides in (("plain", ()), ("kept", (kept,))):
        result = train(tiny(tmp_path, "text", *QUICK, weights_from(18), *overrides, run=run))
        check_diverged(result, tmp_path / run)
        ends.append((newest_attempt(tmp_path / run) / "metrics.jsonl").read_bytes())
    assert ends[0] == ends[1]


def test_what_an_earlier_attempt_has_left_is_not_gone_back_to_after_the_run_was_slowed(tmp_path: Path) -> None:
    """Back to 16, to 12 and slower, and to 12 again; 8 is there where the run was stopped at 10, and not elsewhere."""
    overrides = (*QUICK, "faults.inject=[nan_weight@18, nan_weight@20, nan_weight@24]")
    assert train(tiny(tmp_path, "text", *overrides, run="whole")).verdict == "done"
    backs = [row for row in rows_of(newest_attempt(tmp_path / "whole")) if row["event"] == "rolled_back"]
    assert [(row["step"], row["batch"]) for row in backs] == [(16, 19), (12, 21), (12, 25)]
    assert train(tiny(tmp_path, "text", *overrides), 10).exit_code == 75
    assert go_on(tmp_path / "run", stop_after=14).exit_code == 75  # two steps after the second rollback
    assert go_on(tmp_path / "run").verdict == "done"
    assert end_of(tmp_path / "run") == end_of(tmp_path / "whole")
