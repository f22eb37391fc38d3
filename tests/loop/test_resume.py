"""A run stopped anywhere and resumed ends in the same bytes as the one that was not."""

import itertools
from pathlib import Path

import pytest

from pretrain.attempt import AttemptResult
from tests.tiny import go_on, tiny, train

# What draws in a step, computes a block again or knows where a document begins, all at once.
FEATURES = {
    "text": ("model.dropout=0.1", "task.chunk_tokens=10", "task.z_loss=1e-3", "data.document_mask=true"),
    "iq": ("model.dropout=0.1", "model.positions=learned", "training.activation_checkpointing=full"),
}
# A bias that every step moves, and what its monitor remembers.
EXPERTS = (
    "model.experts={count: 5, balance: 0.01, auxiliary_weight: 0.01, router_z_weight: 0.001}",
    "monitors.experts.every_n_steps=2",
    "training.activation_checkpointing=full",
)
SELECTIVE = ("training.activation_checkpointing=selective",)
CASES = [
    *(
        (task, precision, ())
        for task, precision in itertools.product(("text", "iq"), ("float32", "bfloat16", "float16"))
    ),
    ("text", "bfloat16", (*FEATURES["text"], *SELECTIVE)),
    ("iq", "float32", FEATURES["iq"]),
    ("text", "float32", EXPERTS),
]


def _of_features(features: tuple[str, ...]) -> tuple[str, ...]:
    return ("experts",) if features == EXPERTS else ("features",) if features else ()


def newest(run_dir: Path) -> Path:
    return max((run_dir / "attempts").iterdir())


def end_of(result: AttemptResult, run_dir: Path) -> tuple[str, bytes]:
    assert result.verdict == "done", result
    assert result.checkpoint is not None
    return result.checkpoint.record_sha256, (newest(run_dir) / "metrics.jsonl").read_bytes()


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join((*case[:2], *_of_features(case[2]))))
def untouched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    task, precision, features = request.param
    folder = tmp_path_factory.mktemp(f"{task}-{precision}")
    overrides = (f"training.precision={precision}", *features)
    reference = end_of(train(tiny(folder, task, *overrides, run="untouched")), folder / "untouched")
    return folder, task, overrides, reference


@pytest.mark.parametrize("stop_after", range(1, 13))
def test_stopped_anywhere_and_resumed(untouched, stop_after: int):
    folder, task, overrides, reference = untouched
    run = f"stopped-{stop_after}"
    first = train(tiny(folder, task, *overrides, run=run), stop_after)
    assert (first.verdict, first.exit_code) == ("interrupted", 75)
    assert end_of(go_on(folder / run), folder / run) == reference


def test_stopped_after_every_step(untouched):
    folder, task, overrides, reference = untouched
    result = train(tiny(folder, task, *overrides, run="often"), 1)
    while result.verdict == "interrupted":
        result = go_on(folder / "often", stop_after=1)
    assert end_of(result, folder / "often") == reference
    assert newest(folder / "often").name == "0013"
