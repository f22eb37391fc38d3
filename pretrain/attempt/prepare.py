"""All of an attempt that can be wrong is built and looked at here, before anything is written."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pretrain.attempt.memory import memory_explained
from pretrain.attempt.origin import Origin, damage_explained
from pretrain.attempt.preflight import Preflight, look, look_ahead
from pretrain.attempt.starting_point import Start, load_start
from pretrain.build import BuiltRun, RunData, build_data, build_run, projected_by
from pretrain.config import RunConfig, identity_sha256, warnings
from pretrain.errors import ConfigError, IntegrityError
from pretrain.evidence import checkpoint, events, namespace
from pretrain.faults import check_allowed, injects_temperature
from pretrain.machine import environment
from pretrain.machine.device import select_device, set_determinism
from pretrain.machine.nvml import Sensors
from pretrain.machine.peaks import peak_of_device
from pretrain.machine.thermometer import Thermometer
from pretrain.models import blocks, flops_per_position
from pretrain.policy.thermal import HIGHEST_C, LOWEST_C, is_known
from pretrain.telemetry.csv_log import check_place, columns
from pretrain.telemetry.sink import Note, Sink
from pretrain.telemetry.trackers import check_installed
from pretrain.telemetry.utilization import Utilization


@dataclass(frozen=True)
class Prepared:
    """Everything that can be wrong has been looked at, and nothing is written yet."""

    config: RunConfig
    data: RunData
    built: BuiltRun
    device: torch.device
    sensors: Sensors | None
    thermometer: Thermometer | None
    identity: str
    environment: dict[str, Any]
    start: Start
    preflight: Preflight

    def warnings(self) -> list[str]:
        """Return what is allowed and probably not meant, and what a person should know before the first step."""
        low = projected_by(self.config, self.built.state.model, self.built.state.optimizer)
        left_out = [low.warning] if low is not None and low.warning is not None else []
        own = [*self.start.notes, *warnings(self.config), *self.data.warnings, *left_out]
        return [*own, *self.preflight.warnings()]


def prepare(config: RunConfig, threads: int | None, sinks: Sequence[Sink], origin: Origin | None = None) -> Prepared:
    check_allowed(config.faults)
    _check_places(config)
    check_installed(config.telemetry.trackers)
    device = select_device(config.training.device)
    set_determinism(config.training.deterministic, threads)
    sensors = _open_sensors(config, device, sinks)
    thermometer = _thermometer(config, sensors)
    data = build_data(config)
    look_ahead(config, data, origin)
    with memory_explained(config, lambda: "before the first step"):
        built = build_run(config, data, device)
        start = load_start(config, built.state.model, origin)
    csv_path = Path(config.telemetry.csv_log_path)
    if csv_path.is_absolute():  # A relative one lies in the attempt's folder, which is new.
        check_place(csv_path, csv_columns(config, built), rotate=config.telemetry.csv_rotate_on_schema_change)
    preflight = look(config, data, built, origin)
    return Prepared(
        config=config,
        data=data,
        built=built,
        device=device,
        sensors=sensors,
        thermometer=thermometer,
        identity=identity_sha256(config, data.hashes(), start.weights_sha256),
        environment=environment.describe(device, config.training.deterministic),
        start=start,
        preflight=preflight,
    )


def _check_places(config: RunConfig) -> None:
    """Refuse a run that would write where it reads, below its own data, or among what an attempt answers for."""
    run_dir = Path(config.run.dir).resolve()
    folders = {
        f"telemetry.trackers.{name}.folder": Path(settings.folder).resolve()
        for name, settings in config.telemetry.trackers.items()
        if getattr(settings, "folder", None) is not None
    }
    csv = Path(config.telemetry.csv_log_path)
    if csv.is_absolute():  # A relative one lies in the attempt's folder, and is bound with it.
        folders["telemetry.csv_log_path"] = csv.resolve()
    for kind, domains in (("train", config.data.train), ("validation", config.data.validation)):
        for name, choice in domains.items():
            path = getattr(choice.settings, "path", None)
            if path is None or not Path(path).is_dir():
                continue
            for key, folder in {"run.dir": run_dir, **folders}.items():
                if folder.is_relative_to(Path(path).resolve()):
                    raise ConfigError(f"{key}: {folder} lies in data.{kind}.{name}.path, {path}, and would become data")
    for key, place in folders.items():
        if place.is_relative_to(run_dir / "attempts"):
            raise ConfigError(f"{key}: {place} lies among the attempts of this run; choose another folder")
    for key, place in {"run.dir": run_dir, **folders}.items():
        attempts = namespace.attempts_around(place)
        if attempts is not None:
            raise ConfigError(f"{key}: {place} lies in {attempts}, whose files are bound; choose another folder")


def csv_columns(config: RunConfig, built: BuiltRun) -> tuple[str, ...]:
    """Return the columns of the run's CSV: with one gradient norm per block where the telemetry asks for them."""
    return columns(len(blocks(built.state.model)) if config.telemetry.enable_block_grad_norms else 0)


def utilization(config: RunConfig, built: BuiltRun, device: torch.device) -> Utilization:
    """Return what MFU is made of: the model's FLOPs for each supervised unit, and the peak of the device."""
    each = flops_per_position(built.state.model, built.task.max_positions) / built.task.units_per_position
    return Utilization(each, peak_of_device(device, config.training.precision))


