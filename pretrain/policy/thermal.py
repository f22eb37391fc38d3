"""What follows from the temperature of the GPU: go on, wait until it has cooled, or stop."""

from dataclasses import dataclass
from typing import Literal

from pretrain.registry import limited

ThermalState = Literal["normal", "paused", "aborted"]

# What a sensor of a running GPU can say, in degrees Celsius. Drivers give 0 or 255 where they have no reading.
LOWEST_C, HIGHEST_C = 1.0, 150.0


@dataclass(frozen=True)
class ThermalSettings:
    """What is done when the GPU is hot; at a threshold itself nothing changes.

    gpu_temp_guard: watch the temperature; it needs `telemetry.gpu_metrics_backend=nvml`. Also `--gpu-temp-guard`.
    switch_on_thermal: above the critical threshold go on on the CPU instead of ending; a resume goes back to
      `training.device`. Also `--switch-on-thermal`.
    gpu_temp_pause_threshold_c: training waits once the temperature is above this.
    gpu_temp_resume_threshold_c: and goes on once it is below this.
    gpu_temp_critical_threshold_c: above this a checkpoint is saved and the attempt ends with exit code 5.
    gpu_temp_poll_interval_seconds: shortest time between two readings, which are taken between two steps.
    on_unreadable: what a temperature means that cannot be read any more, or that no GPU has: `pause` waits until it can
      be read and is below the resume threshold, `stop` ends as the critical threshold does, `ignore` changes nothing.
    """

    gpu_temp_guard: bool = False
    switch_on_thermal: bool = False
    gpu_temp_pause_threshold_c: float = limited(85.0, above=LOWEST_C, below=HIGHEST_C)
    gpu_temp_resume_threshold_c: float = limited(75.0, above=LOWEST_C, below=HIGHEST_C)
    gpu_temp_critical_threshold_c: float = limited(95.0, above=LOWEST_C, below=HIGHEST_C)
    gpu_temp_poll_interval_seconds: float = limited(5.0, above=0, at_most=3600)
    on_unreadable: str = limited("stop", choices=("pause", "stop", "ignore"))


def is_known(temperature_c: float | None) -> bool:
    """Whether this is a temperature that a GPU can have; None, NaN and what lies outside the range are not."""
    return temperature_c is not None and LOWEST_C <= temperature_c <= HIGHEST_C


def next_state(state: ThermalState, temperature_c: float | None, settings: ThermalSettings) -> ThermalState:
    """Return the state after one reading; `aborted` is never left, and what is not known is never cool."""
    if state == "aborted":
        return state
    if temperature_c is None or not is_known(temperature_c):
        match settings.on_unreadable:
            case "pause":
                return "paused"
            case "stop":
                return "aborted"
            case _:
                return state
    if temperature_c > settings.gpu_temp_critical_threshold_c:
        return "aborted"
    if state == "normal" and temperature_c > settings.gpu_temp_pause_threshold_c:
        return "paused"
    if state == "paused" and temperature_c < settings.gpu_temp_resume_threshold_c:
        return "normal"
    return state


def contradictions(settings: ThermalSettings) -> tuple[str, ...]:
    """What is wrong with the settings that no limit of a single key can say, one line each."""
    low, middle, high = (
        settings.gpu_temp_resume_threshold_c,
        settings.gpu_temp_pause_threshold_c,
        settings.gpu_temp_critical_threshold_c,
    )
    found = []
    if not low < middle:
        found.append(
            f"thermal.gpu_temp_resume_threshold_c ({low:g}) must be below thermal.gpu_temp_pause_threshold_c "
            f"({middle:g}): training would go on while it is still too hot"
        )
    if not middle < high:
        found.append(
            f"thermal.gpu_temp_pause_threshold_c ({middle:g}) must be below thermal.gpu_temp_critical_threshold_c "
            f"({high:g}): the attempt would end before it could wait"
        )
    if settings.switch_on_thermal and not settings.gpu_temp_guard:
        found.append("thermal.switch_on_thermal needs thermal.gpu_temp_guard=true: nothing watches the temperature")
    return tuple(found)
