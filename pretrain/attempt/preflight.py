"""A look at the disk before anything is written: what the run will need there, what is free, and what kind it is."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pretrain.attempt.origin import Origin
from pretrain.build import BuiltRun, RunData, build_model, build_task
from pretrain.config import RunConfig
from pretrain.errors import StorageError
from pretrain.evidence.shard_writer import file_bytes
from pretrain.machine.disk import Space, free_space, is_remote, kind_of
from pretrain.machine.memory import in_units
from pretrain.models import blocks
from pretrain.policy.disk import Looks, Need, is_short, need_of
from pretrain.policy.retention import most_checkpoints


@dataclass(frozen=True)
class Preflight:
    """What one attempt will need of the file system of run.dir, at its most, and what is there."""

    need: Need
    free: Space
    kind: str | None
    shortage: str | None
    warning_of_kind: str | None

    def fields(self) -> dict[str, Any]:
        """Return what the event says."""
        return {
            "needed_bytes": self.need.bytes,
            "free_bytes": self.free.bytes,
            "needed_files": self.need.files,
            "free_files": self.free.files,
            "file_system": self.kind,
        }

    def warnings(self) -> list[str]:
        """Return what a person is to look at."""
        return [text for text in (self.shortage, self.warning_of_kind) if text is not None]


def look_ahead(config: RunConfig, data: RunData, origin: Origin | None) -> None:
    """Raise the StorageError of `look` where the weights alone are too much, before there is memory for any."""
    if config.checkpoint.on_low_disk != "refuse":
        return
    task = build_task(config, data)
    with torch.device("meta"):
        model = build_model(config, task)
    weights = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    _compare(config, _need(config, data, model, file_bytes(weights), origin))


def look(config: RunConfig, data: RunData, built: BuiltRun, origin: Origin | None) -> Preflight:
    """Return what the disk of run.dir has and the run needs; StorageError where the config refuses too little."""
    return _compare(config, _need(config, data, built.state.model, file_bytes(built.state.tensors()), origin))


def _compare(config: RunConfig, need: Need) -> Preflight:
    place = Path(config.run.dir)
    free, kind = free_space(place), kind_of(place)
    shortage = _shortage(place, need, free)
    if shortage is not None and config.checkpoint.on_low_disk == "refuse":
        raise StorageError(
            f"{shortage}; nothing was written: free space, choose another run.dir, keep fewer checkpoints "
            "(checkpoint.max_rolling_checkpoints, keep_every_n_steps), or set checkpoint.on_low_disk=warn"
        )
    return Preflight(need, free, kind, shortage, _warning_of_kind(place, kind))


def _need(config: RunConfig, data: RunData, model: nn.Module, checkpoint_bytes: int, origin: Origin | None) -> Need:
    record = origin.record if origin is not None else None
    begun_at, prefix = (-1, 0) if record is None else (record.step, record.metrics.bytes)
    settings, validate, last = config.checkpoint, config.validation.validate_every_n_steps, config.training.max_steps
    layers, monitors = len(blocks(model)), config.monitors
    experts = getattr(getattr(config.model.settings, "experts", None), "count", 0)
    return need_of(
        checkpoint_bytes=checkpoint_bytes,
        kept=most_checkpoints(settings, validate, last, begun_at),
        steps=last - max(begun_at, 0),
        checkpoint_every=settings.checkpoint_every_n_steps,
        validate_every=validate,
        domains=len(data.validation),
        monitors=[
            Looks(monitors.blocks.every_n_steps, 3 * (layers + 1)),
            Looks(monitors.activations.every_n_steps, 2 * layers),
            Looks(monitors.attention.every_n_steps, 2 * layers),
            Looks(monitors.experts.every_n_steps, layers * (experts + 1)),
            Looks(monitors.mixture.every_n_steps, len(data.domains)),
        ],
        prefix_bytes=prefix,
        csv_cells=_csv_cells(config, layers),
    )


def _csv_cells(config: RunConfig, layers: int) -> int | None:
    path = Path(config.telemetry.csv_log_path)
    if path.is_absolute() and _device(path.parent) != _device(Path(config.run.dir)):
        return None
    return layers if config.telemetry.enable_block_grad_norms else 0


def _device(place: Path) -> int:
    """Return the file system that `place` lies on, or that it will be made on."""
    return os.stat(next(one for one in (place, *place.absolute().parents) if one.exists())).st_dev


def _shortage(place: Path, need: Need, free: Space) -> str | None:
    lacks = []
    if is_short(need.bytes, free.bytes):
        lacks.append(f"about {in_units(need.bytes)} are needed and {in_units(free.bytes or 0)} are free")
    if is_short(need.files, free.files):
        lacks.append(f"about {need.files} files are needed and {free.files} inodes are free")
    if not lacks:
        return None
    return (
        f"run.dir: {place}: its file system may have no room for {need.checkpoints} checkpoints at a time and the rows "
        f"of this run: {', and '.join(lacks)}"
    )


def _warning_of_kind(place: Path, kind: str | None) -> str | None:
    if not is_remote(kind):
        return None
    return (
        f"run.dir: {place} is on a file system of the kind {kind}: that a checkpoint is whole after a power cut, and "
        "that no two processes write one run, is promised for local ones alone; let no other machine write there"
    )
