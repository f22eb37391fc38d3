"""What two settings that are each in order can get wrong together; pure functions of the configuration."""

import dataclasses
import math
import os
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from pretrain import optimizers
from pretrain.config import unobeyed
from pretrain.config.settings import RunConfig, TrainingSettings
from pretrain.errors import ConfigError
from pretrain.models import DecoderSettings
from pretrain.models import check as check_model
from pretrain.policy import fault_plan, guard, schedule, spikes, thermal
from pretrain.policy.guard import GuardSettings
from pretrain.policy.schedule import SCHEDULES
from pretrain.registry import Choice

# A source that is not listed is compared with the task when its windows are open.
# Of a file name, with room for the number by which a log is rotated.
_LONGEST_NAME = 240
_SOURCES_OF_TASK = {"text": ("text",), "iq": ("iq", "synthetic-iq")}


_MOST = 2**63 - 1  # of any count in a record


def resolve(config: RunConfig) -> RunConfig:
    """The configuration with what another key decides written out.

    `scheduler_total_steps: null` becomes `training.max_steps`, so that a resume which raises max_steps keeps
    the shape of the learning rate; `use_amp` becomes `precision`.
    """
    training, scheduler = config.training, config.scheduler
    if training.use_amp is not None:
        precision = "bfloat16" if training.use_amp else "float32"
        training = dataclasses.replace(training, precision=precision, use_amp=None)
    if getattr(scheduler.settings, "scheduler_total_steps", 0) is None:
        settings = dataclasses.replace(scheduler.settings, scheduler_total_steps=training.max_steps)
        scheduler = Choice(scheduler.name, settings)
    return dataclasses.replace(config, training=training, scheduler=scheduler)


def contradictions(config: RunConfig, *, precision_is_given: bool = False) -> list[str]:
    """Every contradiction between keys, one line each, beginning with the key to change.

    precision_is_given: whether `training.precision` was written, not taken by default.
    """
    return [
        *_precision(config, precision_is_given),
        *_task(config),
        *_model(config),
        *optimizers.contradictions(config.optimizer.name, config.optimizer.settings),
        *unobeyed.contradictions(config),
        *schedule.contradictions(config.scheduler.settings),
        *_scaling(config),
        *_init(config),
        *_batch_warmup(config),
        *_length(config),
        *_ranges(config),
        *_validation(config),
        *_paths(config),
        *thermal.contradictions(config.thermal),
        *_guarded(config),
        *fault_plan.contradictions(config.faults),
    ]


def warnings(config: RunConfig) -> list[str]:
    """What is allowed and probably not meant, one line each."""
    found: list[str] = []
    usual = (GuardSettings().inf_post_clip_threshold, TrainingSettings(max_steps=1).grad_clip_max_norm)
    if (config.guard.inf_post_clip_threshold, config.training.grad_clip_max_norm) != usual:
        # Of the defaults, which come from the specification, docs/configuration.md says it once.
        found += guard.warnings(config.guard, config.training.grad_clip_max_norm)
    found += spikes.warnings(config.spikes, config.training.max_steps)
    validate, checkpoint = (
        config.validation.validate_every_n_steps,
        config.checkpoint.checkpoint_every_n_steps,
    )
    # The last step is validated in any case, so a checkpoint of the cadence that falls on it can be best.
    last = config.training.max_steps
    meets = math.lcm(validate, checkpoint) <= last or last % checkpoint == 0
    if not config.checkpoint.num_best_checkpoints or meets or min(validate, checkpoint) > last:
        pass  # a run that is shorter than both keeps its end, and nothing is to be chosen among
    elif checkpoint > last:
        found.append(
            f"checkpoint.checkpoint_every_n_steps ({checkpoint}) is more than training.max_steps ({last}): no "
            "checkpoint of the cadence is saved, and only such a one can be best; the last step is saved all the same"
        )
    else:
        found.append(
            f"validation.validate_every_n_steps ({validate}) and checkpoint.checkpoint_every_n_steps "
            f"({checkpoint}) do not meet by step {last}: only a checkpoint of a validated step can be best, "
            f"so none will be; validation.validate_every_n_steps={checkpoint} would do"
        )
    found += unobeyed.warnings(config)
    found += _never_looked(config)
    total = getattr(config.scheduler.settings, "scheduler_total_steps", None)
    if total is not None and total > last:
        found.append(
            f"scheduler.scheduler_total_steps ({total}) is more than training.max_steps ({last}): the run "
            "ends before the learning rate has"
        )
    if total is not None and total < last:
        multiplier = SCHEDULES[config.scheduler.name].build(config.scheduler.settings)
        if multiplier(total) == 0:
            found.append(
                f"scheduler.scheduler_total_steps ({total}) is less than training.max_steps ({last}): the "
                f"learning rate is 0 from step {total} on, and nothing is learned there"
            )
    if config.validates_on_training_data:
        found.append("data.validation is empty: the run validates on its training data, and its manifest says so")
    return found


