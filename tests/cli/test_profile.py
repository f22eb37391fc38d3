"""`train --profile`: a trace of the steps that were named, bound by the manifest, and the same bytes without it."""

import json
from pathlib import Path
from typing import Any

import pytest

from pretrain import lineage
from tests.cli.calling import pretrain
from tests.tiny import write_config


def trace_of(run: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((run / "attempts/0001/trace.json").read_text())["traceEvents"]
    return found


def steps_of(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(row["name"] for row in rows if row["name"].startswith("step "))


def test_the_steps_are_traced_and_nothing_else_changes(
    tmp_path: Path, made: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = pretrain("train", "--config", write_config(tmp_path), "--profile", "2:3", "--json")
    assert answer.code == 0
    assert "USDT" not in capfd.readouterr().err
    attempt = tmp_path / "run/attempts/0001"
    assert f"saved: profile of 2 steps in {attempt / 'trace.json'}" in answer.err
    rows = trace_of(tmp_path / "run")
    assert steps_of(rows) == ["step 2", "step 3"]
    assert all(row["ph"] == "X" and row["dur"] >= 0 and row["pid"] == "CPU" for row in rows)
    names = {row["name"] for row in rows}
    assert "aten::mm" in names
    assert any("Optimizer.step" in name for name in names)
    (second, third) = sorted((row for row in rows if row["name"] in ("step 2", "step 3")), key=lambda row: row["ts"])
    inside = [row for row in rows if row["name"] == "aten::mm"]
    assert second["ts"] + second["dur"] <= third["ts"]
    assert all(second["ts"] <= row["ts"] <= third["ts"] + third["dur"] for row in inside)
    assert lineage.verify(attempt).ok
    manifest = json.loads((attempt / "manifest.json").read_text())
    assert [one["role"] for one in manifest["files"] if one["path"] == "trace.json"] == ["telemetry"]
    whole = made / "finished/attempts/0001"
    assert (attempt / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_a_run_that_ends_in_between_leaves_what_there_is(tmp_path: Path) -> None:
    words = ["guard.inf_post_clip_threshold=1e-9", "guard.max_nan_retries=0"]  # diverges at its first batch
    answer = pretrain("train", "--config", write_config(tmp_path), *words, "--profile", "1:12", "--quiet")
    assert answer.code == 4
    assert steps_of(trace_of(tmp_path / "run")) == ["step 1"]


@pytest.mark.parametrize(
    "given", ["", "3", "3:", ":3", "0:2", "3:2", "1:13", "a:b", "1:2:3", "-1:2", "1.5:2", "٣:٤", "1: 2"]
)
def test_a_bad_range_is_refused(given: str, tmp_path: Path) -> None:
    answer = pretrain("train", "--config", write_config(tmp_path), f"--profile={given}")
    assert answer.code == 2
    assert "--profile: expected FROM:TO, two steps of the 12 of training.max_steps" in answer.err
    assert repr(given) in answer.err
    assert not (tmp_path / "run").exists()
