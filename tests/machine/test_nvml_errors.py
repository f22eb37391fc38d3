"""Case S47: every error of NVML at every call, and every way in which CUDA_VISIBLE_DEVICES can name the GPU."""

import csv
import sys
from pathlib import Path

import pynvml
import pytest
import torch

from pretrain.attempt import start_attempt
from pretrain.errors import ConfigError
from pretrain.machine.nvml import Reading, Sensors
from pretrain.machine.signals import StopRequest
from pretrain.machine.thermometer import Thermometer
from pretrain.policy.thermal import ThermalSettings
from pretrain.telemetry.sink import Event, Note, StepRow
from tests.machine.test_nvml import CPU, CUDA, READS, FakeNvml, sensors, trains_on
from tests.tiny import Recorder, tiny

CODES = sorted(
    value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_") and isinstance(value, int)
)
LOST = pynvml.NVML_ERROR_GPU_IS_LOST
# The calls without which nothing can be read, and the index with which the GPU is asked for.
OPENING = {"nvmlInit": 1, "nvmlDeviceGetHandleByIndex": 1, "nvmlDeviceGetHandleByUUID": None}
CELLS = ("gpu_temperature_c", "gpu_power_w", "gpu_utilization", "gpu_clock_mhz")
EVERY_STEP = (
    *("training.max_steps=6", "checkpoint.checkpoint_every_n_steps=6", "validation.validate_every_n_steps=6"),
    *("telemetry.gpu_metrics_backend=nvml", "telemetry.nvml_device_index=1", "telemetry.telemetry_log_interval=1"),
)
GUARDED = (*EVERY_STEP, "thermal.gpu_temp_guard=true", "thermal.gpu_temp_poll_interval_seconds=1e-9")

every_error = pytest.mark.parametrize("code", CODES)


class Failing(FakeNvml):
    """The fake with the errors of the real binding."""

    NVMLError = pynvml.NVMLError
    not_found = pynvml.NVML_ERROR_NOT_FOUND

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failing:
            raise pynvml.NVMLError(int(self.failing[name]))

    def fail(self, code: int, *names: str) -> None:
        """From now on these calls fail, and no others."""
        self.failing = dict.fromkeys(names, str(code))


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Failing:
    module = Failing()
    monkeypatch.setitem(sys.modules, "pynvml", module)
    trains_on(monkeypatch, "bbbb")
    return module


class Breaks(Recorder):
    """A sink after whose step `step` the calls fail with `code`, until after `until`."""

    def __init__(self, nvml: Failing, code: int, step: int, until: int) -> None:
        super().__init__()
        self._nvml, self._code, self._step, self._until = nvml, code, step, until

    @property
    def warnings(self) -> list[str]:
        """Return what was said of NVML."""
        return [event.text for event in self.events if isinstance(event, Note) and "NVML" in event.text]

    def emit(self, event: Event) -> None:
        super().emit(event)
        step = event.step if isinstance(event, StepRow) else None
        is_pause = isinstance(event, Note) and event.kind == "paused"  # Nobody comes to the next step meanwhile.
        if step == self._step:
            self._nvml.fail(self._code, *[name for names in READS.values() for name in names])
        elif step == self._until or is_pause:
            self._nvml.fail(self._code)


def test_s47_the_binding_has_a_class_for_every_error() -> None:
    assert {type(pynvml.NVMLError(code)) for code in CODES} == set(pynvml.NVMLError.__subclasses__())
    assert len(CODES) >= 30


# --- at the start --------------------------------------------------------------------------------------


@every_error
@pytest.mark.parametrize("call", list(OPENING))
def test_s47_what_fails_at_the_start_is_refused_with_what_nvml_said(nvml: Failing, call: str, code: int) -> None:
    nvml.fail(code, call)
    with pytest.raises(ConfigError) as refused:
        sensors(CUDA, OPENING[call])
    assert refused.value.exit_code == 2
    assert str(refused.value).startswith("telemetry.")
    assert str(pynvml.NVMLError(code)) in str(refused.value)
    assert nvml.calls.count("nvmlShutdown") == (call != "nvmlInit")


@every_error
def test_s47_a_guard_that_cannot_read_is_refused_at_the_start(nvml: Failing, tmp_path: Path, code: int) -> None:
    """A guard whose sensors cannot be opened, or say nothing, is no guard: exit 2, before anything is written."""
    config = tiny(tmp_path, "text", *GUARDED, "thermal.on_unreadable=ignore")
    for calls in (("nvmlInit",), ("nvmlDeviceGetHandleByIndex",), READS["temperature_c"]):
        nvml.fail(code, *calls)
        with pytest.raises(ConfigError, match=r"^(telemetry|thermal)\.") as refused:
            start_attempt(config, StopRequest(), [])
        assert refused.value.exit_code == 2
    assert not (tmp_path / "run").exists()


# --- in mid run ----------------------------------------------------------------------------------------


@every_error
@pytest.mark.parametrize("name", list(READS))
def test_s47_a_reading_that_fails_is_none_with_one_warning_until_it_is_back(
    nvml: Failing, name: str, code: int
) -> None:
    opened, told = sensors()
    whole = opened.read()
    assert None not in (whole.temperature_c, whole.power_w, whole.utilization, whole.clock_mhz)
    nvml.fail(code, *READS[name])
    for _ in range(3):
        broken = opened.read()
        assert [one for one in READS if getattr(broken, one) is None] == [name]
    assert len(told) == 1
    assert str(pynvml.NVMLError(code)) in told[0]
    nvml.fail(code)
    assert opened.read() == whole
    nvml.fail(code, *READS[name])
    opened.read()
    assert len(told) == 1