def _precision(config: RunConfig, is_given: bool) -> Iterator[str]:
    use_amp, precision = config.training.use_amp, config.training.precision
    if use_amp is None or not is_given:
        return
    meant = "bfloat16" if use_amp else "float32"
    if precision != meant:
        yield (
            f"training.use_amp: {'true' if use_amp else 'false'} means {meant}, but training.precision is "
            f"{precision}; keep one of the two"
        )


def _task(config: RunConfig) -> Iterator[str]:
    task = config.task.name
    wanted = _SOURCES_OF_TASK.get(task, ())
    for key, choice in _domains(config):
        for other, sources in _SOURCES_OF_TASK.items():
            if other != task and choice.name in sources:
                yield (
                    f"task.name is {task}, but {key}.source is {choice.name}; expected a source of "
                    f"{', '.join(wanted)}, or task.name={other}"
                )
    if task == "iq" and config.data.document_mask:
        yield "data.document_mask keeps the documents of a text apart, and task.name=iq reads none; set it to false"
    patch = getattr(config.task.settings, "patch_samples", None)
    length = config.data.sequence_length
    if patch is None:
        return
    if length % patch:
        lower, upper = length // patch * patch, -(-length // patch) * patch
        near = f"{lower} or {upper}" if lower else f"{upper}"
        yield (f"data.sequence_length ({length}) must be a multiple of task.patch_samples ({patch}), such as {near}")
    elif length < 2 * patch:
        yield (
            f"data.sequence_length ({length}) holds one patch of task.patch_samples ({patch}); expected two "
            "at least, one to predict the other from"
        )


def _model(config: RunConfig) -> Iterator[str]:
    if not isinstance(config.model.settings, DecoderSettings):
        return
    try:
        check_model(config.model.settings)
    except ConfigError as error:
        yield str(error)
    if config.model.settings.parametrization == "mup":
        yield from optimizers.width_contradictions(config.optimizer.name, config.optimizer.settings)
    if config.task.name == "iq" and config.model.settings.logit_soft_cap is not None:
        yield "model.logit_soft_cap limits the logits of tokens, and task.name=iq has none; set it to null"
    if config.monitors.experts.every_n_steps and config.model.settings.experts is None:
        yield (
            "monitors.experts.every_n_steps watches experts, and model.experts is null; set it to 0, or "
            "model.experts.count to how many there are"
        )


def _batch_warmup(config: RunConfig) -> Iterator[str]:
    training = config.training
    if training.batch_warmup_samples is not None and training.gradient_accumulation_steps == 1:
        yield (
            f"training.batch_warmup_samples is {training.batch_warmup_samples}, but a step has one micro-batch, which "
            "cannot grow; raise training.gradient_accumulation_steps, or leave it out"
        )


def _length(config: RunConfig) -> Iterator[str]:
    training = config.training
    step = training.batch_size * training.gradient_accumulation_steps * config.data.sequence_length
    if step * training.max_steps > _MOST:
        yield (
            f"training.max_steps is {training.max_steps}: with {step} positions a step the run counts beyond 64 bits; "
            f"at most {_MOST // step} fit"
        )


def _init(config: RunConfig) -> Iterator[str]:
    init = config.init
    if init.from_checkpoint is not None and init.from_huggingface is not None:
        yield "init.from_checkpoint and init.from_huggingface are both given; a run starts from one of them"
    elif init.from_huggingface is not None and config.task.name != "text":
        yield f"init.from_huggingface takes weights of text, but task.name is {config.task.name}; use task.name=text"
    for key, value in (("from_checkpoint", init.from_checkpoint), ("from_huggingface", init.from_huggingface)):
        if value is not None and not value.strip():
            yield f"init.{key} must name a folder; found {value!r}"


def _scaling(config: RunConfig) -> Iterator[str]:
    settings = config.optimizer.settings
    scaling, base = getattr(settings, "lr_scaling", "none"), getattr(settings, "base_batch_size", None)
    if scaling != "none" and base is None:
        yield (
            f"optimizer.lr_scaling is {scaling}, but optimizer.base_batch_size is null; set it to the samples of a "
            "step that optimizer.lr was found with"
        )
    if scaling == "none" and base is not None:
        yield (
            f"optimizer.base_batch_size is {base}, but optimizer.lr_scaling is none, so that nothing obeys it; set "
            "optimizer.lr_scaling to linear or sqrt, or leave it out"
        )


