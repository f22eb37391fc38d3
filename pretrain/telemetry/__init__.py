"""Rows for a person's eyes: nothing here answers for the run."""

from dataclasses import dataclass, field
from typing import Any

from pretrain.registry import limited


@dataclass(frozen=True)
class TelemetrySettings:
    """What is written for a person to look at.

    csv_log_path: the CSV of step rows; a relative path lies in the attempt's folder.
    csv_rotate_on_schema_change: true = changed columns go to the next free `name.NNN.csv`; false = an error.
    gradient_log_interval: steps between rows that carry gradient statistics.
    telemetry_log_interval: steps between rows that carry the heavy columns (device metrics, block norms).
    enable_block_grad_norms: one gradient norm per block in the CSV, at `telemetry_log_interval`.
    gpu_metrics_backend: `nvml` reads the GPU's sensors, `none` does not.
    nvml_device_index: NVML's own index of the GPU to read; null = the GPU that trains, found by UUID.
    trackers: services and tools that are shown the rows while the run goes on, each with its own settings.
    """

    csv_log_path: str = "telemetry.csv"
    csv_rotate_on_schema_change: bool = True
    gradient_log_interval: int = limited(10, at_least=1)
    telemetry_log_interval: int = limited(10, at_least=1)
    enable_block_grad_norms: bool = False
    gpu_metrics_backend: str = limited("none", choices=("none", "nvml"))
    nvml_device_index: int | None = limited(None, at_least=0)
    trackers: dict[str, Any] = field(default_factory=dict)