@every_error
@pytest.mark.parametrize(
    ("word", "expected"),
    [("pause", ["paused", "paused"]), ("stop", ["aborted", "aborted"]), ("ignore", ["normal", "paused"])],
)
def test_s47_no_error_is_ever_cool(nvml: Failing, word: str, expected: list[str], code: int) -> None:
    """What the guard makes of it from the normal state and from a pause: `on_unreadable` decides, and ends no pause."""
    for before, degrees in zip(("normal", "paused"), (40, 90), strict=True):
        opened, _ = sensors()
        settings = ThermalSettings(gpu_temp_guard=True, on_unreadable=word, gpu_temp_poll_interval_seconds=1e-9)
        guard = Thermometer(settings, opened.temperature_c)
        nvml.fail(code)
        nvml.temperatures["GPU-bbbb"] = degrees
        assert guard.poll() == before
        nvml.fail(code, *READS["temperature_c"])
        for _ in range(3):
            assert guard.poll() == expected[before == "paused"]
        nvml.fail(code)
        nvml.temperatures["GPU-bbbb"] = 40
        assert guard.poll() == ("aborted" if word == "stop" else "normal")


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, LOST, pynvml.NVML_ERROR_UNKNOWN])
def test_s47_a_gpu_that_is_lost_in_mid_run_and_comes_back(nvml: Failing, tmp_path: Path, code: int) -> None:
    screen = Breaks(nvml, code, step=2, until=4)
    assert start_attempt(tiny(tmp_path, "text", *EVERY_STEP), StopRequest(), [screen]).verdict == "done"
    with (tmp_path / "run/attempts/0001/telemetry.csv").open(newline="") as file:
        found = [[row[name] for name in CELLS] for row in csv.DictReader(file)]
    whole, empty = ["40.0", "312.5", "97.0", "1980.0"], [""] * 4
    assert found == [whole, whole, empty, empty, whole, whole]
    assert len(screen.warnings) == 1


@pytest.mark.parametrize(
    ("word", "end"), [("pause", ("done", 0, 6)), ("stop", ("thermal", 5, 2)), ("ignore", ("done", 0, 6))]
)
def test_s47_a_guard_whose_gpu_is_lost_in_mid_run(
    nvml: Failing, tmp_path: Path, word: str, end: tuple[str, int, int]
) -> None:
    screen = Breaks(nvml, LOST, step=2, until=4)
    config = tiny(tmp_path, "text", *GUARDED, f"thermal.on_unreadable={word}")
    result = start_attempt(config, StopRequest(), [screen])
    assert (result.verdict, result.exit_code, result.step) == end
    kinds = [event.kind for event in screen.events if isinstance(event, Note)]
    assert (kinds.count("paused"), kinds.count("unpaused")) == ((1, 1) if word == "pause" else (0, 0))
    said = " ".join(screen.warnings)
    assert said.count("temperature (GPU is lost)") == 1
    assert all(said.count(f"{name} (") <= 1 for name in ("power", "utilization", "clock"))


# --- which GPU -----------------------------------------------------------------------------------------

# What CUDA makes of the variable on a machine with the GPUs aaaa, bbbb and cccc, the last cut into the slice dddd:
# the GPU that PyTorch calls cuda:0, or None where it sees none. NVML counts all of them, whatever the variable says.
CUDA_0 = {
    "0,1,2": "aaaa",
    "1,0": "bbbb",
    "2,1,0": "cccc",
    "2": "cccc",
    "1,-1,0": "bbbb",
    "GPU-bbbb": "bbbb",
    "GPU-cccc,GPU-aaaa": "cccc",
    "GPU-b": "bbbb",
    "MIG-dddd": "dddd",
    "MIG-GPU-cccc/1/0": "dddd",
    "": None,
    "-1": None,
    "1,1": None,
    "GPU-": None,
    "9": None,
}
DEGREES = {"aaaa": 30.0, "bbbb": 40.0, "cccc": 50.0, "dddd": 50.0}


@pytest.mark.parametrize("visible", list(CUDA_0))
def test_s47_the_gpu_that_trains_is_read_whatever_cuda_visible_devices_says(
    nvml: Failing, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, visible: str
) -> None:
    """By its UUID, for an index of NVML is not one of PyTorch; where PyTorch sees no GPU the run is refused."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    uuid = CUDA_0[visible]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: uuid is not None)
    if uuid is None:
        config = tiny(tmp_path, "text", "training.device=cuda", "telemetry.gpu_metrics_backend=nvml")
        with pytest.raises(ConfigError, match=r"training\.device: cuda was asked for, but PyTorch sees no CUDA device"):
            start_attempt(config, StopRequest(), [])
        assert not (tmp_path / "run").exists()
    else:
        trains_on(monkeypatch, uuid)
        assert sensors(CUDA)[0].read().temperature_c == DEGREES[uuid]
        assert "nvmlDeviceGetHandleByIndex" not in nvml.calls
    named = Sensors(CPU, 2, warn=print)  # An index is NVML's own, and no variable hides its GPU.
    assert named.read() == Reading(50.0, 312.5, 97.0, 1980.0)
