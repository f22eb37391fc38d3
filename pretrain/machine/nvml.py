"""The sensors of one NVIDIA GPU, read through NVML; the only importer of pynvml."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pretrain.errors import ConfigError

_OFF = "or set telemetry.gpu_metrics_backend=none"


@dataclass(frozen=True, slots=True)
class Reading:
    """What the sensors say now; None = this one cannot be read here.

    temperature_c: degrees Celsius. power_w: watts. utilization: per cent of the time that a kernel ran. clock_mhz: of
    the streaming multiprocessors, in MHz.
    """

    temperature_c: float | None
    power_w: float | None
    utilization: float | None
    clock_mhz: float | None


class Sensors:
    """The sensors of the GPU that `device` is, or of NVML's GPU number `nvml_device_index` where that is given.

    NVML counts the GPUs of the machine, PyTorch those that CUDA_VISIBLE_DEVICES leaves, in its order, or slices
    of one (MIG): so the GPU is found by its UUID, never by PyTorch's index. A slice has no temperature of its
    own; the GPU that it is cut from is read.

    warn: told once for each sensor that cannot be read, with the reason; reading never raises.
    Raises ConfigError when there is no NVML here, or not this GPU.
    """

    def __init__(self, device: torch.device, nvml_device_index: int | None, *, warn: Callable[[str], None]) -> None:
        self._warn, self._warned = warn, set[str]()
        self._nvml: Any = _import()
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            raise ConfigError(
                f"telemetry.gpu_metrics_backend: nvml cannot be used here ({error}): check the NVIDIA driver"
                f" with `nvidia-smi`, {_OFF}"
            ) from error
        self._open = True
        try:
            self._handle = self._find(device, nvml_device_index)
        except BaseException:  # There is no object yet whose owner could let go of NVML.
            self.close()
            raise

    def read(self) -> Reading:
        """Read every sensor; one that fails is None, and the first time it does, `warn` is told."""
        assert self._open, "read after close"
        nvml, handle, failures = self._nvml, self._handle, dict[str, str]()

        def attempt(name: str, call: Callable[[], float]) -> float | None:
            return self._attempt(name, call, failures)

        reading = Reading(
            temperature_c=attempt("temperature", self._temperature),
            power_w=attempt("power", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            utilization=attempt("utilization", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            clock_mhz=attempt("clock", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        )
        self._tell(failures)
        return reading

    def temperature_c(self) -> float | None:
        """Read the temperature alone; None where that fails, and the first time it does, `warn` is told."""
        assert self._open, "read after close"
        failures: dict[str, str] = {}
        found = self._attempt("temperature", self._temperature, failures)
        self._tell(failures)
        return found

    def close(self) -> None:
        """Let go of NVML; a second call does nothing."""
        if self._open:
            self._open = False
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _attempt(self, name: str, call: Callable[[], float], failures: dict[str, str]) -> float | None:
        try:
            return float(call())
        except self._nvml.NVMLError as error:
            failures[name] = str(error)
            return None

    def _tell(self, failures: dict[str, str]) -> None:
        fresh = {name: why for name, why in failures.items() if name not in self._warned}
        if fresh:
            self._warned |= fresh.keys()
            listed = ", ".join(f"{name} ({why})" for name, why in fresh.items())
            self._warn(f"NVML cannot read {listed}; the cell stays empty wherever that is so")

    def _temperature(self) -> float:
        nvml, sensor = self._nvml, self._nvml.NVML_TEMPERATURE_GPU
        # The older call goes away with CUDA 14, and older drivers and bindings lack the newer one.
        if hasattr(nvml, "nvmlDeviceGetTemperatureV"):
            with contextlib.suppress(nvml.NVMLError):
                return float(nvml.nvmlDeviceGetTemperatureV(self._handle, sensor))
        return float(nvml.nvmlDeviceGetTemperature(self._handle, sensor))

    def _find(self, device: torch.device, index: int | None) -> Any:
        nvml = self._nvml
        if index is not None:
            try:
                return nvml.nvmlDeviceGetHandleByIndex(index)
            except nvml.NVMLError as error:
                raise ConfigError(
                    f"telemetry.nvml_device_index: NVML has no usable GPU {index} ({error}); expected a number"
                    " that `nvidia-smi -L` lists, or null for the GPU that trains"
                ) from error
        if device.type != "cuda":
            raise ConfigError(
                "telemetry.gpu_metrics_backend: nvml reads the GPU that trains, but training.device is"
                f" {device.type}; name a GPU with telemetry.nvml_device_index, {_OFF}"
            )
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        said = []
        # PyTorch leaves out the prefix that says whether the UUID is a whole GPU's or a slice's.
        for prefix in ("GPU-", "MIG-"):
            try:
                handle = nvml.nvmlDeviceGetHandleByUUID(prefix + uuid)
            except nvml.NVMLError as error:
                said.append(f"{prefix}{uuid}: {error}")
            else:
                return handle if prefix == "GPU-" else self._whole(handle)
        raise ConfigError(
            f"telemetry.gpu_metrics_backend: NVML knows no GPU of the UUID {uuid} that PyTorch trains on"
            f" ({', '.join(said)}); name it with telemetry.nvml_device_index (see `nvidia-smi -L`), {_OFF}"
        )

    def _whole(self, slice_handle: Any) -> Any:
        with contextlib.suppress(self._nvml.NVMLError):
            return self._nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(slice_handle)
        return slice_handle


def _import() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise ConfigError(
            f"telemetry.gpu_metrics_backend: nvml needs the Python package nvidia-ml-py; install it, {_OFF}"
        ) from error
    return pynvml
