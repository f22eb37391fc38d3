"""A refused step touches nothing, is on record, and ends the attempt once the budget is spent."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from pretrain import lineage, syscalls
from pretrain.attempt import start_attempt
from pretrain.config import RunConfig
from pretrain.evidence import checkpoint
from pretrain.loop import LoopParts
from pretrain.loop import train as loop_train
from pretrain.machine.signals import StopRequest
from pretrain.telemetry.sink import Event, StepRow
from tests.loop.lineages import end_of, tree
from tests.loop.probes import Unsynced, digest, hook_loss, newest_attempt, noise, poison
from tests.tiny import go_on, tiny, train

TASKS = pytest.mark.parametrize("task", ["text", "iq"])
SAMPLES = 4  # of one step of the tiny runs


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "system", Unsynced())


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (newest_attempt(run) / "metrics.jsonl").read_text().splitlines()]


class Digests:
    """A sink that knows the state's digest after each step, and at the begin of the loop: (action, digest)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[tuple[str, str]] = []
        self.parts: LoopParts | None = None
        monkeypatch.setattr("pretrain.attempt.run.train", self._train)

    def _train(self, parts: LoopParts) -> None:
        self.parts = parts
        self._take("begin")
        loop_train(parts)

    def _take(self, action: str) -> None:
        assert self.parts is not None
        self.found.append((action, digest(self.parts.state.tensors())))

    def emit(self, event: Event) -> None:
        """Take the digest once a step is over: its row is the last that is shown of it."""
        if isinstance(event, StepRow):
            self._take(event.action)

    def close(self) -> None:
        """Nothing is open."""


REASONS = [
    ("loss", (), "non_finite_loss"),
    ("gradient", (), "non_finite_norm"),
    ("huge", ("training.grad_clip_max_norm=null", "guard.inf_post_clip_threshold=1.0"), "post_clip"),
]


