"""What a run is made of: the sections of the configuration, in the order in which they are written."""

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pretrain.data import SOURCES, DataSettings
from pretrain.models import CHECKPOINTING, MODELS
from pretrain.monitors import MonitorSettings
from pretrain.optimizers import OPTIMIZERS
from pretrain.policy.fault_plan import FaultSettings
from pretrain.policy.guard import GuardSettings
from pretrain.policy.retention import CheckpointSettings
from pretrain.policy.schedule import SCHEDULES
from pretrain.policy.spikes import SpikeSettings
from pretrain.policy.thermal import ThermalSettings
from pretrain.registry import Choice, Entry, limited
from pretrain.tasks import TASKS
from pretrain.telemetry import TelemetrySettings


@dataclass(frozen=True)
class RunSettings:
    """Where the run lives.

    dir: the run's folder; attempts, checkpoints and records lie under it. Not part of the run's identity.
    """

    dir: str


@dataclass(frozen=True)
class TrainingSettings:
    """How long, on what and in which arithmetic the model is trained.

    max_steps: completed optimizer steps at which the run ends; a resume may raise it.
    seed: start of every random stream: initial weights, the order of samples, synthetic signals.
    device: `cpu` or `cuda`, exactly.
    precision: arithmetic of the forward and backward pass; parameters and optimizer state stay float32, and float16
      scales the loss by itself.
    use_amp: sets `precision` in other words, true = bfloat16, false = float32, and is null once it has.
    batch_size: samples in a micro-batch.
    gradient_accumulation_steps: micro-batches in one optimizer step.
    batch_warmup_samples: samples, the first of the data, over which a step grows from one micro-batch to
      `gradient_accumulation_steps` of them, each number with an equal share; null = full steps from the start.
    grad_clip_max_norm: largest global gradient norm that is let through unscaled; null = no clipping.
    threads: CPU threads of PyTorch; null = PyTorch's own choice. It can change the last bits of a result.
    deterministic: only algorithms that give the same bits every time; false gives that up for speed on CUDA.
    activation_checkpointing: what the forward pass keeps for the backward pass: `none` leaves nothing out, `full` keeps
      the input of each block, `selective` the results of matrices and attention too; the rest is computed again, which
      takes time, saves memory and changes no bit.
    watchdog_timeout_seconds: where nothing moves for so long (no step, batch, block of a file or reading of a sensor)
      the stacks of all threads are printed and the process ends with exit code 8; 0 = nobody watches. Longer than the
      longest single thing that the run does.
    """

    max_steps: int = limited(dataclasses.MISSING, at_least=1)
    seed: int = limited(1, at_least=0)
    device: str = limited("cpu", choices=("cpu", "cuda"))
    precision: str = limited("float32", choices=("float32", "bfloat16", "float16"))
    use_amp: bool | None = None
    batch_size: int = limited(16, at_least=1)
    gradient_accumulation_steps: int = limited(1, at_least=1)
    batch_warmup_samples: int | None = limited(None, at_least=1)
    grad_clip_max_norm: float | None = limited(1.0, above=0)
    threads: int | None = limited(None, at_least=1, at_most=1024)
    deterministic: bool = True
    activation_checkpointing: str = limited("none", choices=CHECKPOINTING)
    watchdog_timeout_seconds: float = limited(0.0, at_least=0, at_most=604800)


@dataclass(frozen=True)
class InitSettings:
    """What the weights of a new run are at its first step; both null = drawn from `training.seed`.

    from_checkpoint: a checkpoint of another run, or its attempt or run folder, which means the newest one; its weights
      alone are taken, and their SHA-256 is part of the run's identity.
    from_huggingface: a folder with the config.json of a Llama or Qwen3 model and its weights as safetensors, likewise.
    """

    from_checkpoint: str | None = None
    from_huggingface: str | None = None


@dataclass(frozen=True)
class ValidationSettings:
    """When the model is measured on the validation sets, and which figure ranks its checkpoints.

    validate_every_n_steps: optimizer steps between full validations; one runs after the last step too.
    batch_size: samples in one validation batch; null = training.batch_size.
    rank_by: the validation domain whose loss ranks the checkpoints; `mean` = the mean over the domains.
    """

    validate_every_n_steps: int = limited(100, at_least=1)
    batch_size: int | None = limited(None, at_least=1)
    rank_by: str = "mean"


@dataclass(frozen=True)
class RunConfig:
    """A whole run, checked and resolved; frozen, and equal to what its own text loads as."""

    run: RunSettings
    training: TrainingSettings
    init: InitSettings
    task: Choice[Any]
    data: DataSettings
    model: Choice[Any]
    optimizer: Choice[Any]
    scheduler: Choice[Any]
    guard: GuardSettings
    spikes: SpikeSettings
    checkpoint: CheckpointSettings
    validation: ValidationSettings
    telemetry: TelemetrySettings
    monitors: MonitorSettings
    thermal: ThermalSettings
    faults: FaultSettings

    @property
    def validates_on_training_data(self) -> bool:
        """True when `data.validation` names no domain; the manifest then says so."""
        return not self.data.validation

    @property
    def validation_domains(self) -> Mapping[str, Choice[Any]]:
        """What validation reads, by domain: `data.validation`, or the training domains when it is empty."""
        return self.data.validation or self.data.train


