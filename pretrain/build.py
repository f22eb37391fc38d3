"""From a config to the objects of a run: data, task, model, optimizer, schedule and the state that holds them."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch
from torch import nn

from pretrain.config import RunConfig
from pretrain.data import BOUNDARY_TOKEN, SOURCES, Concatenation, Source, Windows
from pretrain.data.loader import StatefulLoader
from pretrain.errors import DataError
from pretrain.machine import random_state
from pretrain.models import MODELS, roles, width_ratio
from pretrain.optimizers import OPTIMIZERS, Projected, for_width, projected, set_learning_rate
from pretrain.policy.loss_scale import LossScale
from pretrain.policy.schedule import SCHEDULES, scaled_peak
from pretrain.registry import Choice
from pretrain.state import RunState
from pretrain.tasks import TASKS, Task


@dataclass(frozen=True)
class RunData:
    """The windows to train on, the validation sets by domain, and what is on record about their files.

    domains: how many of the windows to train on each domain has, in their order.
    held_out: false when the config names no validation data, so that the training windows are validated on, and
    when a validation set shares a file with a training set, unless both cut the same files into parts that are apart.
    encodings: how the files of each domain of the records hold it. warnings: what is read and probably not meant.
    """

    train: Windows
    domains: Mapping[str, int]
    validation: Mapping[str, Windows]
    held_out: bool
    records: tuple[dict[str, Any], ...]
    encodings: Mapping[str, str]
    warnings: tuple[str, ...]

    def check_unchanged(self) -> None:
        """Raise DataError when a file is no longer what was hashed: what is read from it now is not on record."""
        for windows in (self.train, *self.validation.values()):
            windows.check_unchanged()

    def hashes(self) -> dict[str, str]:
        """Return the SHA-256 of each domain's data by `train.NAME` or `validation.NAME`."""
        return {record["domain"]: record["sha256"] for record in self.records}


@dataclass(frozen=True)
class BuiltRun:
    """What the loop works on; `learning_rate(step)` is the rate for the step after `step` completed ones."""

    task: Task
    state: RunState
    learning_rate: Callable[[int], float]


def build_data(config: RunConfig) -> RunData:
    """Open every source of the config; `DataError` names the file and offset of what cannot be used."""
    chosen = config.data
    train = {name: _open(config, f"train.{name}", choice) for name, choice in chosen.train.items()}
    held_out = {name: _open(config, f"validation.{name}", choice) for name, choice in chosen.validation.items()}
    opened = {
        **{f"train.{name}": (windows, chosen.train[name]) for name, windows in train.items()},
        **{f"validation.{name}": (windows, chosen.validation[name]) for name, windows in held_out.items()},
    }
    warnings = [text for windows, _ in opened.values() for text in windows.warnings]
    overlaps = _overlaps(train.values(), held_out.values())
    if overlaps:
        warnings.append(
            "data.validation shares data with data.train: the run validates on data that it trains on, and its "
            "manifest says so; spans that are apart, such as [0.0, 0.9] and [0.9, 1.0] of the same files, hold it out"
        )
    return RunData(
        train=Concatenation(list(train.values())) if len(train) > 1 else next(iter(train.values())),
        domains={name: len(windows) for name, windows in train.items()},
        validation=held_out or train,
        held_out=bool(held_out) and not overlaps,
        records=tuple(_record(domain, windows, _path_of(choice)) for domain, (windows, choice) in opened.items()),
        encodings={domain: windows.encoding for domain, (windows, _) in opened.items()},
        warnings=tuple(dict.fromkeys(warnings)),
    )


def build_run(config: RunConfig, data: RunData, device: torch.device) -> BuiltRun:
    """Build task, model, optimizer and loader at step 0; the global generators are seeded here, after the model's."""
    training = config.training
    task = build_task(config, data)
    model = build_model(config, task).to(device)
    optimizer = build_optimizer(config, model)
    learning_rate = learning_rate_of(config)
    loader = StatefulLoader(
        data.train,
        seed=training.seed,
        batch_size=training.batch_size,
        gradient_accumulation_steps=training.gradient_accumulation_steps,
        prefetch_steps=config.data.prefetch_steps,
        loader_threads=config.data.loader_threads,
        warmup_samples=training.batch_warmup_samples,
    )
    torch.manual_seed(training.seed)
    scaler = LossScale() if training.precision == "float16" else None
    seeded = random_state.capture(device)
    state = RunState(model=model, optimizer=optimizer, loader=loader, device=device, scaler=scaler, seeded=seeded)
    set_learning_rate(optimizer, learning_rate(0))
    return BuiltRun(task=task, state=state, learning_rate=learning_rate)


