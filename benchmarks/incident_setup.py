"""What every incident run begins with: its folder, data and config, and a reader that is at fault."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.incident_data import BATCH, SEQUENCE, default_signals, synthetic, windows_of, write_signals, write_text
from benchmarks.incident_faults import STEPS, Fault, Plan
from pretrain.batch import Batch
from pretrain.build import build_data
from pretrain.config import RunConfig, parse
from pretrain.data.iq import IqWindows

CPU = torch.device("cpu")
# Steps are skipped and batches quarantined: the data lasts for some more than the steps.
WINDOWS = (STEPS + 60) * BATCH["iq"]
SCHEDULES = ("cosine", "warmup_stable_decay", "linear_warmup_then_constant")
_CONFIG = """
run: {{dir: {run}}}
training: {{max_steps: {steps}, batch_size: {batch}, threads: 1, seed: {seed}}}
task: {{{task}}}
data:
  sequence_length: {length}
  prefetch_steps: 0
{data}
model: {{name: decoder, width: 32, layers: 2, heads: 2, kv_heads: 1}}
optimizer: {{optimizer_class: adamw, lr: {rate}}}
scheduler: {{scheduler_type: {schedule}}}
checkpoint: {{checkpoint_every_n_steps: {every}}}
validation: {{validate_every_n_steps: {steps}}}
spikes:
  loss: {{action: roll_back}}
  gradient: {{action: skip}}
  update: {{action: roll_back}}
"""


@contextmanager
def folder() -> Iterator[Path]:
    """Give a folder in memory where there is one: a sync to a disk costs more than these steps."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def config_of(plan: Plan, fault: Fault | None, folder: Path, *, spoiled: bool) -> RunConfig:
    """Return the config of a plan with its data written; not `spoiled`: without what is wrong with it."""
    rng = np.random.default_rng(plan.seed + 7)
    replaced = (fault.at, fault.rows, fault.filler) if fault is not None and spoiled else (None, 0, None)
    if plan.task == "text":
        data = write_text(folder, plan.seed, plan.number // 2 % 2 == 1 if fault is None else fault.simple, *replaced)
    elif fault is None:
        made = synthetic if plan.number // 2 % 2 else default_signals
        data = f"  train: {{signals: {made(12800, (0.0, 0.97))}}}\n"
        data += f"  validation: {{signals: {made(12800, (0.97, 1.0))}}}\n"
    else:
        data = write_signals(folder, plan.seed, WINDOWS, *replaced)
    text = _CONFIG.format(
        run=folder / "run",
        steps=plan.steps,
        every=100 if fault is None else 25,
        batch=BATCH[plan.task],
        seed=plan.seed,
        task="name: text" if plan.task == "text" else "name: iq, patch_samples: 8",
        length=SEQUENCE[plan.task],
        data=data,
        rate=f"{math.exp(rng.uniform(math.log(4e-3), math.log(1.2e-2))):.4g}",
        schedule=fault.schedule if fault is not None else SCHEDULES[plan.number // 2 % 3],
    )
    overrides = list(fault.overrides) if fault is not None else []
    if fault is not None and spoiled and fault.inject:
        overrides.append(f"faults.inject=[{', '.join(fault.inject)}]")
    return parse(text, "the benchmark", overrides)


def probe(config: RunConfig) -> Batch:
    """Return the first windows of the training data, to see how far the activations reach."""
    train = build_data(config).train
    first = np.arange(config.training.batch_size, dtype=np.int64)
    return Batch(train.read(first), 0, 0, train.labels(first))


@contextmanager
def broken(fault: Fault | None, config: RunConfig) -> Iterator[None]:
    """Let the reader hand out a sample that is not finite in some windows of one batch.

    A recording that holds such a sample is refused at the start, so that only a reader at fault brings one.
    """
    if fault is None or not fault.broken_rows:
        yield
        return
    assert fault.at is not None
    chosen = windows_of("iq", fault.at, WINDOWS, config.training.seed)[: fault.broken_rows]
    real, left = IqWindows.read, set(chosen.tolist())

    def read(self: IqWindows, indices: Any) -> torch.Tensor:
        samples = real(self, indices)
        for row, index in enumerate(indices.tolist()):
            if index in left:
                left.remove(index)  # Only the first reading, so that nothing but that batch has it.
                samples[row, 100] = torch.tensor(complex(math.nan, 0.0))
        return samples

    with mock.patch.object(IqWindows, "read", read):
        yield
