"""A run from given weights: what its first checkpoint holds, what is on record, and what a resume asks for."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pretrain.attempt import start_attempt
from pretrain.errors import ConfigError, IntegrityError
from pretrain.evidence import checkpoint
from pretrain.machine.signals import StopRequest
from tests.cli.calling import flip, pretrain
from tests.loop.lineages import end_of, tree
from tests.loop.probes import killed_at
from tests.tiny import Recorder, go_on, tiny, train

SMALL = ("model.layers=1", "training.max_steps=6", "training.gradient_accumulation_steps=1")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    assert train(tiny(folder, "text", *SMALL)).verdict == "done"
    return folder / "run"


def environment(run: Path, number: int = 1) -> dict[str, Any]:
    found = json.loads((run / f"attempts/{number:04d}/environment.json").read_text())
    assert isinstance(found, dict)
    return found


def model_of(place: Path) -> dict[str, torch.Tensor]:
    tensors = load_file(place / "shard_00000.safetensors")
    return {name: tensor for name, tensor in tensors.items() if name.startswith("model.")}


def hugging_face(folder: Path, given: dict[str, torch.Tensor]) -> Path:
    """Write weights as the folder of a Llama model."""
    folder.mkdir()
    save_file({name.removeprefix("model."): tensor for name, tensor in given.items()}, folder / "model.safetensors")
    config = {
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
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def kill_before_the_first_checkpoint(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with killed_at(monkeypatch, "pretrain.attempt.run.save"):
        train(config)


@pytest.mark.parametrize("below", ["", "attempts/0001", "attempts/0001/checkpoints/step_00000006"])
def test_the_weights_of_the_newest_checkpoint_are_step_0(source: Path, tmp_path: Path, below: str) -> None:
    screen = Recorder()
    config = tiny(tmp_path, "text", *SMALL, f"init.from_checkpoint={source / below}")
    assert start_attempt(config, StopRequest(), [screen]).verdict == "done"
    place = source / "attempts/0001/checkpoints/step_00000006"
    given, taken = model_of(place), model_of(tmp_path / "run/attempts/0001/checkpoints/step_00000000")
    assert all(torch.equal(tensor, given[name]) for name, tensor in taken.items())
    assert taken.keys() == given.keys()
    moments = load_file(tmp_path / "run/attempts/0001/checkpoints/step_00000000/shard_00000.safetensors")
    assert all(not tensor.any() for name, tensor in moments.items() if name.startswith("optimizer."))
    record = environment(tmp_path / "run")
    assert (record["schema"], record["init"]["source"], record["init"]["path"]) == (2, "checkpoint", str(place))
    assert record["init"]["record_sha256"] == checkpoint.read_record(place).record_sha256
    assert any("weights" in dict(getattr(event, "details", ())) for event in screen.events)
    assert pretrain("verify-manifest", tmp_path / "run").code == 0


def test_a_run_that_draws_its_weights_has_the_record_that_it_always_had(source: Path) -> None:
    assert environment(source)["schema"] == 1
    assert "init" not in environment(source)


def test_the_identity_is_that_of_the_weights_and_not_of_their_path(source: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(source, tmp_path / "moved")
    records = {}
    for name, path in (("a", source), ("b", moved), ("c", source / "attempts/0001/checkpoints/step_00000004")):
        train(tiny(tmp_path, "text", *SMALL, f"init.from_checkpoint={path}", run=name))
        records[name] = end_of(tmp_path / name)
    assert records["a"] == records["b"] != records["c"]


def test_a_resume_needs_the_source_no_more(source: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(source, tmp_path / "moved")
    override = f"init.from_checkpoint={moved}"
    train(tiny(tmp_path, "text", *SMALL, override, run="whole"))
    assert train(tiny(tmp_path, "text", *SMALL, override), 3).verdict == "interrupted"
    shutil.rmtree(moved)
    assert go_on(tmp_path / "run").verdict == "done"
    assert end_of(tmp_path / "run") == end_of(tmp_path / "whole")
    assert environment(tmp_path / "run", 2)["init"] == environment(tmp_path / "run")["init"]
    assert pretrain("verify-manifest", tmp_path / "run", "--lineage").code == 0


def test_an_attempt_without_a_checkpoint_needs_the_same_weights(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = shutil.copytree(source, tmp_path / "moved")
    override = f"init.from_checkpoint={moved}"
    train(tiny(tmp_path, "text", *SMALL, override, run="whole"))
    kill_before_the_first_checkpoint(tiny(tmp_path, "text", *SMALL, override), monkeypatch)
    shutil.rmtree(moved)
    with pytest.raises(ConfigError, match=r"init.from_checkpoint: .*found none there"):
        go_on(tmp_path / "run")
    with pytest.raises(IntegrityError, match="not the weights that the run started from"):
        go_on(tmp_path / "run", f"init.from_checkpoint={source}/attempts/0001/checkpoints/step_00000004")
    assert go_on(tmp_path / "run", f"init.from_checkpoint={source}").verdict == "done"
    assert end_of(tmp_path / "run") == end_of(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["checkpoint", "huggingface"])
def test_another_path_leads_to_the_same_weights_or_is_refused(source: Path, tmp_path: Path, kind: str) -> None:
    given = model_of(source / "attempts/0001/checkpoints/step_00000006")
    other = model_of(source / "attempts/0001/checkpoints/step_00000004")
    places = {
        "checkpoint": [source, shutil.copytree(source, tmp_path / "moved")],
        "huggingface": [hugging_face(tmp_path / name, given) for name in ("llama", "copy")],
    }[kind]
    wrong = {
        "checkpoint": f"{source}/attempts/0001/checkpoints/step_00000004",
        "huggingface": hugging_face(tmp_path / "other", other),
    }[kind]
    key = f"init.from_{kind}"
    train(tiny(tmp_path, "text", *SMALL, f"{key}={places[0]}", run="whole"))
    assert train(tiny(tmp_path, "text", *SMALL, f"{key}={places[0]}"), 3).verdict == "interrupted"
    run, before = tmp_path / "run", tree(tmp_path / "run/attempts")
    recorded = environment(run)["init"]["weights_sha256"]
    with pytest.raises(IntegrityError) as caught:
        go_on(run, f"{key}={wrong}")
    for text in (key, str(wrong), f"of SHA-256 {recorded}", "not the weights that the run started from"):
        assert text in str(caught.value)
    assert str(caught.value).count("SHA-256") == 2
    with pytest.raises(ConfigError, match="found none there"):
        go_on(run, f"{key}={tmp_path / 'gone'}")
    assert tree(run / "attempts") == before
    assert go_on(run, f"{key}={places[1]}").verdict == "done"
    assert end_of(run) == end_of(tmp_path / "whole")
    moved = environment(run, 2)["init"]
    assert moved["path"].startswith(str(places[1]))
    assert moved["weights_sha256"] == recorded


def test_what_does_not_fit_or_verify_is_refused_before_anything_is_written(source: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(source, tmp_path / "damaged")
    flip(damaged / "attempts/0001/checkpoints/step_00000006/shard_00000.safetensors")
    (tmp_path / "empty").mkdir()
    for error, path, changes, expected in (
        (IntegrityError, damaged, (), "step_00000006/shard_00000.safetensors: expected SHA-256"),
        (
            ConfigError,
            source,
            ("model.width=32",),
            r"embed_tokens.weight: expected F32 \[256, 32\], found F32 .*: expected F32 \[32\], found F32 \[16\]",
        ),
        (ConfigError, source, ("model.layers=2",), "model.model.layers.1.*: not in the checkpoint"),
        (ConfigError, source, ("model.tie_embeddings=false",), "model.lm_head.weight: not in the checkpoint"),
        (ConfigError, tmp_path / "empty", (), "expected an attempt .* or a checkpoint folder"),
        (ConfigError, tmp_path / "gone", (), "found none there"),
    ):
        with pytest.raises(error, match=expected):
            train(tiny(tmp_path, "text", *SMALL, *changes, f"init.from_checkpoint={path}"))
    assert not (tmp_path / "run").exists()


def refused(folder: Path, task: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        train(tiny(folder, task, *SMALL, *overrides))
    assert not (folder / "run").exists()
    return str(caught.value)


def test_weights_that_do_not_fit_are_told_by_key_with_what_decides_it(source: Path, tmp_path: Path) -> None:
    given = f"init.from_checkpoint={source}"
    place = source / "attempts/0001/checkpoints/step_00000006"
    for task, overrides, was in (
        ("text", ["model.width=32"], "model.width was 16"),
        ("text", ["model.qk_norm=true"], "model.qk_norm was false"),
        ("text", ["model.tie_embeddings=false", "data.sequence_length=8"], "model.tie_embeddings was true"),
        ("text", ["model.positions=learned", "data.sequence_length=8"], "data.sequence_length was 16, model.positions"),
        ("text", ["model.experts={count: 4}"], "model.experts was null"),
        ("iq", [], "task.name was text"),
    ):
        text = refused(tmp_path, task, *overrides, given)
        assert text.startswith(f"init.from_checkpoint: {place}: does not fit this model: model."), text
        assert "optimizer" not in text
        assert f"; where the weights were trained {was}" in text, text
    alone = shutil.copytree(place, tmp_path / "alone")
    text = refused(tmp_path, "text", "model.width=32", f"init.from_checkpoint={alone}")
    assert text.startswith(f"init.from_checkpoint: {alone}: does not fit this model: model.model.")
    assert "were trained" not in text


def test_of_many_weights_that_do_not_fit_ten_are_named(source: Path, tmp_path: Path) -> None:
    text = refused(tmp_path, "text", "model.layers=3", f"init.from_checkpoint={source}")
    assert text.count("not in the checkpoint") == 10
    assert "; and 8 more; where the weights were trained model.layers was 1" in text


def test_biases_of_routers_that_are_not_there_are_explained(tmp_path: Path) -> None:
    experts = ("model.experts.count=4", "training.max_steps=1")
    assert train(tiny(tmp_path, "text", *SMALL, *experts, "model.experts.balance=0", run="first")).verdict == "done"
    text = refused(tmp_path, "text", *experts, f"init.from_checkpoint={tmp_path / 'first'}")
    assert "e_score_correction_bias: not in the checkpoint; where the weights were trained" in text
    assert text.endswith("model.experts.balance was 0.0")


def test_settings_that_no_shape_shows_are_told(source: Path, tmp_path: Path) -> None:
    screen = Recorder()
    other = ("model.heads=4", "model.kv_heads=2", "model.rope_base=500", "model.init_std=0.1")
    config = tiny(tmp_path, "text", *SMALL, *other, f"init.from_checkpoint={source}", "training.max_steps=1")
    assert start_attempt(config, StopRequest(), [screen]).verdict == "done"
    warned = [event.text for event in screen.events if "where the weights were trained" in getattr(event, "text", "")]
    assert warned == [
        "model.heads was 2 where the weights were trained, and is 4",
        "model.kv_heads was 1 where the weights were trained, and is 2",
        "model.rope_base was 10000.0 where the weights were trained, and is 500.0",
    ]
    alone = shutil.copytree(source / "attempts/0001/checkpoints/step_00000006", tmp_path / "alone")
    config = tiny(tmp_path, "text", *SMALL, f"init.from_checkpoint={alone}", "training.max_steps=1", run="second")
    assert start_attempt(config, StopRequest(), [Recorder()]).verdict == "done"


def test_a_folder_of_hugging_face(source: Path, tmp_path: Path) -> None:
    folder = hugging_face(tmp_path / "llama", model_of(source / "attempts/0001/checkpoints/step_00000006"))
    screen = Recorder()
    run = start_attempt(tiny(tmp_path, "text", *SMALL, f"init.from_huggingface={folder}"), StopRequest(), [screen])
    assert run.verdict == "done"
    record = environment(tmp_path / "run")["init"]
    assert (record["source"], record["path"], record["record_sha256"]) == ("huggingface", str(folder), None)
    assert any("1e-05" in getattr(event, "text", "") for event in screen.events)
    # The same weights by another way are the same run.
    train(tiny(tmp_path, "text", *SMALL, f"init.from_checkpoint={source}", run="other"))
    assert end_of(tmp_path / "run") == end_of(tmp_path / "other")


def test_a_run_on_iq_starts_from_another(tmp_path: Path) -> None:
    train(tiny(tmp_path, "iq", *SMALL, run="first"))
    config = tiny(tmp_path, "iq", *SMALL, f"init.from_checkpoint={tmp_path / 'first'}", "training.max_steps=1")
    assert train(config).verdict == "done"
    given = model_of(tmp_path / "first/attempts/0001/checkpoints/step_00000006")
    taken = model_of(tmp_path / "run/attempts/0001/checkpoints/step_00000000")
    assert {name: tensor.tolist() for name, tensor in taken.items()} == {n: t.tolist() for n, t in given.items()}


def test_a_rate_is_scaled_to_the_batch_and_shown(tmp_path: Path) -> None:
    screen = Recorder()
    scaled = ("optimizer.lr_scaling=sqrt", "optimizer.base_batch_size=8", "scheduler={scheduler_warmup_ratio: 0.0}")
    assert start_attempt(tiny(tmp_path, "text", *SMALL, *scaled), StopRequest(), [screen]).verdict == "done"
    details = next(dict(event.details) for event in screen.events if hasattr(event, "details"))
    assert details["learning rate"] == "peak 0.005: 0.01 scaled by sqrt from 8 to 2 windows a step"
    lines = (tmp_path / "run/attempts/0001/metrics.jsonl").read_text().splitlines()
    rates = [row["learning_rate"] for row in map(json.loads, lines) if row["event"] == "step"]
    assert rates[0] == 0.005
