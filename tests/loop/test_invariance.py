"""What must change no bit of a run: validation, read-ahead, telemetry, and where it was stopped (cases S1 to S15)."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain import syscalls
from pretrain.batch import Batch
from pretrain.config import RunConfig
from pretrain.errors import ConfigError
from pretrain.evidence import checkpoint, namespace
from pretrain.policy.schedule import SCHEDULES
from tests.loop.lineages import end_of, tree
from tests.loop.probes import Unsynced, hook_loss, last_record, newest_attempt, noise, poison
from tests.tiny import go_on, tiny, train

TASKS = pytest.mark.parametrize("task", ["text", "iq"])
SIX_STEPS = ("training.max_steps=6", "model.layers=1")
# 22 text windows or 21 of IQ are 5 whole steps of 4, so 12 steps end within the third epoch.
SMALL_DATA = {"text": "data.train.letters.span=[0.0, 0.1]", "iq": "data.train.signals.windows=23"}


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "system", Unsynced())


def rows_of(run: Path, event: str = "step") -> list[dict[str, Any]]:
    lines = (newest_attempt(run) / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["event"] == event]


def csv_rows(attempt: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((attempt / "telemetry.csv").read_text().splitlines()))


def weights(config: RunConfig) -> str:
    result = train(config)
    assert result.verdict == "done", result
    return last_record(Path(config.run.dir)).content_sha256


@pytest.fixture(scope="module", params=["text", "iq"])
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return a task and the weights at the end of its six steps."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, weights(tiny(folder, request.param, *SIX_STEPS))


@pytest.mark.parametrize(
    "overrides",
    [
        ["validation.validate_every_n_steps=100"],
        ["validation.validate_every_n_steps=1"],
        ["validation.validate_every_n_steps=5", "validation.batch_size=7"],
        ["checkpoint.checkpoint_every_n_steps=1", "checkpoint.num_best_checkpoints=0"],
        ["checkpoint.checkpoint_every_n_steps=100"],
        ["data.prefetch_steps=0"],
        ["data.prefetch_steps=1"],
        ["data.prefetch_steps=5", "data.loader_threads=3"],
        ["telemetry.gradient_log_interval=1", "telemetry.enable_block_grad_norms=true"],
        ["telemetry.csv_log_path=steps.csv", "telemetry.telemetry_log_interval=1"],
    ],
    ids=" ".join,
)
def test_no_bit_of_the_weights_depends_on(plain: tuple[str, str], overrides: list[str], tmp_path: Path) -> None:
    task, expected = plain
    assert weights(tiny(tmp_path, task, *SIX_STEPS, *overrides)) == expected


def test_the_weights_do_depend_on_the_seed_and_the_rate(plain: tuple[str, str], tmp_path: Path) -> None:
    """Else the comparisons of this file could not fail."""
    task, expected = plain
    found = {expected}
    for number, override in enumerate(("training.seed=2", "optimizer.lr=1.0001e-2", "training.max_steps=5")):
        found.add(weights(tiny(tmp_path, task, *SIX_STEPS, override, run=f"run-{number}")))
    assert len(found) == 4


# --- the samples ---------------------------------------------------------------------------------------


class Seen:
    """The micro-batches that were trained on, in order: epoch, position, and what was in them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[tuple[int, int, bytes]] = []
        hook_loss(monkeypatch, self._see)

    def _see(self, batch: Batch, loss: torch.Tensor) -> torch.Tensor:
        self.batches.append((batch.epoch, batch.position, batch.samples.numpy().tobytes()))
        return loss

    def taken(self) -> list[tuple[int, int, bytes]]:
        batches, self.batches = self.batches, []
        return batches