def learning_rate_of(config: RunConfig) -> Callable[[int], float]:
    """Return the rate of the schedule for the step after so many completed ones."""
    multiplier, peak = SCHEDULES[config.scheduler.name].build(config.scheduler.settings), peak_learning_rate(config)
    return lambda step: peak * multiplier(step)


def peak_learning_rate(config: RunConfig) -> float:
    """Return the rate that the schedule multiplies: `optimizer.lr`, scaled to the effective batch where that is set."""
    settings, training = config.optimizer.settings, config.training
    batch = training.batch_size * training.gradient_accumulation_steps
    scaling, base = getattr(settings, "lr_scaling", "none"), getattr(settings, "base_batch_size", None)
    return scaled_peak(settings.lr, scaling, batch, base)


def build_task(config: RunConfig, data: RunData) -> Task:
    """Return the task of the config over its training windows; ConfigError for data of another kind."""
    task: Task = TASKS[config.task.name].build(config.task.settings, data.train, config.data.sequence_length)
    return task


def build_model(config: RunConfig, task: Task) -> nn.Module:
    """Return the model of the config for what the task gives it, at its first values, on the CPU.

    On the device `meta`, where a `with` statement has set that: then it takes no memory and has no values.
    """
    model: nn.Module = MODELS[config.model.name].build(
        config.model.settings,
        task.input_spec,
        task.max_positions,
        config.training.seed,
        activation_checkpointing=config.training.activation_checkpointing,
        document_boundary=BOUNDARY_TOKEN if config.data.document_mask else None,
    )
    return model


def build_optimizer(config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of the config over the parameters of `model`, its state as before the first step."""
    optimizer: torch.optim.Optimizer = OPTIMIZERS[config.optimizer.name].build(
        for_width(config.optimizer.settings, width_ratio(config.model.settings)),
        list(model.named_parameters()),
        roles(model),
    )
    return optimizer


def projected_by(config: RunConfig, model: nn.Module, optimizer: torch.optim.Optimizer) -> Projected | None:
    """Return how much of `model` its optimizer projects to a low rank; None where that is nothing it does."""
    return projected(optimizer, config.optimizer.settings, list(model.named_parameters()), roles(model))


def _open(config: RunConfig, domain: str, choice: Choice[Any]) -> Source:
    try:
        windows: Source = SOURCES[choice.name].build(
            choice.settings,
            sequence_length=config.data.sequence_length,
            stride=config.data.stride,
            seed=config.training.seed,
            name=domain.partition(".")[2],
        )
    except DataError as error:
        path = _path_of(choice)
        if path is None or path.startswith("builtin:") or os.path.lexists(path):
            first, *rest = error.args
            raise DataError(f"data.{domain}: {first}", *rest) from error
        key = f"data.{domain}.path"
        raise DataError(f"{key}: {error}; a resume or a replay takes {key}=NEW for data that has moved") from error
    return windows


def _path_of(choice: Choice[Any]) -> str | None:
    path: str | None = getattr(choice.settings, "path", None)
    return path


def _overlaps(train: Iterable[Windows], validation: Iterable[Windows]) -> bool:
    """Whether some validation domain may hold a part of the same data as some training domain."""
    trained = [part for windows in train for part in windows.parts]
    return any(part.overlaps(other) for windows in validation for part in windows.parts for other in trained)


def _record(domain: str, windows: Windows, place: str | None) -> dict[str, Any]:
    """Return the `data` row of environment.json: a domain of several files is known by the hash of their hashes.

    place: what the config names, None where it names no path.
    """
    files = windows.files
    if len(files) == 1:
        path, digest = files[0].path, files[0].sha256
    else:
        is_folder = place is not None and os.path.isdir(place)
        path = f"{len(files)} files in {place}" if is_folder else f"{len(files)} files from {files[0].path}"
        digest = sha256("".join(f"{file.sha256}\n" for file in files).encode()).hexdigest()
    return {
        "domain": domain,
        "path": path,
        "bytes": sum(file.bytes for file in files),
        "sha256": digest,
        "windows": len(windows),
        "remainder": windows.remainder,
    }
