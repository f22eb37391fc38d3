"""The one device that a process computes on, and the switches that decide its bits."""

import os

import torch

from pretrain.errors import ConfigError

# cuBLAS repeats its sums only with a fixed workspace; the variable is read when CUDA starts.
_CUBLAS_WORKSPACE = ":4096:8"


def select_device(name: str) -> torch.device:
    """Return the device that `training.device` names; `ConfigError` when this machine has no such device."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "training.device: cuda was asked for, but PyTorch sees no CUDA device here; "
            "use training.device=cpu, or install a CUDA build of torch and check `nvidia-smi`"
        )
    return torch.device(name, 0) if name == "cuda" else torch.device(name)


def set_determinism(deterministic: bool, threads: int | None) -> int:
    """Fix thread count and algorithms before anything is computed; return the number of threads in use."""
    if threads is not None:
        torch.set_num_threads(threads)
    _check_openmp(torch.get_num_threads())
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", _CUBLAS_WORKSPACE)
    torch.use_deterministic_algorithms(deterministic)
    # Filling fresh memory is a debugging aid of deterministic mode: it costs time and changes no result of ours.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = not deterministic
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return torch.get_num_threads()


def _check_openmp(threads: int) -> None:
    """Refuse settings under which oneDNN gives wrong products: it counts on every thread that PyTorch announces."""
    dynamic, limit = os.environ.get("OMP_DYNAMIC", ""), os.environ.get("OMP_THREAD_LIMIT", "")
    if threads > 1 and dynamic.lower() in ("true", "1"):
        raise ConfigError("OMP_DYNAMIC: with it bfloat16 products are wrong on several threads; unset it")
    if limit.isdigit() and int(limit) < threads:
        raise ConfigError(f"OMP_THREAD_LIMIT: {limit} is less than training.threads, {threads}; raise or unset it")


def release_memory(device: torch.device) -> None:
    """Give back to a CUDA device what PyTorch keeps of it and no tensor holds."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def bytes_in_use(device: torch.device) -> int | None:
    """Bytes that tensors hold on a CUDA device; None on the CPU, where nobody counts them."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else None
