"""Real processes with a tracker whose library never ends: the process ends with its exit code all the same."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pretrain import lineage
from tests.tiny import write_config

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 90  # where the process hung it would be there after hours
ENDLESS = "training.max_steps=1000000"
TRACKER = "telemetry.trackers={tensorboard: {}}"

# What a library may do once it is in the process; `log` stops the run where it is to be stopped.
HANGS = """
import atexit, os, signal, sys, threading, time
from pretrain.cli import main
from pretrain.loop import boundary
from pretrain.telemetry.trackers import TRACKERS, TrackerEntry
from pretrain.telemetry.trackers.tensorboard import TensorBoardSettings

how = sys.argv.pop(1)

class Library:
    def __init__(self, settings, run):
        atexit.register(time.sleep, 1e6)
        threading.Thread(target=time.sleep, args=(1e6,)).start()

    def log(self, step, values):
        if how == "signal" and step == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    def close(self):
        pass

def fails(*_):
    raise RuntimeError("a fault of ours")

if how == "fault":
    boundary.ranked_value = fails
TRACKERS["tensorboard"] = TrackerEntry(TensorBoardSettings, Library, "json")
main()
"""


@contextlib.contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_library_that_never_ends_keeps_no_process(tmp_path: Path) -> None:
    config = str(write_config(tmp_path))
    cases = {
        "done": (0, ["training.max_steps=2"]),
        "signal": (75, [ENDLESS]),
        "refused": (4, ["guard.inf_post_clip_threshold=1e-9", "guard.max_nan_retries=0"]),
        "fault": (1, []),
    }
    with contextlib.ExitStack() as all_of_them:
        running = {
            how: all_of_them.enter_context(
                started(
                    *("-c", HANGS, how, "train", "--config", config, f"run.dir={tmp_path / how}", "--json"),
                    *(TRACKER, *words),
                )
            )
            for how, (_, words) in cases.items()
        }
        said = {how: process.communicate(timeout=PATIENCE_SECONDS) for how, process in running.items()}
    for how, (code, _) in cases.items():
        out, err = said[how]
        assert running[how].returncode == code, err
        if how == "fault":
            assert out == ""
            assert err.endswith("\nRuntimeError: a fault of ours\n")
        else:
            assert json.loads(out)["exit_code"] == code, "the answer is whole"
            assert "\nnext: " in err
    assert lineage.verify(tmp_path / "done/attempts/0001").ok
    assert json.loads((tmp_path / "fault/attempts/0001/outcome.json").read_bytes())["exit_code"] == 1


ONLY_OURS = """
import atexit, sys
from pretrain.cli import main
atexit.register(print, "the end of Python itself")
main()
"""


def test_without_a_tracker_a_process_ends_as_any_other() -> None:
    with started("-c", ONLY_OURS, "verify-manifest", "nowhere") as process:
        out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out) == (2, "the end of Python itself\n")


def children(pid: int, name: str) -> list[int]:
    """The processes below `pid` that bear a name."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            before, _, after = stat.read_text().rpartition(")")
            if int(after.split()[1]) == pid and name.startswith(before.partition("(")[2]):
                found.append(int(stat.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc here")
def test_wandb_itself_when_its_process_hangs(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    words = [f"run.dir={tmp_path / 'run'}", ENDLESS, "telemetry.trackers={wandb: {}}", "--quiet"]
    with started("-m", "pretrain", "train", "--config", str(write_config(tmp_path)), *words) as process:
        deadline = time.monotonic() + PATIENCE_SECONDS
        rows = tmp_path / "run/wandb"
        while time.monotonic() < deadline and not [path for path in rows.glob("*/*.wandb") if path.stat().st_size]:
            time.sleep(0.1)
        hung = children(process.pid, "wandb-core")
        assert hung
        try:
            for one in hung:
                os.kill(one, signal.SIGSTOP)
            process.send_signal(signal.SIGTERM)
            code = process.wait(PATIENCE_SECONDS)  # not until its pipes end: the process that hangs has them, too
        finally:
            for one in hung:  # a child of ours, by its number, which hangs until it is told otherwise
                os.kill(one, signal.SIGKILL)
    assert code == 75
