"""Kept by a process that may be killed: which windows of its data each batch that it trains on is made of, really.

A window's number goes with the tensor that the data set hands out for it, through the loader and its threads, to where
the gradients of a batch are made; only there it is put on record, by one write to the end of a file of the harness.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pretrain.attempt import run
from pretrain.batch import StepBatch
from pretrain.data.iq import IqWindows
from pretrain.data.synthetic import SyntheticWindows
from pretrain.data.text import TextWindows
from pretrain.data.windows import Indices
from pretrain.loop import LoopParts, steps

_SETS = (IqWindows, SyntheticWindows, TextWindows)


@dataclass(frozen=True)
class Taken:
    """One batch: the attempt that read it, the step it was read for, its number in the lineage, and what was in it.

    ids: the number of the window of each sample, row by row. windows: how many the data set has.
    """

    attempt: int
    step: int
    batch: int
    epoch: int
    ids: tuple[int, ...]
    windows: int


def keep_ledger(path: Path) -> None:
    """Put every batch that this process trains on from here on on record in `path`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for windows in _SETS:
        _mark_what_is_read(windows)
    real_train, real_accumulate = run.train, steps.accumulate
    at_work: list[LoopParts] = []

    def train(parts: LoopParts) -> None:
        at_work[:] = [parts]
        real_train(parts)

    def accumulate(model: Any, task: Any, batch: StepBatch, *arguments: Any) -> Any:
        (parts,) = at_work
        marks = [micro_batch.samples.window_numbers for micro_batch in batch.micro_batches]  # type: ignore[attr-defined]
        taken = Taken(
            attempt=int(parts.writer.folder.name),
            step=parts.state.step + 1,
            batch=parts.state.batch,
            epoch=batch.epoch,
            ids=tuple(number for numbers, _ in marks for number in numbers),
            windows=marks[0][1],
        )
        os.write(descriptor, json.dumps(asdict(taken)).encode() + b"\n")
        return real_accumulate(model, task, batch, *arguments)

    run.train, steps.accumulate = train, accumulate  # type: ignore[attr-defined]


def _mark_what_is_read(windows: Any) -> None:
    real = windows.read

    def read(self: Any, indices: Indices) -> Any:
        samples = real(self, indices)
        samples.window_numbers = indices.tolist(), len(self)
        return samples

    windows.read = read


def read_ledger(path: Path) -> list[Taken]:
    """Return what the lives of a run have put on record, in the order in which they took it."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [Taken(**{**row, "ids": tuple(row["ids"])}) for row in rows]
