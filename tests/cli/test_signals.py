"""Real processes and real signals; the run cannot outpace the test, which holds the pipe that it writes to."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from pretrain import cli, lineage
from pretrain.config import load
from pretrain.evidence import checkpoint
from pretrain.machine.signals import STOP_SIGNALS
from tests.cli.calling import pretrain
from tests.loop.lineages import end_of, small_config
from tests.tiny import train, write_config

STEPS = 120
PIPE_BYTES = 4096  # less than the lines of 60 steps
FULL_BYTES = PIPE_BYTES - 256  # where the next line or two no longer fit
pytestmark = pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="the size of a pipe cannot be set here")


@contextlib.contextmanager
def training(config: Path, run: Path, *before: str) -> Iterator[tuple[subprocess.Popen[bytes], IO[str]]]:
    """A `pretrain train` that stands still wherever its screen is not read; after its second step."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    words = [f"run.dir={run}", f"training.max_steps={STEPS}", "telemetry.gradient_log_interval=1", "--json"]
    command = [*before, sys.executable, "-m", "pretrain", "train", "--config", str(config), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writing) as process, open(reading) as screen:
        os.close(writing)
        try:
            read_to(screen, f"step 2/{STEPS}")
            yield process, screen
        finally:
            process.kill()


def wait_until_it_stands_still(screen: IO[str]) -> None:
    """Until the pipe holds as much as it takes, for as long as many steps would need."""
    waiting, since = 0, time.monotonic()
    deadline = since + 60
    while time.monotonic() < deadline and (time.monotonic() - since < 0.3 or waiting < FULL_BYTES):
        (found,) = struct.unpack("i", fcntl.ioctl(screen, termios.FIONREAD, bytes(4)))
        if found != waiting:
            waiting, since = found, time.monotonic()
        time.sleep(0.02)


def read_to(screen: IO[str], beginning: str) -> None:
    seen = []
    for line in screen:
        seen.append(line)
        if line.startswith(beginning):
            return
    raise AssertionError("".join(seen))


@pytest.mark.skipif(shutil.which("nohup") is None, reason="there is no nohup here")
def test_s32_sigterm_under_nohup_saves_and_resume_ends_in_the_same_bytes(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    with training(config, tmp_path / "stopped", "nohup") as (process, screen):
        process.send_signal(signal.SIGHUP)
        read_to(screen, f"step 4/{STEPS}")
        process.send_signal(signal.SIGTERM)
        rest = screen.read()
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 75, rest
    answer = json.loads(out)
    assert (answer["verdict"], answer["exit_code"]) == ("interrupted", 75)
    attempt = tmp_path / "stopped/attempts/0001"
    record = json.loads((attempt / "outcome.json").read_bytes())
    assert (record["signal"], record["step"], record["batch"]) == ("SIGTERM", answer["step"], answer["step"])
    assert 4 <= answer["step"] < STEPS
    assert record["checkpoint"] == answer["checkpoint"]
    assert record["resume"] in rest

    resumed = pretrain("resume", "--attempt", tmp_path / "stopped", "--json", "--quiet")
    words = [f"run.dir={tmp_path / 'whole'}", f"training.max_steps={STEPS}", "telemetry.gradient_log_interval=1"]
    whole = pretrain("train", "--config", config, *words, "--json", "--quiet")
    assert (resumed.code, resumed.json["checkpoint"]) == (0, whole.json["checkpoint"])
    streams = [tmp_path / name / "metrics.jsonl" for name in ("stopped/attempts/0002", "whole/attempts/0001")]
    assert streams[0].read_bytes() == streams[1].read_bytes()


def test_s33_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with training(write_config(tmp_path), tmp_path / "run") as (process, screen):
        # The screen is not read any more, so the step that the first signal waits for never ends.
        wait_until_it_stands_still(screen)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
    assert process.returncode == 128 + signal.SIGINT
    assert not (tmp_path / "run/attempts/0001/outcome.json").exists()
    assert pretrain("resume", "--attempt", tmp_path / "run", f"training.max_steps={STEPS + 1}", "--quiet").code == 0


@pytest.mark.parametrize(("phases", "code"), [(["second save"], 75), (["second save", "record"], 130)])
def test_s33_in_the_middle_of_a_save_the_first_one_ends_it_after_the_save_and_the_second_at_once(
    tmp_path: Path, phases: list[str], code: int
) -> None:
    """The second one comes where the save has come to its record, which is all that makes it a checkpoint."""
    config, run = small_config(tmp_path, "text", max_steps=4, every=2), tmp_path / "run"
    words = ["train", "--config", str(config), f"run.dir={run}", "--quiet"]
    command = [sys.executable, "-m", "tests.drill.standing", ",".join(phases), *words]
    attempt = run / "attempts/0001"
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            for _ in phases:
                found = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
                assert found is not None
                assert found.si_code == os.CLD_STOPPED, "it never came to the save"
                os.waitid(os.P_PID, process.pid, os.WSTOPPED)
                assert [step for step, _ in checkpoint.list_checkpoints(attempt)] == [0], "it is not inside the save"
                process.send_signal(signal.SIGINT)
                process.send_signal(signal.SIGCONT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == code, said
    assert "Traceback" not in said
    saved = [0, 2] if code == 75 else [0]
    assert [step for step, _ in checkpoint.list_checkpoints(attempt)] == saved
    assert (attempt / "outcome.json").exists() == (code == 75)
    found = lineage.verify(attempt)
    assert found.unfinished
    assert (found.changed, found.missing, found.unsafe) == ((), (), ()), found.text()
    assert pretrain("resume", "--attempt", run, "--quiet").code == 0
    assert train(load(config, [f"run.dir={tmp_path / 'whole'}"])).verdict == "done"
    assert end_of(run) == end_of(tmp_path / "whole")


def test_once_the_work_is_done_a_signal_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pretrain", "--version"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert {signal.getsignal(number) for number in STOP_SIGNALS} == {signal.SIG_IGN}
    for number in STOP_SIGNALS:
        os.kill(os.getpid(), number)
