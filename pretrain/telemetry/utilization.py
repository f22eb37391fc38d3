"""MFU: the share of the device's peak that the model's own operations come to."""

from dataclasses import dataclass

from pretrain.errors import MeasurementError
from pretrain.machine.peaks import Peak


@dataclass(frozen=True)
class Utilization:
    """flops_per_unit: of the forward and backward pass, for one supervised unit, a token or a complex sample.

    It is the (6 N + 12 L d S) of `models/flops.py`; peak None = unknown, and then so is the share.
    """

    flops_per_unit: float
    peak: Peak | None

    def share(self, units_per_second: float | None) -> float | None:
        """Return the share of the peak at this rate, None where one of the numbers is unknown.

        Raises MeasurementError above 1, which no device reaches.
        """
        if units_per_second is None or self.peak is None:
            return None
        reached = units_per_second * self.flops_per_unit
        share = reached / self.peak.flops_per_second
        if share > 1.0:
            raise MeasurementError(
                f"mfu: {share:.0%} of a peak cannot be: {units_per_second:.6g} units a second were measured, "
                f"each takes {self.flops_per_unit:.6g} FLOPs as PyTorch's own counter has them, and that is "
                f"{reached:.4g} FLOP/s; so the peak is wrong, {self.peak.flops_per_second:.4g} FLOP/s of "
                f"{self.peak.name} in {self.peak.precision}: mend its row in pretrain/machine/peaks.py"
            )
        return share
