"""How an attempt that exists ends when it is not done: exit code, outcome.json, and what resume makes of it."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import typer

from pretrain import reading, syscalls
from pretrain.attempt import start_attempt
from pretrain.loop import boundary
from pretrain.machine.signals import StopRequest
from pretrain.telemetry.sink import Event, Note
from tests.cli.calling import pretrain
from tests.tiny import go_on, tiny, write_config


def outcome(run: Path) -> dict[str, Any]:
    attempt = max((run / "attempts").iterdir())
    assert not (attempt / "manifest.json").exists()
    record = json.loads((attempt / "outcome.json").read_bytes())
    assert set(record) == {
        *("schema", "verdict", "exit_code", "signal", "reason", "advice"),
        *("step", "batch", "checkpoint", "incident", "resume"),
    }
    return record


def test_diverged(tmp_path: Path) -> None:
    words = ["guard.inf_post_clip_threshold=1e-9", "guard.max_nan_retries=2"]
    answer = pretrain("train", "--config", write_config(tmp_path), *words, "--json", "--quiet")
    assert answer.code == answer.json["exit_code"] == 4
    replay = f"pretrain replay --incident {tmp_path / 'run/attempts/0001/incidents/incident_0003.json'}"
    assert answer.err.endswith(f"next: {replay}\n")
    assert f"3 incidents; of the last: {replay}\n" in answer.err
    shown = pretrain("replay", "--incident", replay.split()[-1])
    assert shown.code == 0
    assert "phase warmup, action stop\n" in shown.out
    assert (answer.json["verdict"], answer.json["step"], answer.json["manifest_sha256"]) == ("diverged", 0, None)
    record = outcome(tmp_path / "run")
    assert (record["verdict"], record["exit_code"], record["batch"]) == ("diverged", 4, 3)
    assert record["resume"] is None
    assert "post_clip is " in record["reason"]
    assert "guard.max_nan_retries is 2" in record["reason"]
    assert "incident_0003.json" in record["reason"]
    assert "lower optimizer.lr" in answer.err
    rows = (tmp_path / "run/attempts/0001/metrics.jsonl").read_text()
    assert rows.count('"event":"skipped"') == 3


class FullDisk(syscalls.System):
    """A disk with room for records, but not for another checkpoint."""

    def __init__(self, shards: int) -> None:
        self._left, self._shards = shards, set[int]()

    def open(self, path: Path, flags: int, mode: int = 0o644) -> int:
        fd = super().open(path, flags, mode)
        if "shard_" in path.name and flags & os.O_CREAT:
            self._left -= 1
            self._shards.add(fd)
        return fd

    def write(self, fd: int, data: memoryview) -> int:
        if fd in self._shards and self._left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(fd, data)

    def close(self, fd: int) -> None:
        self._shards.discard(fd)
        super().close(fd)


def test_s25_disk_full(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(syscalls, "system", FullDisk(shards=2))
        answer = pretrain("train", "--config", write_config(tmp_path), "--json", "--quiet")
    assert answer.code == answer.json["exit_code"] == 6
    record = outcome(tmp_path / "run")
    assert (record["verdict"], record["checkpoint"]["step"], record["step"]) == ("storage", 4, 8)
    assert "free space" in record["reason"]
    assert answer.err.count("free space") == 1
    assert f"next: {record['resume']}\n" in answer.err
    assert sorted(path.name for path in tmp_path.rglob("step_*")) == ["step_00000000", "step_00000004"]
    assert pretrain("resume", "--attempt", tmp_path / "run", "--quiet").code == 0
    whole, resumed = made / "finished/attempts/0001", tmp_path / "run/attempts/0002"
    assert (whole / "metrics.jsonl").read_bytes() == (resumed / "metrics.jsonl").read_bytes()


def test_what_nobody_expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(boundary, "ranked_value", fails)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        pretrain("train", "--config", write_config(tmp_path), "--quiet")
    record = outcome(tmp_path / "run")
    assert (record["verdict"], record["exit_code"]) == ("failed", 1)
    assert record["reason"] == "RuntimeError: a fault of ours"


def test_s39_a_traceback_shows_no_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        secret = "-".join(("a", "token"))
        raise RuntimeError(f"a fault with {len(secret)} letters")

    monkeypatch.setattr(boundary, "ranked_value", fails)
    with pytest.raises(RuntimeError) as raised:
        pretrain("train", "--config", write_config(tmp_path), "--quiet")
    typer.main.except_hook(raised.type, raised.value, raised.tb)  # what the interpreter calls at its end
    shown = capsys.readouterr().err
    assert "a fault with 7 letters" in shown
    assert "a-token" not in shown


class StopsAtTheEnd:
    """A sink by which a signal comes after the last step, while the last checkpoint is made."""

    def __init__(self, stop: StopRequest) -> None:
        self._stop = stop

    def emit(self, event: Event) -> None:
        if isinstance(event, Note) and event.text == "checkpoint of step 10":
            self._stop.name = "SIGUSR1"

    def close(self) -> None:
        pass


def test_a_signal_between_the_last_step_and_the_manifest(tmp_path: Path) -> None:
    stop = StopRequest()
    config = tiny(tmp_path, "text", "training.max_steps=10")
    result = start_attempt(config, stop, [StopsAtTheEnd(stop)])
    assert (result.verdict, result.exit_code) == ("interrupted", 75)
    record = outcome(tmp_path / "run")
    assert (record["signal"], record["step"], record["checkpoint"]["step"]) == ("SIGUSR1", 10, 10)
    after = go_on(tmp_path / "run")
    assert after.verdict == "done"
    assert after.checkpoint is not None
    assert after.checkpoint.record_sha256 == record["checkpoint"]["record_sha256"]


def test_a_signal_while_the_manifest_is_made(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, real = StopRequest(), reading.hash_file

    def hash_file(path: Path) -> Any:
        if path.name == "events.jsonl":  # which nothing but the manifest binds
            stop.name = "SIGTERM"
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(reading, "hash_file", hash_file)
        result = start_attempt(tiny(tmp_path), stop, [])
    assert (result.verdict, result.exit_code, result.manifest_sha256) == ("interrupted", 75, None)
    record = outcome(tmp_path / "run")
    assert (record["signal"], record["step"], record["checkpoint"]["step"]) == ("SIGTERM", 12, 12)
    assert record["resume"] == f"pretrain resume --attempt {tmp_path / 'run'}"
    assert go_on(tmp_path / "run").verdict == "done"
    whole, resumed = made / "finished/attempts/0001", tmp_path / "run/attempts/0002"
    assert (whole / "metrics.jsonl").read_bytes() == (resumed / "metrics.jsonl").read_bytes()
    latest = [json.loads((folder / "manifest.json").read_bytes())["latest"] for folder in (whole, resumed)]
    assert latest[0] == latest[1]


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl"])
def test_a_stream_that_cannot_be_opened(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoStream(syscalls.System):
        def open(self, path: Path, flags: int, mode: int = 0o644) -> int:
            if path.name == name and path.parent.name == "0001" and flags & (os.O_WRONLY | os.O_RDWR):
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().open(path, flags, mode)

    with monkeypatch.context() as patch:
        patch.setattr(syscalls, "system", NoStream())
        answer = pretrain("train", "--config", write_config(tmp_path), "--json", "--quiet")
    assert answer.code == answer.json["exit_code"] == 6
    assert answer.err.endswith(f"next: pretrain resume --attempt {tmp_path / 'run'}\n")
    record = outcome(tmp_path / "run")
    assert (record["verdict"], record["exit_code"], record["step"]) == ("storage", 6, 0)
    assert (record["checkpoint"], record["resume"]) == (None, f"pretrain resume --attempt {tmp_path / 'run'}")
    assert pretrain("resume", "--attempt", tmp_path / "run", "--quiet").code == 0


def test_a_manifest_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoManifest(syscalls.System):
        def replace(self, source: Path, target: Path) -> None:
            if target.name == "manifest.json":
                raise OSError(errno.EIO, "Input/output error")
            super().replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(syscalls, "system", NoManifest())
        answer = pretrain("train", "--config", write_config(tmp_path), "--quiet")
    assert answer.code == 6
    assert outcome(tmp_path / "run")["verdict"] == "storage"
    assert pretrain("resume", "--attempt", tmp_path / "run", "--quiet").code == 0
