"""What a device can compute at most, from a small table: a device that is not in it has no known peak."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Peak:
    """The most floating point operations a second of the device called `name`, in the arithmetic of `precision`."""

    name: str
    precision: str
    flops_per_second: float


# Dense, by the makers' data sheets; float32 without TF32, which set_determinism turns off. The whole name must match: a
# PCIe or NVL card has other clocks than the SXM one of its name, and a MIG device is a slice of one.
_A100: Mapping[str, float] = {"bfloat16": 312e12, "float16": 312e12, "float32": 19.5e12}
_H100: Mapping[str, float] = {"bfloat16": 989e12, "float16": 989e12, "float32": 66.9e12}
_PEAKS = (
    (re.compile(r"(NVIDIA )?A100-(SXM4|PCIE)-[48]0GB|NVIDIA A100 80GB PCIe"), _A100),
    (re.compile(r"NVIDIA H100 80GB HBM3"), _H100),  # the SXM card; the others say PCIe or NVL
    (re.compile(r"NVIDIA H200"), _H100),
)


def peak_of(name: str, precision: str) -> Peak | None:
    """Return the peak of a device by its full name; None where it is not known."""
    for pattern, by_precision in _PEAKS:
        if pattern.fullmatch(name):
            return Peak(name, precision, by_precision[precision])
    return None


def peak_of_device(device: torch.device, precision: str) -> Peak | None:
    """Return the peak of the device that trains; None on the CPU, whose clock and cores vary too much for a table."""
    return peak_of(torch.cuda.get_device_name(device), precision) if device.type == "cuda" else None
