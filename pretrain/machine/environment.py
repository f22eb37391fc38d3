"""What this machine is, as far as it can change a bit of the result."""

import os
import platform
from importlib.metadata import version
from typing import Any

import torch

PACKAGES = ("torch", "numpy", "safetensors")
# Variables by which the libraries choose their kernels, and with them the last bits.
ARITHMETIC = ("MKL_", "ONEDNN_", "DNNL_", "OMP_", "KMP_", "GOMP_", "ATEN_", "NVIDIA_TF32_OVERRIDE", "CUBLAS_", "TORCH_")


def describe(device: torch.device, deterministic: bool) -> dict[str, Any]:
    """Return versions, device, threads, CPU capability and determinism switches as plain values."""
    return {
        "versions": {
            "pretrain": version("pretrain"),
            "python": platform.python_version(),
            **{name: version(name) for name in PACKAGES},
        },
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "determinism": {
            "deterministic_algorithms": deterministic,
            "tf32": torch.backends.cuda.matmul.allow_tf32,
            "cublas_workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
            "variables": {name: os.environ[name] for name in sorted(os.environ) if name.startswith(ARITHMETIC)},
            "mkldnn": torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
        },
    }


def differences(parent: dict[str, Any], child: dict[str, Any]) -> list[str]:
    """Say what changed between two descriptions that can change a result bit, one sentence each."""
    changed = []
    for key in ("device", "threads", "cpu_capability"):
        if parent[key] != child[key]:
            changed.append(f"{key} was {parent[key]}, is {child[key]}")
    for group in ("versions", "determinism"):
        for key in sorted(parent[group].keys() | child[group].keys()):
            old, new = parent[group].get(key), child[group].get(key)
            if old != new:
                changed.append(f"{key} was {old}, is {new}")
    return changed
