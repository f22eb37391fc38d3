"""A plan of a run from given weights is refused where the run would be, in the same words."""

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pretrain.machine.signals import STOP_SIGNALS
from tests.cli.calling import Answer, contents, flip, pretrain
from tests.tiny import tiny, train, write_config

SHORT = ("training.max_steps=1", "model.layers=1")
STEP = "attempts/0001/checkpoints/step_00000001"
CONFIG = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 64,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
}


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and its weights as a folder of Hugging Face."""
    folder = tmp_path_factory.mktemp("weights")
    assert train(tiny(folder, "text", *SHORT)).verdict == "done"
    (folder / "llama").mkdir()
    (folder / "llama/config.json").write_text(json.dumps(CONFIG))
    held = load_file(folder / "run" / STEP / "shard_00000.safetensors")
    save_file(
        {name.removeprefix("model."): one for name, one in held.items() if name.startswith("model.")},
        folder / "llama/model.safetensors",
    )
    return folder


def both(config: Path, *words: object) -> tuple[Answer, Answer]:
    return pretrain("plan", "--config", config, *SHORT, *words), pretrain("train", "--config", config, *SHORT, *words)


@pytest.mark.parametrize(
    ("key", "place", "changes", "code", "text"),
    [
        ("huggingface", "gone", [], 2, "expected a folder, found none there"),
        ("huggingface", "llama", ["model.layers=2"], 2, "num_hidden_layers is 1, but model.layers is 2"),
        ("huggingface", "unnamed", [], 2, "config.json: missing"),
        ("huggingface", "lacking", [], 2, "model.norm.weight: not in the files"),
        ("huggingface", "torn", [], 3, "expected a safetensors file"),
        ("checkpoint", "gone", [], 2, "found none there"),
        (
            "checkpoint",
            "run",
            ["model.width=32"],
            2,
            "does not fit this model: model.model.embed_tokens.weight: expected",
        ),
        ("checkpoint", "flipped", [], 3, "shard_00000.safetensors: expected SHA-256"),
    ],
)
def test_a_plan_refuses_what_the_run_refuses(
    weights: Path, tmp_path: Path, key: str, place: str, changes: list[str], code: int, text: str
) -> None:
    whole = shutil.copytree(weights, tmp_path / "weights")
    for name in ("unnamed", "lacking", "torn"):
        shutil.copytree(whole / "llama", whole / name)
    (whole / "unnamed/config.json").unlink()
    save_file({"model.other": torch.ones(1)}, whole / "lacking/model.safetensors")
    torn = whole / "torn/model.safetensors"
    torn.write_bytes(torn.read_bytes()[:-5])
    flip(shutil.copytree(whole / "run", whole / "flipped") / STEP / "shard_00000.safetensors")
    config = write_config(tmp_path)
    before = contents(tmp_path)
    planned, trained = both(config, *changes, f"init.from_{key}={whole / place}")
    assert (planned.code, planned.out) == (code, "")
    assert text in planned.err
    assert planned.err == trained.err
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["init.from_huggingface={}/llama"], "the norms of the weights it starts from add 1e-05"),
        (["init.from_checkpoint={}/run", "model.rope_base=500"], "model.rope_base was 10000.0 where the weights"),
    ],
)
def test_weights_that_fit_are_planned_and_their_notes_are_told(
    weights: Path, tmp_path: Path, words: list[str], note: str
) -> None:
    given = [word.format(weights) for word in words]
    answer = pretrain("plan", "--config", write_config(tmp_path), *SHORT, *given, "--json")
    assert answer.code == 0
    assert any(one.startswith(note) for one in answer.json["warnings"]), answer.json["warnings"]
    assert f"\nwarning              {note}" in pretrain("plan", "--config", tmp_path / "text.yaml", *SHORT, *given).out
