"""What a batch is, and what a model must take in to read one."""

from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True)
class InputSpec:
    """What one position of a sequence is: a token id below `size`, or a patch of `size` reals."""

    kind: Literal["tokens", "patches"]
    size: int


@dataclass(frozen=True)
class Batch:
    """One micro-batch on the CPU: consecutive positions of one epoch's order (or a validation set in its own order).

    samples: text, int64 [rows, sequence_length + 1] token ids; IQ, complex64 [rows, sequence_length] as recorded.
    labels: one signal class per row where the source knows it, else "".
    """

    samples: torch.Tensor
    epoch: int
    position: int
    labels: tuple[str, ...]


@dataclass(frozen=True)
class StepBatch:
    """Every micro-batch of one optimizer step: the positions `position` to `position + samples` of `epoch`."""

    micro_batches: tuple[Batch, ...]
    epoch: int
    position: int


@dataclass(frozen=True)
class SampleIdentity:
    """Where one sample comes from: a file (or builtin), a byte offset in it, and its position in the epoch's order."""

    source: str
    offset: int
    position: int
