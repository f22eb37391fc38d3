"""The GPU's sensors against a fake pynvml whose every call can be made to fail."""

import sys
import types

import pynvml as real_pynvml
import pytest
import torch

from pretrain.errors import ConfigError
from pretrain.machine.nvml import Reading, Sensors

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
GPUS = ("GPU-aaaa", "GPU-bbbb", "GPU-cccc")
READS = {
    "temperature_c": ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"),
    "power_w": ("nvmlDeviceGetPowerUsage",),
    "utilization": ("nvmlDeviceGetUtilizationRates",),
    "clock_mhz": ("nvmlDeviceGetClockInfo",),
}


class FakeNvml(types.ModuleType):
    """The calls that are used, over GPUS and a slice of the last one; `failing` names those that raise."""

    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM = 0, 1
    not_found: object = "Not Found"

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.failing: dict[str, str] = {}
        self.calls: list[str] = []
        self.temperatures = {"GPU-aaaa": 30, "GPU-bbbb": 40, "GPU-cccc": 50}

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failing:
            raise self.NVMLError(self.failing[name])

    def nvmlInit(self):  # noqa: N802
        self._call("nvmlInit")

    def nvmlShutdown(self):  # noqa: N802
        self._call("nvmlShutdown")

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        self._call("nvmlDeviceGetHandleByIndex")
        if not 0 <= index < len(GPUS):
            raise self.NVMLError("Invalid Argument")
        return GPUS[index]

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        self._call("nvmlDeviceGetHandleByUUID")
        if uuid not in (*GPUS, "MIG-dddd"):
            raise self.NVMLError(self.not_found)
        return uuid

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle):  # noqa: N802
        self._call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle")
        assert handle == "MIG-dddd"
        return "GPU-cccc"

    def nvmlDeviceGetTemperatureV(self, handle, sensor):  # noqa: N802
        self._call("nvmlDeviceGetTemperatureV")
        return self.temperatures[handle]

    def nvmlDeviceGetTemperature(self, handle, sensor):  # noqa: N802
        self._call("nvmlDeviceGetTemperature")
        return self.temperatures[handle]

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        self._call("nvmlDeviceGetPowerUsage")
        return 312_500

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        self._call("nvmlDeviceGetUtilizationRates")
        return types.SimpleNamespace(gpu=97, memory=40)

    def nvmlDeviceGetClockInfo(self, handle, clock):  # noqa: N802
        self._call("nvmlDeviceGetClockInfo")
        return {1: 1980}[clock]


@pytest.fixture
def fake(monkeypatch) -> FakeNvml:
    module = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", module)
    trains_on(monkeypatch, "bbbb")
    return module


def trains_on(monkeypatch, uuid: str) -> None:
    properties = types.SimpleNamespace(uuid=uuid)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)


def sensors(device=CUDA, index=None) -> tuple[Sensors, list[str]]:
    told: list[str] = []
    return Sensors(device, index, warn=told.append), told


def test_every_sensor_in_its_unit(fake):
    opened, told = sensors()
    assert opened.read() == Reading(40.0, 312.5, 97.0, 1980.0)
    assert told == []


@pytest.mark.parametrize("visible", ["1,0", "GPU-bbbb", "MIG-dddd", ""])
@pytest.mark.parametrize(
    ("uuid", "degrees"),
    [("aaaa", 30.0), ("bbbb", 40.0), ("cccc", 50.0), ("dddd", 50.0)],  # the slice: of the GPU it is cut from
)
def test_s47_the_gpu_is_found_by_uuid_whatever_is_visible(fake, monkeypatch, visible, uuid, degrees):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    trains_on(monkeypatch, uuid)
    assert sensors()[0].read().temperature_c == degrees
    assert "nvmlDeviceGetHandleByIndex" not in fake.calls


def test_a_slice_whose_gpu_is_hidden_is_read_itself(fake, monkeypatch):
    trains_on(monkeypatch, "dddd")
    fake.failing["nvmlDeviceGetDeviceHandleFromMigDeviceHandle"] = "Insufficient Permissions"
    fake.temperatures["MIG-dddd"] = 61
    assert sensors()[0].read().temperature_c == 61.0


