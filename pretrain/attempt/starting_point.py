"""The weights of a new run that are given rather than drawn: from another run's checkpoint, or from Hugging Face."""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pretrain.attempt.ancestry import checkpoints_of
from pretrain.attempt.origin import Origin
from pretrain.config import ABSENT, Change, InitSettings, RunConfig, difference, parse, value_text
from pretrain.errors import ConfigError, IntegrityError
from pretrain.evidence import checkpoint, namespace
from pretrain.evidence.checkpoint_record import RECORD_NAME
from pretrain.evidence.shards import content_sha256
from pretrain.evidence.storage import DTYPE_WORDS, bytes_of
from pretrain.models.huggingface import check_huggingface, load_huggingface

# What names and shapes of the weights follow from, with learned positions the length of a sequence too.
_LENGTH = "data.sequence_length"
_SHAPING = (
    *(
        "task.name",
        "task.patch_samples",
        "model.width",
        "model.layers",
        "model.heads",
        "model.kv_heads",
        "model.ffn_width",
        "model.activation",
    ),
    *("model.positions", "model.qk_norm", "model.tie_embeddings", "model.experts", "model.experts.count"),
    *("model.experts.top_k", "model.experts.shared", "model.experts.width", "model.experts.balance"),
)


@dataclass(frozen=True)
class Start:
    """What a run starts from. record: `init` of environment.json, None = weights that were drawn. notes: for a person.

    is_loaded: whether the weights were read here; a run that goes on from a checkpoint of its own needs none.
    """

    record: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    is_loaded: bool = False

    @property
    def weights_sha256(self) -> str | None:
        """Return the hash that stands for the weights in the identity of the run."""
        return None if self.record is None else str(self.record["weights_sha256"])

    @property
    def text(self) -> str:
        """Return where the weights come from, for the lines at the start."""
        assert self.record is not None
        return f"{self.record['path']}, weights of SHA-256 {self.record['weights_sha256']}"


def load_start(config: RunConfig, model: nn.Module, origin: Origin | None) -> Start:
    """Fill `model` with the weights that `init` names, where the run has no checkpoint of its own yet.

    origin: what a resume goes on from, None for a new run. Once there is a checkpoint, a path that is unchanged is not
    opened; another one is, for its weights must be those on record too. Raises ConfigError where the weights are of
    another model, IntegrityError where they are damaged, or not those that an earlier attempt has on record.
    """
    if config.init == InitSettings():
        return Start()
    known = None
    if origin is not None:
        known = origin.environment.get("init")
        if known is None:
            raise IntegrityError(
                f"{origin.folder}: its config.yaml names init, and its environment.json has no word of it"
            )
        if origin.checkpoint is not None and config.init == origin.config.init:
            return Start(known)
    start = _from_huggingface(config, model) if config.init.from_huggingface else _from_checkpoint(config, model)
    if known is not None and known["weights_sha256"] != start.weights_sha256:
        raise IntegrityError(
            f"init.from_{known['source']}: {start.text}: not the weights that the run started from, of SHA-256 "
            f"{known['weights_sha256']}"
        )
    if origin is not None and origin.checkpoint is not None:
        return Start(start.record)  # The weights to go on with are those of the checkpoint.
    return start


def check_start(config: RunConfig, model: nn.Module) -> tuple[str, ...]:
    """Raise what a new run would of the weights that `init` names, and return its notes; none is read into `model`.

    It may have no values. That those of a Hugging Face folder are finite is not looked at.
    """
    if config.init.from_huggingface is not None:
        return tuple(check_huggingface(Path(config.init.from_huggingface), model, config.model.settings))
    if config.init.from_checkpoint is None:
        return ()
    place = _checkpoint_of(Path(config.init.from_checkpoint))
    shaped = {name: torch.empty((), dtype=one.dtype).expand(one.shape) for name, one in _weights_of(model).items()}
    with _misfit_explained(place, config):
        checkpoint.check_weights(place, shaped)
    return _other_settings(place, config)


