"""The loop that a person writes first, on the model, data, rates and fault of a plan: it guards nothing."""

import math
import time
from dataclasses import dataclass

import torch

from benchmarks.incident_faults import Fault, Plan
from benchmarks.incident_setup import CPU, broken, config_of, folder, probe
from pretrain.build import build_data, build_run
from pretrain.data.loader import in_order
from pretrain.faults import Faults, spoil_batch
from pretrain.machine.precision import autocast
from pretrain.optimizers import set_learning_rate


@dataclass(frozen=True)
class Bare:
    """How the bare loop ended; a loss that is not finite is one of its ends."""

    losses: tuple[float, ...]
    final: float
    finite: bool
    seconds: float


def run_bare(plan: Plan, fault: Fault) -> Bare:
    """Run a plan by the loop that a person writes first: the same model, data, rates and fault, and no guard."""
    begun = time.perf_counter()
    with folder() as place:
        config = config_of(plan, fault, place, spoiled=True)
        torch.set_num_threads(1)
        data = build_data(config)
        built = build_run(config, data, CPU)
        model, optimizer, task = built.state.model, built.state.optimizer, built.task
        half = config.training.precision == "float16"
        scaler = torch.amp.GradScaler("cpu", enabled=half)
        arithmetic = autocast(CPU, config.training.precision)
        faults = Faults(config.faults, 1)
        losses: list[float] = []
        with broken(fault, config):
            for step in range(config.training.max_steps):
                if fault.change is not None and step == fault.at:
                    fault.change(model, optimizer, task, probe(config))
                batch = spoil_batch(faults.due(step, ()), built.state.loader.next_step()).micro_batches[0]
                set_learning_rate(optimizer, built.learning_rate(step))
                optimizer.zero_grad(set_to_none=True)
                with arithmetic:
                    loss = task.loss_sum(model, batch, CPU) / task.supervised(batch)
                scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), config.training.grad_clip_max_norm or math.inf)
                scaler.step(optimizer)
                scaler.update()
                losses.append(float(loss.detach()))
        total, units = 0.0, 0
        for windows in data.validation.values():
            for batch in in_order(windows, config.training.batch_size):
                with torch.no_grad(), arithmetic:
                    total += float(task.loss_sum(model, batch, CPU))
                units += task.supervised(batch)
        built.state.loader.close()
        return Bare(
            tuple(losses),
            total / units,
            built.state.is_finite(),
            time.perf_counter() - begun,
        )
