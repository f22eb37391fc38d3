"""The real binding over a compiled libnvidia-ml.so.1 that says what a file tells it to, and real processes on it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.loop.lineages import end_of
from tests.tiny import tiny, train, write_config

ERRORS = sorted(
    value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_") and isinstance(value, int)
)
UUIDS = {"aaaa": 30, "bbbb": 40, "cccc": 50, "dddd": 50}  # the slice dddd: of the GPU that it is cut from
VISIBLE = ["0,1,2", "2,1,0", "1", "GPU-bbbb,GPU-aaaa", "MIG-dddd", ""]
GUARDED = (
    *("telemetry.gpu_metrics_backend=nvml", "telemetry.nvml_device_index=0", "telemetry.telemetry_log_interval=100000"),
    *("thermal.gpu_temp_poll_interval_seconds=1e-9", "--gpu-temp-guard", "--quiet", "--json"),
)

PROBE = """
import json, os, sys, types
import torch
from pretrain.errors import ConfigError
from pretrain.machine.nvml import Sensors

CELLS = ("temperature_c", "power_w", "utilization", "clock_mhz")

def ask(text, device="cpu", index=0):
    open(os.environ["FAKE_NVML"], "w").write(text)
    told = []
    try:
        sensors = Sensors(torch.device(device), index, warn=told.append)
    except ConfigError as error:
        return {"refused": str(error)}
    found = [sensors.temperature_c() for _ in range(2)]
    cells = [[getattr(reading, name) for name in CELLS] for reading in (sensors.read(), sensors.read())]
    sensors.close()
    return {"found": found, "told": told, "cells": cells}

errors, uuids, visible = json.loads(sys.argv[1])
calls = ("init", "handle", "read", "newer", "power", "utilization", "clock")
answer = {f"{call} {code}": ask(f"{call} {code}") for call in calls for code in errors}
degrees = "GPU-aaaa 30 GPU-bbbb 40 GPU-cccc 50 MIG-dddd 61"
for words in visible:
    os.environ["CUDA_VISIBLE_DEVICES"] = words
    for uuid in [*uuids, "eeee"]:
        torch.cuda.get_device_properties = lambda device, uuid=uuid: types.SimpleNamespace(uuid=uuid)
        answer[f"{words} {uuid}"] = ask(degrees, "cuda", None)
torch.cuda.get_device_properties = lambda device: types.SimpleNamespace(uuid="dddd")
answer["a slice whose GPU is hidden"] = ask(degrees + " whole 4", "cuda", None)
answer["index 2"], answer["index 3"] = ask(degrees, "cuda", 2), ask(degrees, "cuda", 3)
print(json.dumps(answer))
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the compiled library."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc here to compile the fake libnvidia-ml.so.1 with")
    folder = tmp_path_factory.mktemp("nvml")
    compile_library(folder)
    return folder


def compile_library(folder: Path) -> None:
    """Put the fake libnvidia-ml.so.1 into a folder."""
    source = Path(__file__).with_name("fake_nvml.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", source], check=True)


class Machine:
    """A machine with the library, whose temperatures a test writes."""

    def __init__(self, library: Path, folder: Path) -> None:
        self._control = folder / "control"
        self.environment = {
            **os.environ,
            "LD_LIBRARY_PATH": f"{library}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            "FAKE_NVML": str(self._control),
        }

    def say(self, text: str) -> None:
        """Let the library answer so, from its next call on; the file is replaced, so that no half of it is read."""
        fresh = self._control.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self._control)

    def start(self, *words: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "pretrain", *map(str, words)]
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *words: object) -> tuple[int, str, str]:
        with self.start(*words) as process:
            out, err = process.communicate(timeout=120)
            return process.returncode, out, err


@pytest.fixture
def machine(library: Path, tmp_path: Path) -> Machine:
    return Machine(library, tmp_path)


def events(attempt: Path, *names: str) -> list[Mapping[str, Any]]:
    path = attempt / "events.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [row for row in rows if row["event"] in names]