def _from_checkpoint(config: RunConfig, model: nn.Module) -> Start:
    path = str(config.init.from_checkpoint)
    place = _checkpoint_of(Path(path))
    with _misfit_explained(place, config):
        weights = _weights_of(model)
        record = checkpoint.load_weights(place, weights)
    wrong = [name for name, tensor in weights.items() if not bool(torch.isfinite(tensor).all())]
    if wrong:  # None of this program holds one, and no step can be taken from it.
        more = f" and {len(wrong) - 1} more hold" if len(wrong) > 1 else " holds"
        raise ConfigError(
            f"init.from_checkpoint: {place}: {wrong[0]}{more} a number that is not finite; use another one"
        )
    notes = _other_settings(place, config)
    return Start(_record("checkpoint", str(place), record.record_sha256, model), notes, is_loaded=True)


def _weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights by the names that a checkpoint has them under."""
    return {f"model.{name}": tensor for name, tensor in model.state_dict().items()}


@contextlib.contextmanager
def _misfit_explained(place: Path, config: RunConfig) -> Iterator[None]:
    """Say of weights that do not fit which key named them, and what the settings were that decide it."""
    try:
        yield
    except ConfigError as error:
        changes, _ = _changes(place, config)
        shaping = _SHAPING if getattr(config.model.settings, "positions", None) != "learned" else (*_SHAPING, _LENGTH)
        was = [f"{one.key} was {value_text(one.old)}" for one in changes if one.key in shaping and one.old != ABSENT]
        hint = f"; where the weights were trained {', '.join(was)}" if was else ""
        raise ConfigError(f"init.from_checkpoint: {error}{hint}") from error


def _other_settings(place: Path, config: RunConfig) -> tuple[str, ...]:
    """Say what of the model was otherwise where its weights were trained: heads and wavelengths have no shape."""
    changes, fault = _changes(place, config)
    if fault is not None:
        return (f"the settings that the weights were trained with are not compared: {fault}",)
    return tuple(
        f"{change.key} was {value_text(change.old)} where the weights were trained, and is {value_text(change.new)}"
        for change in changes
        if change.key.startswith("model.") and change.key != "model.init_std"
    )


def _changes(place: Path, config: RunConfig) -> tuple[tuple[Change, ...], Exception | None]:
    """Return what of the config is otherwise than where a checkpoint was trained, or why that cannot be read.

    A checkpoint alone, without its attempt, does not tell: then there is neither.
    """
    attempt = place.resolve().parent.parent
    if not (attempt / namespace.ENVIRONMENT).is_file():
        return (), None
    try:
        text = namespace.read_config(attempt, namespace.read_environment(attempt))
        found = difference(parse(text, str(attempt / namespace.CONFIG)), config)
    except (ConfigError, IntegrityError) as error:
        return (), error
    return (*found.allowed, *found.refused), None


def _from_huggingface(config: RunConfig, model: nn.Module) -> Start:
    path = str(config.init.from_huggingface)
    notes = load_huggingface(Path(path), model, config.model.settings)
    return Start(_record("huggingface", path, None, model), tuple(notes), is_loaded=True)


def _record(source: str, path: str, record_sha256: str | None, model: nn.Module) -> dict[str, Any]:
    return {"source": source, "path": path, "record_sha256": record_sha256, "weights_sha256": weights_sha256(model)}


def weights_sha256(model: nn.Module) -> str:
    """Return the digest of every weight with its name, dtype and shape, formed as `content_sha256` of a checkpoint."""
    rows = {}
    for name, tensor in model.state_dict().items():
        held: torch.Tensor = tensor.detach().cpu().contiguous()
        rows[f"model.{name}"] = (DTYPE_WORDS[held.dtype], tuple(held.shape), hashlib.sha256(bytes_of(held)).hexdigest())
    return content_sha256(rows)


def _checkpoint_of(path: Path) -> Path:
    """Return the checkpoint folder that a path means: itself, or the newest of an attempt or run."""
    if not path.is_dir():
        raise ConfigError(
            f"init.from_checkpoint: {path}: expected a checkpoint, attempt or run folder, found none there"
        )
    if (path / RECORD_NAME).exists():
        return path
    try:
        run_dir, number = namespace.resolve(path)
    except ConfigError as error:
        raise ConfigError(f"init.from_checkpoint: {error}; or a checkpoint folder, with its {RECORD_NAME}") from error
    saved = [place for _, place in checkpoints_of(run_dir, number)]
    if not saved:
        raise ConfigError(f"init.from_checkpoint: {path}: holds no checkpoint")
    # The youngest attempt that has one, and of that the newest.
    return [place for place in saved if place.parent == saved[0].parent][-1]