@dataclass(frozen=True)
class NamedSection:
    """How a section says which entry of a table it is: the key that names it, and the name by default."""

    key: str
    default: str
    table: Mapping[str, Entry[Any, Any]]


NAMED: Mapping[str, NamedSection] = {
    "task": NamedSection("name", "text", TASKS),
    "model": NamedSection("name", "decoder", MODELS),
    "optimizer": NamedSection("optimizer_class", "adamw", OPTIMIZERS),
    "scheduler": NamedSection("scheduler_type", "cosine", SCHEDULES),
}
SOURCE = NamedSection("source", "text", SOURCES)
SECTIONS = tuple(one.name for one in dataclasses.fields(RunConfig))
DOMAIN_MAPS = ("train", "validation")
TRACKER_MAP = ("telemetry", "trackers")


@dataclass(frozen=True)
class Setting:
    """One key of a settings class; `default` is dataclasses.MISSING where a value must be given."""

    name: str
    annotation: Any
    default: Any = field(repr=False)
    limits: Mapping[str, Any]

    @property
    def is_required(self) -> bool:
        return self.default is dataclasses.MISSING


# They are made anew at every look, which takes a third of the time of reading a configuration.
_known_hints: dict[type[Any], Mapping[str, Any]] = {}


def _hints(cls: type[Any]) -> Mapping[str, Any]:
    if cls not in _known_hints:
        _known_hints[cls] = typing.get_type_hints(cls)
    return _known_hints[cls]


def plain_sections() -> Mapping[str, type[Any]]:
    """The sections that are always the same settings class, by name."""
    hints = _hints(RunConfig)
    return {name: hints[name] for name in SECTIONS if name not in NAMED}


def settings_of(cls: type[Any], defaults: Any = None) -> Mapping[str, Setting]:
    """The keys of a settings class that hold a value, in their order.

    defaults: an instance of `cls` whose values are the defaults; None = those of the class. The groups of `cls`, and
    its maps, are not among them.
    """
    hints = _hints(cls)
    found = {}
    for one in dataclasses.fields(cls):
        if _group_class(hints[one.name]) is not None or _is_map(hints[one.name]):
            continue
        default = _default(one) if defaults is None else getattr(defaults, one.name)
        if default == "???":
            default = dataclasses.MISSING
        found[one.name] = Setting(one.name, hints[one.name], default, one.metadata)
    return found


@dataclass(frozen=True)
class Group:
    """A key that holds settings of its own, such as `spikes.loss`: their class, and an instance with their defaults.

    defaults: None where the defaults are those of the class. is_optional: the key may be null, and is where nothing is
    given, as `model.experts` is.
    """

    settings: type[Any]
    defaults: Any
    is_optional: bool = False


def groups_of(cls: type[Any], defaults: Any = None) -> Mapping[str, Group]:
    """The keys of a settings class that hold settings of their own, in their order; `defaults` as in settings_of."""
    hints = _hints(cls)
    found = {}
    for one in dataclasses.fields(cls):
        group = _group_class(hints[one.name])
        if group is not None:
            default = _default(one) if defaults is None else getattr(defaults, one.name)
            is_optional = group is not hints[one.name]
            found[one.name] = Group(group, None if default is dataclasses.MISSING else default, is_optional)
    return found


def maps_of(cls: type[Any]) -> list[str]:
    """The keys of a settings class that hold settings by a name that the user gives: the domains, the trackers."""
    return [name for name, annotation in _hints(cls).items() if _is_map(annotation)]


@cache
def depth_of(section: str) -> int:
    """How many names the longest key of a section has; 2 for `training.seed`, and for a section that there is not."""
    classes = [entry.settings for entry in NAMED[section].table.values()] if section in NAMED else []
    if section in SECTIONS and not classes:
        classes = [plain_sections()[section]]
    return 1 + max(map(_levels, classes), default=1)


def _levels(cls: type[Any]) -> int:
    return 1 + max((_levels(group.settings) for group in groups_of(cls).values()), default=0)


def _default(one: dataclasses.Field[Any]) -> Any:
    return one.default if one.default_factory is dataclasses.MISSING else one.default_factory()


def _group_class(annotation: Any) -> type[Any] | None:
    """The settings class that a key holds, or may hold beside null; None for a key that holds a value."""
    options = typing.get_args(annotation) if type(None) in typing.get_args(annotation) else (annotation,)
    return next((one for one in options if isinstance(one, type) and dataclasses.is_dataclass(one)), None)


def _is_map(annotation: Any) -> bool:
    return typing.get_origin(annotation) is dict