@pytest.mark.slow
def test_pause_resume_abort_with_5_and_the_same_bytes_after_it(machine: Machine, tmp_path: Path) -> None:
    config, run = write_config(tmp_path), tmp_path / "run"
    # At the start; before steps 1 to 3; in the pause, 75 being the threshold itself; before steps 4 to 6.
    machine.say("temperatures 70  70 70 90  80 75 74  85 70 96")
    code, out, err = machine.run("train", "--config", config, *GUARDED)
    assert code == 5, err
    attempt = run / "attempts/0001"
    told = [(row["event"], row["step"], row["temperature_c"]) for row in events(attempt, "paused", "unpaused")]
    assert told == [("paused", 2, 90.0), ("unpaused", 2, 74.0)]
    (end,) = events(attempt, "end")
    assert (end["verdict"], end["step"]) == ("thermal", 5)
    outcome = json.loads((attempt / "outcome.json").read_bytes())
    assert (outcome["verdict"], outcome["exit_code"], outcome["checkpoint"]["step"]) == ("thermal", 5, 5)
    assert outcome["resume"] == f"pretrain resume --attempt {run}"
    assert "96 °C at step 5" in outcome["reason"]
    assert (json.loads(out)["verdict"], json.loads(out)["exit_code"]) == ("thermal", 5)

    machine.say("temperatures 75")
    code, _, err = machine.run("resume", "--attempt", run, "--quiet")
    assert code == 0, err
    assert train(tiny(tmp_path, run="untouched")).verdict == "done"
    assert end_of(run) == end_of(tmp_path / "untouched")


@pytest.mark.slow
def test_a_pause_answers_a_signal_at_once(machine: Machine, tmp_path: Path) -> None:
    config, run = write_config(tmp_path), tmp_path / "run"
    machine.say("temperatures 70 70 70 90")
    with machine.start("train", "--config", config, *GUARDED, "thermal.gpu_temp_poll_interval_seconds=0.01") as process:
        try:
            deadline = time.monotonic() + 60
            while not events(run / "attempts/0001", "paused") and time.monotonic() < deadline:
                time.sleep(0.02)
            sent = time.time()
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 75, err
    (heard,) = events(run / "attempts/0001", "signal")
    assert heard["time"] - sent < 1.0
    machine.say("temperatures 70")
    code, _, err = machine.run("resume", "--attempt", run, "--no-gpu-temp-guard", "--quiet")
    assert code == 0, err
    assert train(tiny(tmp_path, run="untouched")).verdict == "done"
    assert end_of(run) == end_of(tmp_path / "untouched")


@pytest.mark.slow
def test_s47_a_guard_that_cannot_read_is_refused_before_anything_is_written(machine: Machine, tmp_path: Path) -> None:
    config = write_config(tmp_path)
    machine.say("read 15")
    code, _, err = machine.run("train", "--config", config, *GUARDED)
    assert code == 2, err
    assert "thermal.gpu_temp_guard: the temperature of the GPU cannot be read" in err
    assert not (tmp_path / "run").exists()


def test_s47_every_error_of_the_library_and_every_way_to_name_a_gpu(machine: Machine) -> None:
    words = json.dumps([ERRORS, list(UUIDS), VISIBLE])
    done = subprocess.run(
        [sys.executable, "-c", PROBE, words], env=machine.environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert len(ERRORS) >= 30
    for code in ERRORS:
        assert "telemetry.gpu_metrics_backend: nvml cannot be used here" in answer[f"init {code}"]["refused"]
        assert "telemetry.nvml_device_index: NVML has no usable GPU 0" in answer[f"handle {code}"]["refused"]
        assert answer[f"read {code}"]["found"] == [None, None]
        (told,) = answer[f"read {code}"]["told"]
        assert told.startswith("NVML cannot read temperature (")
        assert answer[f"read {code}"]["cells"] == [[None, 312.5, 97.0, 1980.0]] * 2
        assert answer[f"newer {code}"] == {"found": [30.0] * 2, "told": [], "cells": [[30.0, 312.5, 97.0, 1980.0]] * 2}
        for place, name in enumerate(("power", "utilization", "clock"), 1):
            one = answer[f"{name} {code}"]
            empty = [None if cell == place else found for cell, found in enumerate((30.0, 312.5, 97.0, 1980.0))]
            assert (one["found"], one["cells"]) == ([30.0, 30.0], [empty, empty])
            (told,) = one["told"]
            assert told.startswith(f"NVML cannot read {name} (")
    for visible in VISIBLE:
        for uuid, degrees in UUIDS.items():
            one = answer[f"{visible} {uuid}"]
            assert (one["found"], one["told"]) == ([degrees, degrees], []), (visible, uuid)
        assert "NVML knows no GPU of the UUID eeee" in answer[f"{visible} eeee"]["refused"]
    assert answer["a slice whose GPU is hidden"]["found"] == [61.0, 61.0]
    assert answer["index 2"]["found"] == [50.0, 50.0]
    assert "NVML has no usable GPU 3" in answer["index 3"]["refused"]
