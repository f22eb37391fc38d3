"""What an attempt says of itself: the lines at its start, the figures at its end, the command that goes on."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pretrain.attempt.origin import Origin
from pretrain.attempt.starting_point import Start
from pretrain.build import RunData, peak_learning_rate, projected_by
from pretrain.config import RunConfig
from pretrain.loop import LoopParts
from pretrain.machine.memory import device_bytes, in_units, resident_bytes, total_bytes
from pretrain.models import active_parameters
from pretrain.optimizers import flat_state
from pretrain.telemetry.sink import Begin
from pretrain.telemetry.trackers import places
from pretrain.validation import DomainResult, baselines_of, measures_of


def resume_command(run_dir: Path) -> str:
    """Return the command that goes on from the newest attempt of a run."""
    return f"pretrain resume --attempt {shlex.quote(str(run_dir))}"


def beginning(config: RunConfig, data: RunData, parts: LoopParts, origin: Origin | None, start: Start) -> Begin:
    """Return the lines at the start of an attempt: model, data with windows and remainder, device, state in bytes."""
    state, training = parts.state, config.training
    optimizer_bytes = sum(tensor.nbytes for tensor in flat_state(state.optimizer).values())
    samples = training.batch_size * training.gradient_accumulation_steps
    details = [
        (
            "model",
            f"{config.model.name}, {_parameters(state.model)}; optimizer state {optimizer_bytes:,} bytes",
        ),
        (
            "step",
            f"{training.gradient_accumulation_steps} x {training.batch_size} = {samples} windows{_growth(config)}",
        ),
        (
            "epoch",
            f"{state.loader.steps_per_epoch:,} steps, {len(data.train) % samples} windows left out of each",
        ),
        (
            "device",
            f"{state.device}, {torch.get_num_threads()} CPU threads, {training.precision}, "
            f"deterministic {str(training.deterministic).lower()}",
        ),
    ]
    low = projected_by(config, state.model, state.optimizer)
    details += [("projected", low.text)] if low is not None else []
    details += _scaled_rate(config, samples)
    details += _memory(state.device)
    for record in data.records:
        left = f"{record['remainder']:,} left over" if record["remainder"] else "nothing left over"
        encoding = data.encodings[record["domain"]]
        details.append((record["domain"], f"{record['windows']:,} windows of {record['path']} ({encoding}), {left}"))
    copies = config.spikes.targets_in_memory
    if copies:
        each = sum(tensor.nbytes for tensor in state.tensors().values())
        kept = "the newest checkpoint" if copies == 1 else f"the newest {copies} checkpoints"
        details.append(("going back", f"{kept} also in memory, {copies * each:,} bytes"))
    if not data.held_out:
        details.append(("validation", "not held out: it is data that is trained on, and the manifest will say so"))
    if start.is_loaded:
        details.append(("weights", start.text))
    details += places(config.telemetry.trackers, Path(config.run.dir))
    if origin is not None:
        details.append(("resumed", f"from step {origin.step} of attempt {origin.folder.name}"))
    return Begin(
        attempt=str(parts.writer.folder),
        step=state.step,
        max_steps=training.max_steps,
        unit=parts.task.unit,
        details=tuple(details),
        line_every_n_steps=config.telemetry.gradient_log_interval,
    )


def _growth(config: RunConfig) -> str:
    training = config.training
    if training.batch_warmup_samples is None:
        return ""
    return f", {training.batch_size} at first, growing over the first {training.batch_warmup_samples:,} windows"


def _scaled_rate(config: RunConfig, samples: int) -> list[tuple[str, str]]:
    """Return the line on the peak rate where it is not the one that is written in the config."""
    settings = config.optimizer.settings
    if getattr(settings, "lr_scaling", "none") == "none":
        return []
    text = (
        f"peak {peak_learning_rate(config):.6g}: {settings.lr:g} scaled by {settings.lr_scaling} from "
        f"{settings.base_batch_size} to {samples} windows a step"
    )
    return [("learning rate", text)]


def _parameters(model: nn.Module) -> str:
    every, active = sum(parameter.numel() for parameter in model.parameters()), active_parameters(model)
    return f"{every:,} parameters" + ("" if active == every else f", {active:,} of them active at a position")


def _memory(device: torch.device) -> list[tuple[str, str]]:
    """Return the lines on the memory of the host and of the GPU, without what is not known."""
    lines = []
    resident, total, on_device = resident_bytes(), total_bytes(), device_bytes(device)
    if resident is not None and total is not None:
        lines.append(("host memory", f"{in_units(resident)} of {in_units(total)} held by this process"))
    if on_device is not None:
        lines.append(("GPU memory", f"{in_units(on_device[0])} of {in_units(on_device[1])} free"))
    return lines


def validation_answer(results: Mapping[str, DomainResult]) -> dict[str, Any]:
    """Return the newest validation by domain: the figures, the baselines scored beside them, the signal classes."""
    return {
        domain: {
            **measures_of(result.summary),
            **baselines_of(result.summary),
            "samples": result.samples,
            "classes": {name: dict(scores) for name, scores in result.summary.classes.items()},
        }
        for domain, result in results.items()
    }


def validation_of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same of a `validation` row of the stream, which keeps no baselines of text."""
    return {name: value for name, value in row.items() if name not in ("event", "step", "domain") and value is not None}
