"""`train --memory-snapshot`: what holds the memory after a step, bound by the manifest; the run stays the same."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain import lineage
from pretrain.build import build_data, build_run
from pretrain.telemetry import memory_held
from pretrain.telemetry.memory_held import described, encoded
from tests.cli.calling import pretrain
from tests.tiny import tiny, write_config

CPU = torch.device("cpu")


def snapshot_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "attempts/0001/memory.json").read_text())
    return found


def test_it_says_what_holds_the_memory_and_nothing_else_changes(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_held, "LARGEST", 1 << 30)  # what other tests have left in this process is larger
    answer = pretrain("train", "--config", write_config(tmp_path), "--memory-snapshot", "5", "--json")
    assert answer.code == 0, answer.err
    attempt = tmp_path / "run/attempts/0001"
    assert f"saved: what holds the memory at the end of step 5 in {attempt / 'memory.json'}" in answer.err
    found = snapshot_of(tmp_path / "run")
    assert (found["step"], found["cuda"]) == (5, None)
    host = found["host"]
    assert 0 < host["resident_bytes"] <= host["peak_bytes"] <= host["total_bytes"]

    config = tiny(tmp_path)
    state = build_run(config, build_data(config), CPU).state
    parameters = sum(parameter.nbytes for parameter in state.model.parameters())
    kinds = {row["kind"]: row for row in found["kinds"]}
    assert {row["device"] for row in found["kinds"]} == {"cpu"}
    assert kinds["parameters"]["bytes"] == kinds["gradients"]["bytes"] == parameters
    assert kinds["parameters"]["tensors"] == len(list(state.model.parameters()))
    assert 2 * parameters <= kinds["optimizer"]["bytes"] < 2.1 * parameters
    assert 3 * parameters <= kinds["rollback copies"]["bytes"] < 3.1 * parameters + 16_384  # of step 4, with generators
    assert "other" in kinds

    largest = found["largest"]
    assert [row["bytes"] for row in largest] == sorted((row["bytes"] for row in largest), reverse=True)
    weight = max(state.model.named_parameters(), key=lambda named: named[1].nbytes)
    expected = {"shape": list(weight[1].shape), "dtype": "float32", "device": "cpu", "bytes": weight[1].nbytes}
    for kind, name in (
        ("parameters", weight[0]),
        ("gradients", weight[0]),
        ("rollback copies", f"step 4: model.{weight[0]}"),
    ):
        assert {"kind": kind, "name": name, **expected} in largest

    assert lineage.verify(attempt).ok
    manifest = json.loads((attempt / "manifest.json").read_text())
    assert [one["role"] for one in manifest["files"] if one["path"] == "memory.json"] == ["telemetry"]
    whole = made / "finished/attempts/0001"
    assert (attempt / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_a_run_that_ends_before_it_leaves_none(tmp_path: Path) -> None:
    words = ["guard.inf_post_clip_threshold=1e-9", "guard.max_nan_retries=0"]  # diverges at its first batch
    answer = pretrain("train", "--config", write_config(tmp_path), *words, "--memory-snapshot", "1", "--quiet")
    assert answer.code == 4
    assert not (tmp_path / "run/attempts/0001/memory.json").exists()


@pytest.mark.parametrize("given", ["", "0", "13", "-1", "1.5", "a", "1:2", "٣", " 1", "1" * 20])
def test_a_bad_step_is_refused(given: str, tmp_path: Path) -> None:
    answer = pretrain("train", "--config", write_config(tmp_path), f"--memory-snapshot={given}")
    assert answer.code == 2
    assert "--memory-snapshot: expected STEP, one of the 12 of training.max_steps" in answer.err
    assert repr(given) in answer.err
    assert not (tmp_path / "run").exists()


def test_the_largest_come_first_and_no_more_than_so_many() -> None:
    named = {"parameters": {str(size): torch.zeros(size) for size in range(1, 2 * memory_held.LARGEST)}}
    largest = described(1, named, CPU)["largest"]
    assert len(largest) == memory_held.LARGEST
    assert [row["bytes"] for row in largest] == sorted((row["bytes"] for row in largest), reverse=True)


def test_memory_that_is_shared_counts_once_and_what_has_no_memory_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_held, "LARGEST", 1 << 30)
    whole = torch.zeros(1 << 20)
    named = {"parameters": {"whole": whole, "part": whole[:7]}, "gradients": {"again": whole.view(2, -1)}}
    others = (torch.empty(3, device="meta"), torch.zeros(0), torch.eye(3).to_sparse())
    found = described(1, {**named, "buffers": {str(number): one for number, one in enumerate(others)}}, CPU)
    assert [row for row in found["kinds"] if row["kind"] != "other"] == [
        {"kind": "parameters", "device": "cpu", "tensors": 1, "bytes": whole.nbytes}
    ]
    assert [row["bytes"] for row in found["largest"] if row["name"] is not None] == [whole.nbytes]


def test_what_an_allocator_says_is_always_text_or_number(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        "statistics": {"active.all.peak": 5},
        "segments": [{"address": 1, "segment_pool_id": (0, 1), "of": object()}],
    }
    monkeypatch.setattr("pretrain.machine.memory.of_allocator", lambda device: said)
    found = json.loads(encoded(described(1, {}, CPU)))["cuda"]
    assert found["statistics"] == said["statistics"]
    assert found["segments"][0]["segment_pool_id"] == [0, 1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_allocator_is_asked(tmp_path: Path) -> None:
    answer = pretrain(
        "train", "--config", write_config(tmp_path), "training.device=cuda", "--memory-snapshot", "5", "--quiet"
    )
    assert answer.code == 0, answer.err
    found = snapshot_of(tmp_path / "run")
    assert found["cuda"]["statistics"]["allocated_bytes.all.peak"] > 0
    held = sum(row["bytes"] for row in found["kinds"] if row["device"] == "cuda:0")
    assert 0 < held <= sum(segment["total_size"] for segment in found["cuda"]["segments"])
