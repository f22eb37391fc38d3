"""What stdout carries: the answer alone, in the fields that scripts rely on."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
import typer

from pretrain import cli
from pretrain.config import MIGRATABLE, load
from tests.cli.calling import contents, flip, pretrain
from tests.tiny import go_on, write_config

SHA256 = 64


@pytest.mark.parametrize(
    ("task", "figures"),
    [
        ("text", {"loss", "bits_per_byte", "bigram", "trigram"}),
        ("iq", {"loss", "nmse", "nmse_zero", "nmse_linear"}),
    ],
)
def test_train(tmp_path: Path, task: str, figures: set[str]) -> None:
    answer = pretrain("train", "--config", write_config(tmp_path, task), "training.max_steps=4", "--json")
    assert answer.code == 0
    found = answer.json
    assert list(found) == sorted(
        ["verdict", "exit_code", "attempt", "step", "manifest_sha256", "checkpoint", "validation"]
    )
    assert (found["verdict"], found["exit_code"], found["attempt"], found["step"]) == ("done", 0, 1, 4)
    assert set(found["checkpoint"]) == {"step", "record_sha256"}
    manifest = tmp_path / "run/attempts/0001/manifest.json"
    assert found["manifest_sha256"] == hashlib.sha256(manifest.read_bytes()).hexdigest()
    (domain,) = found["validation"].values()
    assert set(domain) == figures | {"samples", "classes"}
    assert "step 4/4" in answer.err
    assert f"next: pretrain verify-manifest {manifest.parent}\n" in answer.err


def test_resume_of_a_stopped_run(stopped: Path, made: Path) -> None:
    record = (stopped / "attempts/0001/checkpoints/step_00000006/checkpoint.json").read_bytes()
    words = ["--expect-sha256", hashlib.sha256(record).hexdigest().upper()]
    answer = pretrain("resume", "--attempt", stopped, *words, "--json", "--quiet")
    found = answer.json
    assert (answer.code, found["verdict"], found["attempt"], found["step"]) == (0, "done", 2, 12)
    whole = json.loads((made / "finished/attempts/0001/manifest.json").read_bytes())
    assert found["checkpoint"] == {"step": 12, "record_sha256": whole["latest"]["record_sha256"]}
    assert set(found["validation"]) == {"letters"}
    assert "step 12/12" not in answer.err


def test_resume_of_a_finished_run(finished: Path) -> None:
    before = contents(finished)
    answer = pretrain("resume", "--attempt", finished, "--json")
    manifest = hashlib.sha256((finished / "attempts/0001/manifest.json").read_bytes()).hexdigest()
    assert answer.code == 0
    assert answer.json["manifest_sha256"] == manifest
    assert answer.json["attempt"] == 1
    rows = [json.loads(line) for line in (finished / "attempts/0001/metrics.jsonl").read_text().splitlines()]
    (last,) = [row for row in rows if row["event"] == "validation" and row["step"] == 12]
    figures = answer.json["validation"]["letters"]
    assert {"loss", "bits_per_byte", "samples"} <= set(figures)
    assert {name: last[name] for name in figures} == figures
    assert "nothing to do" in answer.err
    assert contents(finished) == before


def test_resume_of_another_attempt_than_the_newest_says_so(stopped: Path) -> None:
    assert "is not the newest" not in pretrain("resume", "--attempt", stopped, "--quiet").err
    answer = pretrain("resume", "--attempt", stopped / "attempts/0001", "--json")
    assert (answer.code, answer.json["attempt"]) == (0, 3)
    assert "warning: attempt 0001 is not the newest: this branches off and leaves attempt 0002 as it is" in answer.err
    said = pretrain("resume", "--attempt", stopped / "attempts/0002", "--json").err
    newest = f"the newest attempt is 0003: `pretrain resume --attempt {stopped}` goes on from its checkpoint of step 12"
    assert f"attempt 0002 is done at step 12: nothing to do; training.max_steps=N goes on to N; {newest}\n" in said


def test_a_relative_path_stays_one(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(stopped.parent)
    answer = pretrain("resume", "--attempt", "stopped/attempts/0001")
    assert answer.code == 0
    assert "next: pretrain verify-manifest stopped/attempts/0002\n" in answer.err
    assert "dir: stopped\n" in (stopped / "attempts/0002/config.yaml").read_text()


def test_resume_under_other_surroundings_says_so(stopped: Path) -> None:
    answer = pretrain("resume", "--attempt", stopped, "training.threads=2")
    torch.set_num_threads(1)
    assert answer.code == 0
    text = "not bit for bit the run it goes on from: threads was 1, is 2"
    assert f"warning: {text}\n" in answer.err
    events = [json.loads(line) for line in (stopped / "attempts/0002/events.jsonl").read_text().splitlines()]
    assert [(row["text"], row["step"]) for row in events if row["event"] == "warning"] == [(text, 6)]


def test_resume_that_goes_further(finished: Path) -> None:
    answer = pretrain("resume", "--attempt", finished, "training.max_steps=14", "--json", "--quiet")
    assert (answer.code, answer.json["attempt"], answer.json["step"]) == (0, 2, 14)
    assert pretrain("verify-manifest", finished, "--json").json["parent_ok"] is True


def test_verify(finished: Path) -> None:
    answer = pretrain("verify-manifest", finished / "attempts/0001/manifest.json", "--json")
    assert answer.code == 0
    found = answer.json
    assert len(found.pop("manifest_sha256")) == SHA256
    nothing = {"extra": [], "missing": [], "changed": [], "unsafe": []}
    assert found == {"ok": True, "unfinished": False, "parent_ok": None, **nothing}


def test_verify_expects_a_hash(finished: Path) -> None:
    sha256 = hashlib.sha256((finished / "attempts/0001/manifest.json").read_bytes()).hexdigest()
    for given in (sha256, sha256.upper()):
        assert pretrain("verify-manifest", finished, "--expect-sha256", given).code == 0
    other = pretrain("verify-manifest", finished, "--expect-sha256", "0" * 64)
    assert other.code == 3
    assert "changed: manifest.json" in other.out
    assert pretrain("verify-manifest", finished, "--expect-sha256", "f00").code == 2


def test_verify_a_lineage_of_three(stopped: Path) -> None:
    assert go_on(stopped, stop_after=2).verdict == "interrupted"
    assert pretrain("resume", "--attempt", stopped, "--quiet").code == 0
    answer = pretrain("verify-manifest", stopped, "--lineage", "--json")
    assert answer.code == 0
    alone = pretrain("verify-manifest", stopped, "--json").json
    above = answer.json["lineage"]
    assert answer.json == alone | {"lineage": above, "migrated": []}
    assert [set(one) for one in above] == [set(alone)] * 2
    assert [one["ok"] for one in above] == [True, True]
    text = pretrain("verify-manifest", stopped, "--lineage").out
    assert [f"attempts/{number}" in text for number in ("0001", "0002", "0003")] == [True] * 3
    flip(stopped / "attempts/0001/checkpoints/step_00000006/shard_00000.safetensors")
    assert pretrain("verify-manifest", stopped).code == 0
    answer = pretrain("verify-manifest", stopped, "--lineage", "--json")
    assert (answer.code, answer.json["ok"]) == (3, True)
    assert [one["changed"] for one in answer.json["lineage"]] == [[], ["shard_00000.safetensors"]]
    shutil.rmtree(stopped / "attempts/0001")
    answer = pretrain("verify-manifest", stopped, "--lineage")
    assert (answer.code, answer.out.splitlines()[-1]) == (0, "its parent 0001 is not here: verified up to it")


def test_verify_of_an_unfinished_attempt(stopped: Path) -> None:
    answer = pretrain("verify-manifest", stopped)
    assert answer.code == 3
    assert "unfinished" in answer.out.splitlines()[0]
    assert "`pretrain resume` goes on from it" in answer.out
    assert "checked: the checkpoints of steps 0, 4, 6 and the rows they bind" in answer.out
    found = pretrain("verify-manifest", stopped, "--json").json
    assert (found["ok"], found["unfinished"], found["manifest_sha256"], found["changed"]) == (False, True, None, [])


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "telemetry.csv", "config.yaml", "checkpoints/step_00000012/shard_00000.safetensors"]
)
def test_verify_names_the_file_of_a_flipped_bit(finished: Path, name: str) -> None:
    flip(finished / "attempts/0001" / name)
    answer = pretrain("verify-manifest", finished)
    assert (answer.code, answer.err) == (3, "")
    assert f"changed: {name}\n" in answer.out
    assert pretrain("verify-manifest", finished, "--json").json["changed"] == [name]


def test_sums_are_those_of_the_files(finished: Path) -> None:
    answer = pretrain("verify-manifest", finished, "--sums")
    assert answer.code == 0
    named = dict(reversed(line.split("  ")) for line in answer.out.splitlines())
    folder = finished / "attempts/0001"
    assert named == {name: hashlib.sha256(data).hexdigest() for name, (_, data) in contents(folder).items()}


def test_inspect(finished: Path) -> None:
    folder = finished / "attempts/0001/checkpoints/step_00000012"
    answer = pretrain("inspect-checkpoint", folder, "--json")
    assert answer.code == 0
    found = answer.json
    assert set(found) == {"step", "record_sha256", "content_sha256", "optimizer_bytes", "tensors", "differs"}
    assert (found["step"], found["differs"]) == (12, None)
    assert all(set(tensor) == {"name", "dtype", "shape", "sha256"} for tensor in found["tensors"])
    assert {"model.model.norm.weight", "optimizer.model.norm.weight.exp_avg", "rng.cpu"} <= {
        tensor["name"] for tensor in found["tensors"]
    }
    text = pretrain("inspect-checkpoint", folder / "checkpoint.json").out
    assert text.startswith(f"step 12, {len(found['tensors'])} tensors, optimizer state ")


def test_inspect_of_an_attempt_or_a_run_names_its_checkpoints(finished: Path) -> None:
    for place in (finished, finished / "attempts/0001"):
        answer = pretrain("inspect-checkpoint", place)
        assert answer.code == 2
        assert "; there are " in answer.err
        assert str(finished / "attempts/0001/checkpoints/step_00000012") in answer.err


def test_inspect_names_what_differs(finished: Path) -> None:
    checkpoints = finished / "attempts/0001/checkpoints"
    earlier, later = (checkpoints / f"step_{step:08d}" for step in (8, 12))
    differs = pretrain("inspect-checkpoint", earlier, "--compare", later, "--json").json["differs"]
    assert "model.model.norm.weight" in differs
    assert "optimizer.model.norm.weight.step" in differs
    assert "rng.cpu" not in differs  # nothing draws from it
    text = pretrain("inspect-checkpoint", earlier, "--compare", later).out
    assert f"{len(differs)} tensors differ:\n" in text
    assert "\n  model.model.norm.weight\n" in text
    assert pretrain("inspect-checkpoint", later, "--compare", later, "--json").json["differs"] == []


def test_inspect_of_a_damaged_checkpoint(finished: Path) -> None:
    folder = finished / "attempts/0001/checkpoints/step_00000012"
    flip(folder / "shard_00000.safetensors")
    answer = pretrain("inspect-checkpoint", folder)
    assert (answer.code, answer.out) == (3, "")
    assert "shard_00000.safetensors: expected SHA-256" in answer.err


@pytest.mark.parametrize("task", ["text", "iq"])
def test_print_config_loads_to_itself(tmp_path: Path, task: str) -> None:
    config = write_config(tmp_path, task)
    before = contents(tmp_path)
    words = ["optimizer.betas=[0.5, 1e-3]", "run.dir=runs/a b", "guard.max_nan_retries=0"]
    first = pretrain("train", "--config", config, *words, "--print-config")
    assert (first.code, first.err) == (0, "")
    assert contents(tmp_path) == before
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(first.out)
    assert load(resolved) == load(config, words)
    assert pretrain("train", "--config", resolved, "--print-config").out == first.out
    warned = pretrain("train", "--config", config, *words, "model.size=gpt2-124m", "--print-config")
    assert "warning: model.size gpt2-124m: what is given beside it wins: " in warned.err
    assert "warning" not in warned.out


def test_the_options_of_the_thermal_guard_come_after_the_overrides(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    words = ["telemetry.gpu_metrics_backend=nvml", "thermal.gpu_temp_guard=false", "--print-config"]
    on = pretrain("train", "--config", config, *words, "--gpu-temp-guard", "--switch-on-thermal")
    assert on.code == 0, on.err
    assert "gpu_temp_guard: true" in on.out
    assert "switch_on_thermal: true" in on.out
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(on.out)
    off = ["--no-gpu-temp-guard", "--no-switch-on-thermal", "--print-config"]
    assert "gpu_temp_guard: false" in pretrain("train", "--config", resolved, *off).out
    alone = pretrain("train", "--config", config, "--gpu-temp-guard")
    assert (alone.code, alone.out) == (2, "")
    assert "set telemetry.gpu_metrics_backend=nvml" in alone.err


def test_config_yaml_is_the_printed_config(made: Path, finished: Path) -> None:
    printed = pretrain("train", "--config", made / "text.yaml", f"run.dir={made / 'finished'}", "--print-config").out
    assert (finished / "attempts/0001/config.yaml").read_text() == printed


def test_a_run_that_was_moved(stopped: Path, tmp_path: Path) -> None:
    moved = stopped.rename(tmp_path / "elsewhere")
    assert pretrain("resume", "--attempt", moved, "--quiet").code == 0
    assert not stopped.exists()
    assert pretrain("verify-manifest", moved).code == 0


def test_version() -> None:
    assert pretrain("--version").out == "pretrain 0.1.0\n"


def test_the_help_of_migrate_names_all_that_it_lets_change() -> None:
    command = typer.main.get_command(cli.application)
    (option,) = [one for one in command.commands["resume"].params if one.name == "migrate"]  # type: ignore[attr-defined]
    assert [key for key in MIGRATABLE if key not in option.help] == []  # type: ignore[attr-defined]
