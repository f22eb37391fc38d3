"""A run stopped anywhere and resumed ends in the same bytes as the one that was not."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from pretrain.attempt import AttemptResult
from pretrain.errors import ConfigError
from pretrain.lock import Lock
from tests.tiny import go_on, tiny, train

CASES = list(itertools.product(("text", "iq"), ("float32", "bfloat16", "float16")))


def newest(run_dir: Path) -> Path:
    return max((run_dir / "attempts").iterdir())


def end_of(result: AttemptResult, run_dir: Path) -> tuple[str, bytes]:
    assert result.verdict == "done", result
    assert result.checkpoint is not None
    return result.checkpoint.record_sha256, (newest(run_dir) / "metrics.jsonl").read_bytes()


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case))
def untouched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    task, precision = request.param
    folder = tmp_path_factory.mktemp(f"{task}-{precision}")
    override = f"training.precision={precision}"
    reference = end_of(train(tiny(folder, task, override, run="untouched")), folder / "untouched")
    return folder, task, override, reference


@pytest.mark.parametrize("stop_after", range(1, 13))
def test_stopped_anywhere_and_resumed(untouched, stop_after: int):
    folder, task, override, reference = untouched
    run = f"stopped-{stop_after}"
    first = train(tiny(folder, task, override, run=run), stop_after)
    assert (first.verdict, first.exit_code) == ("interrupted", 75)
    assert end_of(go_on(folder / run), folder / run) == reference


def test_stopped_after_every_step(untouched):
    folder, task, override, reference = untouched
    result = train(tiny(folder, task, override, run="often"), 1)
    while result.verdict == "interrupted":
        result = go_on(folder / "often", stop_after=1)
    assert end_of(result, folder / "often") == reference
    assert newest(folder / "often").name == "0013"


# What draws in a step, computes a block again, knows where a document begins, or moves a bias that is no parameter.
FEATURES = {
    "text": (
        *("model.dropout=0.1", "task.chunk_tokens=10", "task.z_loss=1e-3", "data.document_mask=true"),
        *("training.precision=bfloat16", "training.activation_checkpointing=selective"),
    ),
    "iq": ("model.dropout=0.1", "model.positions=learned", "training.activation_checkpointing=full"),
}
EXPERTS = (
    "model.experts={count: 5, balance: 0.01, auxiliary_weight: 0.01, router_z_weight: 0.001}",
    "monitors.experts.every_n_steps=2",
    "training.activation_checkpointing=full",
)


@pytest.mark.parametrize(
    ("task", "overrides"), [*FEATURES.items(), ("text", EXPERTS)], ids=["text", "iq", "text-experts"]
)
def test_with_what_a_step_draws_or_moves_besides_it_is_the_same(task: str, overrides: tuple[str, ...], tmp_path: Path):
    reference = end_of(train(tiny(tmp_path, task, *overrides, run="untouched")), tmp_path / "untouched")
    result = train(tiny(tmp_path, task, *overrides, run="often"), 1)
    while result.verdict == "interrupted":
        result = go_on(tmp_path / "often", stop_after=1)
    assert end_of(result, tmp_path / "often") == reference


def test_what_another_process_did_before_the_lock_was_free_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two resumes of a run, of which the second has looked for the newest attempt before the first made another."""
    assert train(tiny(tmp_path), 5).verdict == "interrupted"
    real = Lock.acquire

    def acquire(*words: Any) -> Lock:
        monkeypatch.setattr(Lock, "acquire", real)
        assert go_on(tmp_path / "run").attempt == 2
        return real(*words)

    monkeypatch.setattr(Lock, "acquire", acquire)
    late = go_on(tmp_path / "run")
    assert (late.verdict, late.attempt) == ("done", 2)
    assert newest(tmp_path / "run").name == "0002"


def test_a_checkpoint_that_an_ancestor_holds_is_named_with_its_command(tmp_path: Path) -> None:
    keep = "checkpoint.max_rolling_checkpoints=9"
    assert train(tiny(tmp_path, "text", keep), 6).verdict == "interrupted"
    run = tmp_path / "run"
    assert go_on(run, stop_after=1).verdict == "interrupted"
    assert go_on(run, stop_after=2).verdict == "interrupted"
    first = run / "attempts/0001"
    expected = (
        f"--checkpoint: {run / 'attempts/0003'} holds no checkpoint of step 4; it holds those of 8, 9. Attempt 0001, "
        f"which it goes on from, does: `pretrain resume --attempt {first} --checkpoint 4`"
    )
    with pytest.raises(ConfigError, match=re.escape(expected)):
        go_on(run, step=4)
    with pytest.raises(ConfigError, match=r"holds no checkpoint of step 5; it holds those of 8, 9$"):
        go_on(run, step=5)
    assert go_on(first, step=4).attempt == 4
    # What attempt 0001 saved after its step 4 is no part of what attempt 0004 is.
    with pytest.raises(ConfigError, match=r"holds no checkpoint of step 6; it holds those of 8, 12$"):
        go_on(run, step=6)