@pytest.mark.parametrize("device", [CUDA, CPU])
def test_an_index_is_nvmls_own(fake, device):
    assert sensors(device, index=2)[0].read().temperature_c == 50.0
    assert "nvmlDeviceGetHandleByUUID" not in fake.calls


def test_the_older_temperature_call_comes_second(fake, monkeypatch):
    opened, told = sensors()
    opened.read()
    assert "nvmlDeviceGetTemperature" not in fake.calls
    fake.failing["nvmlDeviceGetTemperatureV"] = "Function Not Found"
    assert opened.read().temperature_c == 40.0
    monkeypatch.delattr(FakeNvml, "nvmlDeviceGetTemperatureV")
    assert opened.read().temperature_c == 40.0
    assert told == []


@pytest.mark.parametrize("error", ["Not Supported", "GPU is lost", "Unknown Error", "Timeout"])
@pytest.mark.parametrize("name", list(READS))
def test_s47_a_reading_that_fails_is_empty_with_one_warning(fake, name, error):
    opened, told = sensors()
    fake.failing.update(dict.fromkeys(READS[name], error))
    for _ in range(3):
        reading = opened.read()
        assert getattr(reading, name) is None
        assert all(getattr(reading, other) is not None for other in READS if other != name)
    assert len(told) == 1
    assert error in told[0]
    fake.failing.clear()
    assert getattr(opened.read(), name) is not None
    assert len(told) == 1


def test_a_gpu_that_is_lost_gives_empty_cells_and_one_warning_in_all(fake):
    opened, told = sensors()
    for calls in (*READS.values(), ("nvmlShutdown",)):
        fake.failing.update(dict.fromkeys(calls, "GPU is lost"))
    assert [opened.read() for _ in range(2)] == [Reading(None, None, None, None)] * 2
    assert len(told) == 1
    opened.close()


@pytest.mark.parametrize(
    ("failing", "device", "index", "message"),
    [
        ("nvmlInit", CUDA, None, r"gpu_metrics_backend.*NVML Shared Library Not Found.*nvidia-smi.*=none"),
        ("nvmlInit", CUDA, 0, r"gpu_metrics_backend.*NVML Shared Library Not Found.*nvidia-smi.*=none"),
        ("nvmlDeviceGetHandleByUUID", CUDA, None, r"gpu_metrics_backend.*bbbb.*nvml_device_index.*=none"),
        ("nvmlDeviceGetHandleByIndex", CUDA, 0, r"nvml_device_index.*GPU 0.*NVML Shared.*null"),
        ("", CUDA, 3, r"nvml_device_index.*GPU 3.*Invalid Argument"),
        ("", CPU, None, r"gpu_metrics_backend.*training\.device is cpu.*nvml_device_index.*=none"),
    ],
)
def test_what_cannot_be_opened_is_refused_at_the_start(fake, failing, device, index, message):
    fake.failing[failing] = "NVML Shared Library Not Found"
    with pytest.raises(ConfigError, match=message):
        sensors(device, index)
    assert fake.calls.count("nvmlShutdown") == (failing != "nvmlInit")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(ConfigError, match="nvidia-ml-py"):
        sensors()


def test_close_lets_go_once(fake):
    opened, _ = sensors()
    opened.close()
    opened.close()
    assert fake.calls.count("nvmlShutdown") == 1
    with pytest.raises(AssertionError, match="close"):
        opened.read()


def test_the_real_binding_has_every_name_that_the_fake_has():
    names = [name for name in vars(FakeNvml) if name.lower().startswith("nvml")]
    assert len(names) == 13
    assert [name for name in names if not hasattr(real_pynvml, name)] == []


def test_the_real_binding_without_a_driver_is_refused():
    try:
        real_pynvml.nvmlInit()
    except real_pynvml.NVMLError:
        with pytest.raises(ConfigError, match=r"telemetry\.gpu_metrics_backend"):
            sensors()
    else:
        real_pynvml.nvmlShutdown()
        pytest.skip("this machine has an NVIDIA driver")
