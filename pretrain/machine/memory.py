"""Memory and disk of this machine: when the first is exhausted, and how much there is of both."""

import torch

# What the allocator of the CPU, CUDA and cuBLAS say in a plain RuntimeError.
_EXHAUSTED = ("DefaultCPUAllocator", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")


def is_exhausted(error: BaseException) -> bool:
    """Whether an error says that there is no memory left, on the device or on the host."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _EXHAUSTED)
