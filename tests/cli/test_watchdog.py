"""Real processes that hang: they end with exit code 8, say where they hung, and are resumed to the same bytes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pretrain import lineage
from pretrain.attempt.goodput import goodput_of
from tests.cli.calling import pretrain
from tests.tiny import write_config

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 90

# In the fifth step; `read` hangs in a system call, as on a dead file server, and `disk` takes the disk with it. After
# the eighth step; `validation` hangs in the third batch that is scored, and `save` in the middle of the shard file.
HANGS = """
import os, signal, sys, time
from pretrain import files, syscalls
from pretrain.cli import main
from pretrain.evidence import shard_writer  # takes its second of imports before the watchdog looks
from pretrain.loop import steps
from pretrain.tasks.text import TextTask

how = sys.argv.pop(1)
reading, writing = os.pipe()
real, calls = steps.accumulate, []

def accumulate(*words):
    calls.append(how)
    if len(calls) == 5 and how == "stopped":
        time.sleep(0.5)  # so that the watchdog has looked at the same number before and afterwards
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.5)
    elif len(calls) == 5 and how in ("read", "disk"):
        if how == "disk":
            files.publish = lambda *_: os.read(reading, 1)
        os.read(reading, 1)
    return real(*words)

if how == "manifest":  # half of it is written, and the rest, or its rename, may come to be or not
    from pretrain.evidence import manifest
    manifest.publish_manifest = lambda *_: os.read(reading, 1)

score = TextTask.score

def score_or_hang(self, model, batch, device):
    if len(calls) == 8 and batch.position == 2 * 2:
        os.read(reading, 1)
    return score(self, model, batch, device)

if how == "validation":
    TextTask.score = score_or_hang

class Disk(syscalls.System):
    shard, writes = None, 0

    def open(self, path, flags, mode=0o644):
        fd = super().open(path, flags, mode)
        if len(calls) == 8 and path.name.endswith(".safetensors"):
            self.shard = fd
        return fd

    def write(self, fd, data):
        if fd == self.shard:
            self.writes += 1
            if self.writes == 9:
                os.read(reading, 1)
        return super().write(fd, data)

if how == "save":
    syscalls.system = Disk()

steps.accumulate = accumulate
main()
"""


def hangs(how: str, folder: Path, timeout_seconds: float) -> subprocess.Popen[str]:
    config = write_config(folder)
    words = [f"run.dir={folder / how}", f"training.watchdog_timeout_seconds={timeout_seconds}", "--json", "--quiet"]
    return subprocess.Popen(
        [sys.executable, "-c", HANGS, how, "train", "--config", str(config), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_step_that_hangs_in_a_system_call(tmp_path: Path) -> None:
    with hangs("read", tmp_path, 1) as process, hangs("disk", tmp_path, 1) as other:
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        _, told = other.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, other.returncode) == (8, 8), err
    for said in (err, told):
        assert "pretrain: stalled: nothing has moved for 1" in said
        assert "thread MainThread:\n  accumulate (<string>:" in said
        assert "Traceback" not in said

    attempt = tmp_path / "read/attempts/0001"
    record = json.loads((attempt / "outcome.json").read_bytes())
    assert (record["verdict"], record["exit_code"], record["step"]) == ("stalled", 8, 4)
    assert "the main thread is in accumulate (<string>:" in record["reason"]
    answer = json.loads(out)
    assert (answer["verdict"], answer["exit_code"], answer["checkpoint"]) == ("stalled", 8, record["checkpoint"])
    assert record["resume"] in err
    warned, last = map(json.loads, (attempt / "events.jsonl").read_text().splitlines()[-2:])
    assert (warned["event"], warned["step"], last["event"], last["verdict"]) == ("warning", 4, "end", "stalled")
    assert "thread MainThread:" in warned["text"]
    assert goodput_of(tmp_path / "read", 1).unended == 0, "which is no kill"
    assert not (tmp_path / "disk/attempts/0001/outcome.json").exists(), "the disk was what it hung on"

    whole = pretrain("train", "--config", tmp_path / "text.yaml", f"run.dir={tmp_path / 'whole'}", "--json", "--quiet")
    for how in ("read", "disk"):
        more = ["training.watchdog_timeout_seconds=0", "--json", "--quiet"]
        resumed = pretrain("resume", "--attempt", tmp_path / how, *more)
        assert (resumed.code, resumed.json["checkpoint"]) == (0, whole.json["checkpoint"])
        streams = [tmp_path / name / "metrics.jsonl" for name in (f"{how}/attempts/0002", "whole/attempts/0001")]
        assert streams[0].read_bytes() == streams[1].read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "place", "left"), [("validation", "score_or_hang", []), ("save", "write", ["step_00000008"])]
)
def test_what_follows_a_step_hangs(how: str, place: str, left: list[str], tmp_path: Path, made: Path) -> None:
    with hangs(how, tmp_path, 1) as process:
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 8, err
    assert f"thread MainThread:\n  {place} (<string>:" in err
    assert "Traceback" not in err

    attempt = tmp_path / how / "attempts/0001"
    record, answer = json.loads((attempt / "outcome.json").read_bytes()), json.loads(out)
    assert (record["verdict"], record["exit_code"], record["step"]) == ("stalled", 8, 8)
    assert f"the main thread is in {place} (<string>:" in record["reason"]
    assert record["checkpoint"]["step"] == 4
    assert (answer["verdict"], answer["exit_code"], answer["checkpoint"]) == ("stalled", 8, record["checkpoint"])
    warned, last = map(json.loads, (attempt / "events.jsonl").read_text().splitlines()[-2:])
    assert (warned["event"], warned["step"], last["event"], last["verdict"]) == ("warning", 8, "end", "stalled")
    assert f"thread MainThread:\n  {place} (<string>:" in warned["text"]
    assert [
        path.name for path in (attempt / "checkpoints").iterdir() if not (path / "checkpoint.json").exists()
    ] == left

    resumed = pretrain("resume", "--attempt", tmp_path / how, "training.watchdog_timeout_seconds=0", "--json")
    latest = json.loads((made / "finished/attempts/0001/manifest.json").read_bytes())["latest"]
    assert (resumed.code, resumed.json["checkpoint"]) == (0, latest)
    streams = [tmp_path / how / "attempts/0002/metrics.jsonl", made / "finished/attempts/0001/metrics.jsonl"]
    assert streams[0].read_bytes() == streams[1].read_bytes()
    assert lineage.verify(tmp_path / how / "attempts/0002").ok


@pytest.mark.slow
def test_a_manifest_that_hangs_has_its_answer_and_no_outcome(tmp_path: Path) -> None:
    with hangs("manifest", tmp_path, 2) as process:
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 8, err
    answer = json.loads(out)
    assert (answer["verdict"], answer["exit_code"], answer["manifest_sha256"]) == ("stalled", 8, None)
    assert answer["checkpoint"]["step"] == answer["step"]
    attempt = tmp_path / "manifest/attempts/0001"
    assert not [name for name in ("manifest.json", "outcome.json") if (attempt / name).exists()]
    resumed = pretrain("resume", "--attempt", tmp_path / "manifest", "training.watchdog_timeout_seconds=0", "--json")
    assert (resumed.code, resumed.json["verdict"]) == (0, "done")


@pytest.mark.slow
def test_a_process_that_was_suspended_did_not_hang(tmp_path: Path) -> None:
    with hangs("stopped", tmp_path, 2) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        time.sleep(4)
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    assert lineage.verify(tmp_path / "stopped/attempts/0001").ok