@TASKS
def test_s1_s2_the_samples_go_on_where_the_run_was_stopped(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accumulation of two: the position counts samples, and no micro-batch is read twice or left out."""
    seen = Seen(monkeypatch)
    train(tiny(tmp_path, task, run="untouched"))
    reference = seen.taken()
    assert [(epoch, position) for epoch, position, _ in reference] == [(0, 2 * n) for n in range(24)]
    for stop in (1, 4, 5, 11):
        train(tiny(tmp_path, task, run=f"run-{stop}"), stop)
        assert last_record(tmp_path / f"run-{stop}").scalars["loader"] == {"epoch": 0, "position": 4 * stop}
        go_on(tmp_path / f"run-{stop}")
        assert seen.taken() == reference


@TASKS
def test_s3_s4_every_epoch_keeps_its_order_and_begins_at_its_begin(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(monkeypatch)
    train(tiny(tmp_path, task, SMALL_DATA[task], run="untouched"))
    reference, end = seen.taken(), end_of(tmp_path / "untouched")
    assert [(epoch, position) for epoch, position, _ in reference] == [(n // 10, 2 * (n % 10)) for n in range(24)], (
        "two whole epochs of five steps, and the begin of the third"
    )
    orders = [[content for epoch, _, content in reference if epoch == number] for number in (0, 1)]
    assert orders[0] != orders[1]
    for stop in (3, 5, 7, 10, 11):
        train(tiny(tmp_path, task, SMALL_DATA[task], run=f"run-{stop}"), stop)
        go_on(tmp_path / f"run-{stop}")
        assert seen.taken() == reference
        assert end_of(tmp_path / f"run-{stop}") == end


@TASKS
def test_s5_another_read_ahead_reads_the_same_samples_and_is_no_change_of_a_run(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(monkeypatch)
    orders = []
    for number, overrides in enumerate((["data.prefetch_steps=0"], ["data.prefetch_steps=4", "data.loader_threads=2"])):
        train(tiny(tmp_path, task, *overrides, run=f"run-{number}"), 5)
        go_on(tmp_path / f"run-{number}")
        orders.append(seen.taken())
    assert orders[0] == orders[1]
    train(tiny(tmp_path, task, run="run"), 5)
    before = tree(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"data\.loader_threads was 1 and would become 2; a resume keeps it"):
        go_on(tmp_path / "run", "data.loader_threads=2")
    assert tree(tmp_path / "run") == before


@TASKS
def test_s6_the_generators_go_on_where_the_run_was_stopped(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook_loss(monkeypatch, noise)
    train(tiny(tmp_path, task, run="untouched"))
    for stop in (1, 4, 7):
        train(tiny(tmp_path, task, run=f"run-{stop}"), stop)
        torch.rand(100)  # what another program in this process draws between the two
        go_on(tmp_path / f"run-{stop}")
        assert end_of(tmp_path / f"run-{stop}") == end_of(tmp_path / "untouched")
    monkeypatch.undo()
    train(tiny(tmp_path, task, run="quiet"))
    assert end_of(tmp_path / "quiet") != end_of(tmp_path / "untouched")


# --- the end -------------------------------------------------------------------------------------------


@TASKS
def test_s10_a_finished_run_has_nothing_to_do(task: str, tmp_path: Path) -> None:
    first = train(tiny(tmp_path, task, *SIX_STEPS))
    before = tree(tmp_path / "run")
    for overrides in ((), ("training.max_steps=6",), ("checkpoint.max_rolling_checkpoints=5",)):
        again = go_on(tmp_path / "run", *overrides)
        assert (again.verdict, again.exit_code, again.attempt, again.step) == ("done", 0, 1, 6)
        assert again.manifest_sha256 == first.manifest_sha256
        assert tree(tmp_path / "run") == before, "a byte or a time was changed"


@TASKS
def test_more_steps_go_on_from_the_end(task: str, tmp_path: Path) -> None:
    train(tiny(tmp_path, task))
    before = tree(tmp_path / "run" / "attempts" / "0001")
    rows = (tmp_path / "run" / "attempts" / "0001" / "metrics.jsonl").read_bytes()
    result = go_on(tmp_path / "run", "training.max_steps=17")
    assert (result.verdict, result.attempt, result.step) == ("done", 2, 17)
    assert (newest_attempt(tmp_path / "run") / "metrics.jsonl").read_bytes().startswith(rows)
    assert [row["step"] for row in rows_of(tmp_path / "run")] == list(range(1, 18))
    assert [row["step"] for row in rows_of(tmp_path / "run", "validation")] == [4, 8, 12, 16, 17]
    assert tree(tmp_path / "run" / "attempts" / "0001") == before
    with pytest.raises(ConfigError, match="a resume can only raise it"):
        go_on(tmp_path / "run", "training.max_steps=12")


@TASKS
def test_a_child_without_a_checkpoint_does_not_lose_what_its_ancestor_reached(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tiny(tmp_path, task, run="untouched"))
    train(tiny(tmp_path, task), 6)
    run = tmp_path / "run"

    def die(parts: object) -> None:
        raise ZeroDivisionError("the child dies")

    with monkeypatch.context() as patch:
        patch.setattr("pretrain.attempt.run.train", die)
        for number in (2, 3):
            with pytest.raises(ZeroDivisionError):
                go_on(run)
            assert newest_attempt(run).name == f"{number:04d}"
            assert checkpoint.list_checkpoints(newest_attempt(run)) == []
            (newest_attempt(run) / "outcome.json").unlink()  # a killed one leaves none
    assert go_on(run).attempt == 4
    parent = namespace.read_environment(newest_attempt(run))["parent"]
    assert parent["attempt"] == 1, "the attempt that holds the checkpoint it went on from"
    taken = [int(row["step"]) for row in csv_rows(newest_attempt(run))]
    assert taken == list(range(7, 13)), "no step was taken twice"
    assert end_of(run) == end_of(tmp_path / "untouched")


# --- the learning rate ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", sorted(SCHEDULES))
def test_s13_s14_the_learning_rate_is_that_of_the_step(scheduler: str, tmp_path: Path) -> None:
    overrides = ["model.layers=1", f"scheduler.scheduler_type={scheduler}"]
    if scheduler != "constant":
        overrides.append("scheduler.scheduler_warmup_ratio=0.25")
    config = tiny(tmp_path, "text", *overrides)
    multiplier = SCHEDULES[scheduler].build(config.scheduler.settings)
    expected = [(step, 1e-2 * multiplier(step - 1)) for step in range(1, 13)]
    assert scheduler == "constant" or len({rate for _, rate in expected}) >= 3
    train(config, 1)
    for stop in (4, 2, None):
        go_on(tmp_path / "run", stop_after=stop)
    assert [(row["step"], row["learning_rate"]) for row in rows_of(tmp_path / "run")] == expected
    attempts = [namespace.attempt_folder(tmp_path / "run", number) for number in range(1, 5)]
    shown = [(int(row["step"]), row["learning_rate"]) for attempt in attempts for row in csv_rows(attempt)]
    assert shown == [(step, repr(rate)) for step, rate in expected]


@TASKS
def test_s15_a_skipped_step_does_not_move_the_schedule(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tiny(tmp_path, task, run="healthy"))
    rates = [row["learning_rate"] for row in rows_of(tmp_path / "healthy")]
    hook_loss(monkeypatch, poison({(0, 4 * 4): "loss"}))  # the fifth batch
    train(tiny(tmp_path, task, run="untouched"))
    train(tiny(tmp_path, task), 5)  # the batch was refused, and step 4 is the last that was taken
    go_on(tmp_path / "run")
    for run in ("untouched", "run"):
        assert [row["learning_rate"] for row in rows_of(tmp_path / run)] == rates
        assert [row["batch"] for row in rows_of(tmp_path / run)] == [0, 1, 2, 3, *range(5, 13)]
        assert [row["step"] for row in rows_of(tmp_path / run, "skipped")] == [4]
    assert end_of(tmp_path / "run") == end_of(tmp_path / "untouched")
