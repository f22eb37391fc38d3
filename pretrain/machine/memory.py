"""Memory of this machine: when it is exhausted, and how much there is of it."""

import os
import re
from pathlib import Path
from typing import Any

import torch

# Where Linux keeps the memory of a process, and the limit of a container.
_STATM, _LIMIT = Path("/proc/self/statm"), Path("/sys/fs/cgroup/memory.max")
_STATUS = Path("/proc/self/status")
# What the allocator of the CPU, CUDA and cuBLAS say in a plain RuntimeError.
_EXHAUSTED = ("DefaultCPUAllocator", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")


def is_exhausted(error: BaseException) -> bool:
    """Whether an error says that there is no memory left, on the device or on the host."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _EXHAUSTED)


def resident_bytes() -> int | None:
    """Return the memory that this process holds; None where the system does not say."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def peak_resident_bytes() -> int | None:
    """Return the most memory that this process has held so far; None where the system does not say."""
    try:
        found = re.search(r"^VmHWM:\s+([0-9]+) kB$", _STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else int(found[1]) * 1024


def total_bytes() -> int | None:
    """Return the memory of this machine, or of the container where that is less; None where it is not known."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
    try:
        return min(total, int(_LIMIT.read_text()))
    except (OSError, ValueError):  # no such group, or the word "max"
        return total


def device_bytes(device: torch.device) -> tuple[int, int] | None:
    """Return what is free on a CUDA device, to whomever, and all of it; None on the CPU."""
    return torch.cuda.mem_get_info(device) if device.type == "cuda" else None


def of_allocator(device: torch.device) -> dict[str, Any] | None:
    """Return the statistics of PyTorch's allocator of a CUDA device, and the segments it holds; None on the CPU."""
    if device.type != "cuda":
        return None
    segments = torch.cuda.memory._snapshot(device)["segments"]
    return {"statistics": torch.cuda.memory_stats(device), "segments": segments}


def in_units(count: int) -> str:
    """Return bytes as a person reads them, in powers of 1000."""
    for power, unit in ((9, "GB"), (6, "MB")):
        if count >= 10**power:
            return f"{count / 10**power:.1f} {unit}"
    return f"{count:,} bytes"
