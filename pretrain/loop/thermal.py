"""The thermal guard between two steps: waits while the GPU is hot, ends the attempt, or moves it to the CPU."""

from collections.abc import Sequence

import torch

from pretrain.errors import ThermalError
from pretrain.evidence.events import DEVICE
from pretrain.faults import temperature_of
from pretrain.loop.boundary import save_what_is_not_durable, stop_here
from pretrain.loop.parts import LoopParts, show
from pretrain.machine.device import release_memory
from pretrain.policy.fault_plan import Fault
from pretrain.policy.thermal import is_known
from pretrain.telemetry.sink import Note


def watch_temperature(parts: LoopParts, faults: Sequence[Fault]) -> bool:
    """Take a reading where one is due and do what it asks for; True = the state has moved to the CPU.

    Raises ThermalError after saving when it is too hot, and RunInterruptedError when a signal ends a pause.
    """
    thermometer = parts.thermometer
    assert thermometer is not None
    with parts.spent.during("paused"):
        if thermometer.poll(temperature_of(faults)) == "paused":
            _pause(parts)
    if thermometer.state != "aborted":
        return False
    if parts.config.thermal.switch_on_thermal and _is_elsewhere(parts.state.device):
        with parts.spent.during("paused"):
            _move_to_cpu(parts)
        return True
    save_what_is_not_durable(parts)
    settings = parts.config.thermal
    limit = (
        f"thermal.gpu_temp_critical_threshold_c is {settings.gpu_temp_critical_threshold_c:g}"
        if is_known(thermometer.temperature_c)
        else f"thermal.on_unreadable is {settings.on_unreadable}"
    )
    raise ThermalError(
        f"{thermometer.described()} at step {parts.state.step}, and {limit}; "
        f"the checkpoint of step {parts.last_durable_step} is saved"
    )


def _is_elsewhere(device: torch.device) -> bool:
    """Whether there is a cooler place than this device."""
    return device.type != "cpu"


def _pause(parts: LoopParts) -> None:
    """Wait until the guard leaves the pause; what the device lends to nobody is given back meanwhile."""
    thermometer, step, settings = parts.thermometer, parts.state.step, parts.config.thermal
    assert thermometer is not None
    release_memory(parts.state.device)
    parts.writer.event("paused", step, temperature_c=thermometer.temperature_c)
    until = f"below {settings.gpu_temp_resume_threshold_c:g} °C"
    show(parts, Note(kind="paused", text=f"{thermometer.described()}; step {step + 1} waits until it is {until}"))
    while thermometer.state == "paused":
        thermometer.wait(parts.stop)
        if parts.stop.name is not None:
            stop_here(parts)
        thermometer.poll()
    if thermometer.state == "normal":
        seconds = round(thermometer.paused_seconds, 3)
        parts.writer.event("unpaused", step, temperature_c=thermometer.temperature_c, seconds=seconds)
        show(parts, Note(kind="unpaused", text=f"{thermometer.described()}, after {seconds:g} s"))


def _move_to_cpu(parts: LoopParts) -> None:
    """Move the state to the CPU and let go of the GPU; this attempt does not go back, a resume does."""
    state, cpu = parts.state, torch.device("cpu")
    assert parts.thermometer is not None
    reason = (
        f"from step {state.step} of attempt {parts.writer.number:04d} on the CPU computed instead of {state.device}: "
        f"{parts.thermometer.described()}"
    )
    # On record first: a checkpoint that the CPU had a part in must not be taken for one that it had none in.
    parts.writer.event(
        DEVICE, state.step, device=str(cpu), temperature_c=parts.thermometer.temperature_c, reason=reason
    )
    parts.writer.sync_events()
    parts.reasons.append(reason)
    hot = state.device
    state.move_to(cpu)
    parts.validator.device = cpu
    parts.rows.move_to(cpu)
    for copy in parts.memory.values():
        copy.tensors = {name: tensor.to(cpu) for name, tensor in copy.tensors.items()}
    parts.thermometer = None  # Nothing of this process heats the GPU any more.
    release_memory(hot)
    show(parts, Note(kind="warning", text=f"not bit for bit the same any more: {reason}"))