@TASKS
@pytest.mark.parametrize(("kind", "overrides", "reason"), REASONS, ids=[reason for *_, reason in REASONS])
def test_a_skipped_step_leaves_every_tensor_as_it_was(
    task: str, kind: str, overrides: tuple[str, ...], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Model, optimizer and generators; the loss draws from the generator, so that there is something to put back."""
    hook_loss(monkeypatch, noise)
    hook_loss(monkeypatch, poison({(0, SAMPLES * 2): kind, (0, SAMPLES * 5 + 2): kind}))  # one in a second micro-batch
    digests = Digests(monkeypatch)
    config = tiny(tmp_path, task, "training.max_steps=6", *overrides)
    assert start_attempt(config, StopRequest(), [digests]).verdict == "done"
    actions = [action for action, _ in digests.found]
    assert " ".join(actions) == "begin accept accept skip accept accept skip accept accept"
    for (_, before), (action, after) in zip(digests.found, digests.found[1:], strict=False):
        assert (before == after) == (action == "skip")
    skipped = [row for row in rows_of(tmp_path / "run") if row["event"] == "skipped"]
    assert [(row["step"], row["batch"], row["reason"], row["retries"]) for row in skipped] == [
        (2, 2, reason, 0),
        (4, 5, reason, 1),
    ]
    assert [row["incident"] for row in skipped] == [1, 2]
    assert (skipped[0]["loss"] == "nan") == (kind == "loss")
    assert (skipped[0]["gradient_norm"] in ("nan", "inf")) == (kind != "huge")
    assert (skipped[0]["largest"] is not None) == (kind == "huge")
    manifest = json.loads((newest_attempt(tmp_path / "run") / "manifest.json").read_text())
    assert (manifest["counts"]["skipped"], manifest["counts"]["incidents"]) == (2, 2)
    assert (manifest["step"], manifest["batch"]) == (6, 8)


@TASKS
def test_a_run_with_refused_steps_is_stopped_anywhere_and_ends_in_the_same_bytes(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook_loss(monkeypatch, noise)
    places = {(0, SAMPLES * batch): kind for batch, kind in ((1, "loss"), (4, "gradient"), (5, "loss"))}
    hook_loss(monkeypatch, poison(places))
    overrides = ("training.max_steps=8", "model.layers=1", "checkpoint.checkpoint_every_n_steps=3")
    assert train(tiny(tmp_path, task, *overrides, run="untouched")).verdict == "done"
    for stop in range(1, 11):
        assert train(tiny(tmp_path, task, *overrides, run=f"run-{stop}"), stop).verdict == "interrupted"
        assert go_on(tmp_path / f"run-{stop}").verdict == "done"
        assert end_of(tmp_path / f"run-{stop}") == end_of(tmp_path / "untouched"), f"stopped after {stop} batches"


def every_batch_from(first: int) -> dict[tuple[int, int], str]:
    return {(0, SAMPLES * batch): "loss" for batch in range(first, 40)}


@pytest.mark.parametrize(
    ("places", "overrides", "steps", "skips"),
    [
        (every_batch_from(0), (), 0, 3),
        (every_batch_from(5), (), 5, 3),
        (every_batch_from(5), ("guard.max_nan_retries=0",), 5, 0),
        (every_batch_from(5), ("guard.max_nan_retries=1",), 5, 1),
        ({(0, SAMPLES * batch): "loss" for batch in (1, 4, 7, 10)}, (), 7, 3),
        ({(0, SAMPLES * batch): "loss" for batch in (1, 4, 7, 10)}, ("guard.nan_retry_window_steps=0",), 7, 3),
        ({(0, SAMPLES * batch): "loss" for batch in (1, 4, 7, 10)}, ("guard.nan_retry_window_steps=3",), 12, 4),
    ],
    ids=["from the first", "from step 5", "no retry", "one retry", "now and then", "never forgotten", "forgotten"],
)
@TASKS
def test_s19_s20_the_budget_of_retries(
    task: str,
    places: dict[tuple[int, int], str],
    overrides: tuple[str, ...],
    steps: int,
    skips: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S19, S20: four refusals within the window are one too many, wherever they come, the first step included."""
    hook_loss(monkeypatch, poison(places))
    actions: list[str] = []
    result = start_attempt(tiny(tmp_path, task, *overrides), StopRequest(), [Actions(actions.append)])
    assert (result.step, actions.count("skip")) == (steps, skips)
    if steps == 12:
        assert (result.verdict, result.exit_code) == ("done", 0)
        return
    assert actions[-1] == "fail"
    check_diverged(tmp_path / "run", steps, skips)
    assert (result.verdict, result.exit_code, result.manifest_sha256) == ("diverged", 4, None)


class Actions:
    """A sink that hands on the guard's word for each step."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self.take = take

    def emit(self, event: Event) -> None:
        """Hand on the word of a step's row."""
        if isinstance(event, StepRow):
            self.take(event.action)

    def close(self) -> None:
        """Nothing is open."""


def check_diverged(run: Path, steps: int, skips: int) -> None:
    """No manifest; outcome.json says where, why and from where to go on; every weight on disk is finite."""
    attempt = newest_attempt(run)
    assert not (attempt / "manifest.json").exists()
    outcome = json.loads((attempt / "outcome.json").read_text())
    assert (outcome["verdict"], outcome["exit_code"], outcome["step"]) == ("diverged", 4, steps)
    assert outcome["batch"] == steps + skips + 1
    assert outcome["resume"] is None, "the same data and rules end there again"
    last, folder = checkpoint.list_checkpoints(attempt)[-1]
    record = checkpoint.verify_checkpoint(folder)
    assert outcome["checkpoint"] == {"step": last, "record_sha256": record.record_sha256}
    assert last == steps - steps % 4, "the newest checkpoint of the cadence"
    tensors = {name: tensor for shard in folder.glob("*.safetensors") for name, tensor in load_file(shard).items()}
    assert any(name.startswith("model.") for name in tensors)
    assert all(bool(tensor.isfinite().all()) for tensor in tensors.values())
    found = lineage.verify(attempt)
    assert not found.ok
    assert found.sound, found.text()
    refused = [row for row in rows_of(run) if row["event"] == "skipped"]
    assert [row["retries"] for row in refused] == list(range(skips + 1))


@TASKS
def test_a_diverged_run_ends_the_same_way_again_and_keeps_its_parent(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook_loss(monkeypatch, poison(every_batch_from(5)))
    digests = Digests(monkeypatch)
    config: RunConfig = tiny(tmp_path, task)
    assert start_attempt(config, StopRequest(), [digests]).verdict == "diverged"
    assert digests.parts is not None
    assert all(bool(tensor.isfinite().all()) for tensor in digests.parts.state.state_tensors().values())
    assert [digest_ for _, digest_ in digests.found[6:]] == [digests.found[5][1]] * 4, "three skips and the failure"
    parent = newest_attempt(tmp_path / "run")
    before, rows = tree(parent), (parent / "metrics.jsonl").read_bytes()
    again = go_on(tmp_path / "run")
    assert (again.verdict, again.exit_code, again.attempt, again.step) == ("diverged", 4, 2, 5)
    assert tree(parent) == before
    assert (newest_attempt(tmp_path / "run") / "metrics.jsonl").read_bytes() == rows
