"""Makes the row of a step from what the step measured, each column at its own interval."""

from dataclasses import replace

import torch

from pretrain.machine.device import bytes_in_use
from pretrain.machine.nvml import Sensors
from pretrain.telemetry import TelemetrySettings
from pretrain.telemetry.sink import StepRow
from pretrain.telemetry.throughput import StepTiming
from pretrain.telemetry.utilization import Utilization


class RowMaker:
    """Fills StepRow for one attempt; sensors None = `gpu_metrics_backend: none`, so those cells stay empty.

    device: whose memory is counted.
    """

    def __init__(
        self,
        attempt: int,
        settings: TelemetrySettings,
        sensors: Sensors | None,
        device: torch.device,
        utilization: Utilization,
    ) -> None:
        self._attempt, self._settings, self._sensors, self.device = attempt, settings, sensors, device
        self._utilization = utilization

    def move_to(self, device: torch.device) -> None:
        """Count the memory of another device from now on, whose peak nobody knows."""
        self.device, self._utilization = device, replace(self._utilization, peak=None)

    def wants_blocks(self, step: int) -> bool:
        """Whether the row of `step` carries the gradient norm of every block."""
        return self._settings.enable_block_grad_norms and step % self._settings.telemetry_log_interval == 0

    def row(
        self,
        *,
        step: int,
        batch: int,
        loss: float,
        learning_rate: float,
        gradient_norm: float,
        clip_ratio: float,
        update_norm: float | None,
        supervised: int,
        action: str,
        loss_scale: float | None,
        timing: StepTiming,
        block_gradient_norms: tuple[float, ...],
    ) -> StepRow:
        """Return the row; a refused step shows its gradient whatever the interval, for that is what one looks for."""
        gradients = action != "accept" or step % self._settings.gradient_log_interval == 0
        heavy = step % self._settings.telemetry_log_interval == 0
        reading = self._sensors.read() if self._sensors is not None and heavy else None
        return StepRow(
            attempt=self._attempt,
            step=step,
            batch=batch,
            loss=loss,
            learning_rate=learning_rate,
            action=action,
            gradient_norm=gradient_norm,
            gradient_norm_clipped=gradient_norm * clip_ratio if gradients else None,
            clip_ratio=clip_ratio if gradients else None,
            update_norm=update_norm,
            supervised=supervised,
            tokens_per_second=timing.tokens_per_second,
            data_seconds=timing.data_seconds,
            compute_seconds=timing.compute_seconds,
            optimizer_seconds=timing.optimizer_seconds,
            evidence_seconds=timing.evidence_seconds,
            loss_scale=loss_scale,
            memory_bytes=bytes_in_use(self.device) if heavy else None,
            gpu_temperature_c=reading.temperature_c if reading else None,
            gpu_power_w=reading.power_w if reading else None,
            gpu_utilization=reading.utilization if reading else None,
            gpu_clock_mhz=reading.clock_mhz if reading else None,
            mfu=self._utilization.share(timing.tokens_per_second),
            block_gradient_norms=block_gradient_norms,
            seconds_left=timing.seconds_left,
        )