def _open_sensors(config: RunConfig, device: torch.device, sinks: Sequence[Sink]) -> Sensors | None:
    def warn(text: str) -> None:
        for sink in sinks:
            sink.emit(Note(kind="warning", text=text))

    if config.telemetry.gpu_metrics_backend == "none":
        return None
    try:
        return Sensors(device, config.telemetry.nvml_device_index, warn=warn)
    except ConfigError as error:
        if not injects_temperature(config.faults):
            raise
        warn(f"this drill goes without the sensors of a GPU: {error}")
        return None


def _thermometer(config: RunConfig, sensors: Sensors | None) -> Thermometer | None:
    """Return what the thermal guard reads, once it has been read; a drill without sensors has a cool GPU."""
    settings = config.thermal
    if not settings.gpu_temp_guard:
        return None
    if sensors is None:
        cool = max(LOWEST_C, settings.gpu_temp_resume_threshold_c - 1)
        return Thermometer(settings, lambda: cool)
    found = sensors.temperature_c()
    if not is_known(found):
        sensors.close()
        said = "nothing" if found is None else f"{found:g}"
        raise ConfigError(
            f"thermal.gpu_temp_guard: the temperature of the GPU cannot be read: expected {LOWEST_C:g} to "
            f"{HIGHEST_C:g} degrees Celsius, found {said}; check `nvidia-smi -q -d TEMPERATURE`, name another GPU with "
            "telemetry.nvml_device_index, or leave the guard off"
        )
    return Thermometer(settings, sensors.temperature_c)


def surroundings(origin: Origin, prepared: Prepared) -> list[str]:
    """Return what may have changed a bit since the lineage began; IntegrityError when it is not the same run."""
    check_same_data(prepared.data.records, origin.environment["data"], f"attempt {origin.number:04d}")
    check_identity(origin, prepared)
    told = dict(origin.environment)
    determinism = dict(told["determinism"])
    reasons = list(determinism.pop("reasons", []))
    for name in ("config_sha256", "environment_sha256"):  # of the file, not of the surroundings
        determinism.pop(name, None)
    told["determinism"] = determinism
    for reason in [*_moved(origin), *environment.differences(told, prepared.environment)]:
        if reason not in reasons:
            reasons.append(reason)
    return reasons


def check_identity(origin: Origin, prepared: Prepared) -> None:
    """Raise IntegrityError unless the checkpoint of `origin` is of the config that its own attempt has on record."""
    if origin.record is None or origin.owner is None:
        return
    expected = identity_sha256(origin.owner, prepared.data.hashes(), prepared.start.weights_sha256)
    if origin.record.identity_sha256 != expected:
        raise IntegrityError(
            f"{origin.checkpoint}: belongs to another configuration (identity {origin.record.identity_sha256}, "
            f"this one {expected}): config.yaml of attempt {origin.folder.name} was changed, "
            "or another version of pretrain wrote it"
        )


def _moved(origin: Origin) -> list[str]:
    """Return why the checkpoint of `origin` was computed elsewhere than its attempt began: the device had changed."""
    if origin.checkpoint is None:
        return []
    if events.is_too_long(origin.folder):
        return [f"{origin.folder / events.NAME} is too long to tell whether the state moved to another device"]
    reasons: dict[str, None] = {}
    before: int | None = None
    for row in events.read(origin.folder):
        if row.get("event") == events.DEVICE:
            reasons[str(row.get("reason"))] = None
        elif (row.get("event"), row.get("step")) == ("saved", origin.step):
            before = len(reasons)
    # A kill may have come between a checkpoint and the word of it: then it is the newest there is.
    return list(reasons)[:before]


def check_same_data(records: Iterable[Mapping[str, Any]], before: Iterable[Mapping[str, Any]], attempt: str) -> None:
    """Raise IntegrityError when the data of a domain is not that which `attempt` has on record."""
    known = {row["domain"]: row for row in before}
    for row in records:
        old = known.get(row["domain"])
        if old is not None and old["sha256"] != row["sha256"]:
            raise IntegrityError(
                f"data.{row['domain']}: {row['path']} is not the data of {attempt}: expected SHA-256 "
                f"{old['sha256']} ({old['bytes']} bytes), found {row['sha256']} ({row['bytes']} bytes)"
            )


def restore(built: BuiltRun, origin: Origin) -> None:
    """Bring the state to the checkpoint of `origin`, verified while it is read; IntegrityError changes no state."""
    if origin.checkpoint is None:
        return
    state = built.state
    generators = state.generators()
    with contextlib.nullcontext() if origin.is_replaceable else damage_explained(origin.run_dir, origin.checkpoint):
        record = checkpoint.load_checkpoint(origin.checkpoint, state.state_tensors(), generators)
    state.restore_scalars(record.step, record.batch, record.scalars)
    state.restore_generators(generators)


def restore_or_pass_over(prepared: Prepared, origin: Origin) -> str | None:
    """Restore the state; or return why the checkpoint does not verify, with all closed, where another one will do."""
    try:
        restore(prepared.built, origin)
    except IntegrityError as error:
        if origin.checkpoint is None or not origin.is_replaceable or _verifies(origin.checkpoint):
            raise
        prepared.built.state.loader.close()
        if prepared.sensors is not None:
            prepared.sensors.close()
        return str(error)
    return None


def _verifies(place: Path) -> bool:
    try:
        checkpoint.verify_checkpoint(place)
    except IntegrityError:
        return False
    return True