def _ranges(config: RunConfig) -> Iterator[str]:
    for key, choice in _domains(config):
        span = getattr(choice.settings, "span", None)
        if span is not None and not span[0] < span[1]:
            yield f"{key}.span must begin before it ends, as in [0.0, 0.9]; found [{span[0]:g}, {span[1]:g}]"
        for name in ("samples_per_symbol", "snr_db"):
            low, high = getattr(choice.settings, name, (0, 0))
            if low > high:
                yield f"{key}.{name} must be [lowest, highest]; found [{low:g}, {high:g}]"
        if getattr(choice.settings, "classes", None) == ():
            yield f"{key}.classes must hold one class at least; found none"


def _validation(config: RunConfig) -> Iterator[str]:
    rank_by, domains = config.validation.rank_by, config.validation_domains
    if rank_by != "mean" and rank_by not in domains:
        names = ", ".join(domains)
        yield f"validation.rank_by must be mean or a validation domain ({names}); found {rank_by!r}"
    if "mean" in domains:
        where = "train" if config.validates_on_training_data else "validation"
        yield f"data.{where}.mean has the name that means all domains in validation.rank_by; give it another"


def _paths(config: RunConfig) -> Iterator[str]:
    folder, written = config.run.dir, config.telemetry.csv_log_path
    path = PurePosixPath(written)
    if not folder.strip():
        yield f"run.dir must name a folder, such as runs/first; found {folder!r}"
    if ".." in path.parts:
        yield f"telemetry.csv_log_path must not lead upward by `..`; found {written!r}"
    elif not path.name or written.endswith("/"):
        yield f"telemetry.csv_log_path must name a file, such as telemetry.csv; found {written!r}"
    elif len(os.fsencode(path.name)) > _LONGEST_NAME:
        yield f"telemetry.csv_log_path: its name must be no longer than {_LONGEST_NAME} bytes; found {path.name!r}"
    elif path.suffix != ".csv":
        # No other file of an attempt ends so: the log cannot take the place of a record.
        yield f"telemetry.csv_log_path must end in .csv; found {written!r}"
    elif len(path.parts) > 1 and not path.is_absolute():
        yield (
            "telemetry.csv_log_path must be a plain file name, which lies in the attempt's folder, or an "
            f"absolute path; found {written!r}"
        )
    elif path.name.startswith(".") or "\\" in path.name:
        yield f"telemetry.csv_log_path must not begin with a point or hold a backslash; found {written!r}"
    places = {"run.dir": folder, "telemetry.csv_log_path": written}
    for name, settings in config.telemetry.trackers.items():
        own = getattr(settings, "folder", None)
        if own is not None:
            places[f"telemetry.trackers.{name}.folder"] = own
            if not own.strip():
                yield f"telemetry.trackers.{name}.folder must name a folder, or be null; found {own!r}"
    for key, value in places.items():
        if value.startswith("~"):
            yield f"{key} begins with ~, which is not your home folder here; write {value!r} out"


def _guarded(config: RunConfig) -> Iterator[str]:
    is_on, backend = config.thermal.gpu_temp_guard, config.telemetry.gpu_metrics_backend
    if is_on and backend != "nvml":
        yield (
            "thermal.gpu_temp_guard reads the temperature through NVML, but telemetry.gpu_metrics_backend is "
            f"{backend}; set telemetry.gpu_metrics_backend=nvml"
        )
    for text in config.faults.inject:
        if text.startswith("temperature@") and not is_on:
            yield f"faults.inject: {text!r} is a reading of a guard that is off; set thermal.gpu_temp_guard=true"


def _never_looked(config: RunConfig) -> Iterator[str]:
    """Yield the monitors that are on and whose cadence meets no step of the run."""
    last, validate = config.training.max_steps, config.validation.validate_every_n_steps
    for one in dataclasses.fields(config.monitors):
        every = getattr(config.monitors, one.name).every_n_steps
        if every > last:
            yield (
                f"monitors.{one.name}.every_n_steps ({every}) is more than training.max_steps ({last}): it never looks"
            )
    every = config.monitors.regression.every_n_steps
    if 0 < every <= last and math.lcm(every, validate) > last and last % every:
        yield (
            f"monitors.regression.every_n_steps ({every}) and validation.validate_every_n_steps ({validate}) do not "
            f"meet by step {last}: it never looks; 1 is every validation"
        )


def _domains(config: RunConfig) -> Iterator[tuple[str, Choice[Any]]]:
    for domain, choice in config.data.train.items():
        yield f"data.train.{domain}", choice
    for domain, choice in config.data.validation.items():
        yield f"data.validation.{domain}", choice
