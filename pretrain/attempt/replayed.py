"""The experiments of an incident, run again from the nearest checkpoint of its lineage; nothing is written."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretrain.attempt.origin import checkpoints_of
from pretrain.attempt.prepare import check_same_data
from pretrain.batch import StepBatch
from pretrain.build import BuiltRun, build_data, build_optimizer, build_run
from pretrain.config import RunConfig, parse
from pretrain.data.loader import LoaderState
from pretrain.errors import ConfigError, IntegrityError
from pretrain.evidence import checkpoint, incident, namespace
from pretrain.evidence.incident import Incident
from pretrain.faults import spoil_batch
from pretrain.machine import random_state
from pretrain.machine.device import select_device, set_determinism
from pretrain.policy.fault_plan import parse as parse_faults
from pretrain.policy.incident import Replay
from pretrain.replay import Conditions, Twin, run_experiments

_ROWS = (("loss", "loss"), ("gradient norm", "gradient_norm"), ("update norm / rate", "update_norm"))


@dataclass(frozen=True)
class Replayed:
    """What an incident's step gives from a checkpoint before it, by experiment, beside what is on record.

    record_sha256, step: of the checkpoint.
    """

    incident: Incident
    attempt: int
    step: int
    record_sha256: str
    experiments: Mapping[str, Replay]

    def answer(self) -> dict[str, Any]:
        """Return what `replay --json` prints."""
        numbers, record = self.incident.numbers, self.incident.record
        return {
            "incident": self.incident.number,
            "attempt": self.attempt,
            "step": numbers.step,
            "batch": self.incident.batch,
            "action": self.incident.action,
            "cause": self.incident.cause,
            "remedy": self.incident.remedy,
            "evidence": record["evidence"],
            "recorded": {name: _numbers(replay) for name, replay in self._recorded().items()},
            "checkpoint": {"step": self.step, "record_sha256": self.record_sha256},
            "experiments": {name: _numbers(replay) for name, replay in self.experiments.items()},
        }

    def text(self) -> str:
        """Return the same for a person: the cause, and tables of losses and norms."""
        one, numbers = self.incident, self.incident.numbers
        lines = [
            f"incident {one.number} of attempt {self.attempt:04d}: {numbers.trigger} {numbers.value:.6g}, threshold "
            f"{numbers.threshold:.6g}; step {numbers.step}, batch {one.batch}, {one.phase}: {one.action}",
            f"cause: {one.cause}",
            *(f"  {side} it: {_evidence(one.record['evidence'][side])}" for side in ("for", "against")),
            f"remedy: {one.remedy}",
            "",
            "as it happened",
            *_table(self._recorded(), one.blocks),
            "",
            f"again, from the checkpoint of step {self.step}, {_distance(numbers.step - self.step)}",
            *_table(self.experiments, one.blocks),
        ]
        if one.samples:
            lines += ["", "samples by loss", *_samples(one)]
        return "".join((line if line.isprintable() else ascii(line)) + "\n" for line in lines)

    def _recorded(self) -> dict[str, Replay]:
        numbers = self.incident.numbers
        happened = Replay(
            numbers.loss, numbers.gradient_norm, numbers.update_norm, numbers.step, numbers.block_gradient_norms
        )
        replays = {name: getattr(numbers, name) for name in incident.EXPERIMENTS}
        return {"happened": happened} | {name: replay for name, replay in replays.items() if replay is not None}


def replay_incident(path: Path) -> Replayed:
    """Run the step of the incident at `path` again from the nearest checkpoint of its lineage, one before it if it can.

    Raises ConfigError for a path that is no incident of an attempt, IntegrityError where the incident, the data or the
    checkpoint is not what was recorded, or no checkpoint is left.
    """
    number, run_dir = _place_of(path)
    found = incident.read_incident(path)
    if found.number != incident.number_of(f"{incident.FOLDER}/{path.name}"):
        raise IntegrityError(f"{path}: it is the record of incident {found.number}")
    folder = namespace.attempt_folder(run_dir, number)
    environment = namespace.read_environment(folder)
    config = parse(namespace.read_config(folder, environment), str(folder / namespace.CONFIG))
    place = _nearest(run_dir, number, found)
    set_determinism(config.training.deterministic, config.training.threads or environment["threads"])
    device = select_device(config.training.device)
    data = build_data(config)
    check_same_data(data.records, environment["data"], f"attempt {number:04d}")
    built = build_run(config, data, device)
    record = checkpoint.load_checkpoint(place, built.state.state_tensors() | random_state.capture(device))
    batch, other = _batches(built, config, found)
    conditions = Conditions(
        task=built.task,
        device=device,
        precision=config.training.precision,
        rate=found.numbers.learning_rate,
        max_norm=config.training.grad_clip_max_norm,
        scale=found.numbers.loss_scales[-1] if found.numbers.loss_scales else 1.0,
    )
    twin = Twin(built.state.model, lambda model: build_optimizer(config, model), conditions)
    done = run_experiments(twin, batch, other, (record.step, built.state.state_tensors()), None)
    experiments = {
        "same_batch": done.again,
        "other_batch": done.other_batch,
        "fresh_moments": done.fresh_moments,
        "in_float32": done.in_float32,
    }
    return Replayed(
        incident=found,
        attempt=number,
        step=record.step,
        record_sha256=record.record_sha256,
        experiments={name: replay for name, replay in experiments.items() if replay is not None},
    )


def _place_of(path: Path) -> tuple[int, Path]:
    """Return the number of the attempt in which an incident's file lies, and its run folder."""
    if not path.is_file():
        raise ConfigError(f"{path}: expected the file of an incident, found none there")
    whole = path.resolve()
    number = namespace.number_of(whole.parent.parent)
    named = incident.number_of(f"{whole.parent.name}/{whole.name}")
    if named is None or number is None or whole.parent.parent.parent.name != namespace.ATTEMPTS:
        raise ConfigError(f"{path}: expected RUN/{namespace.ATTEMPTS}/0001/{incident.name_of(1)} or one like it")
    return number, whole.parent.parent.parent.parent


def _nearest(run_dir: Path, number: int, found: Incident) -> Path:
    """Return the newest checkpoint of the lineage before the incident, or the first after it where none is left.

    Before it is before its batch: after a rollback the same steps are taken again.
    """
    before: list[tuple[int, Path]] = []
    after: list[tuple[int, Path]] = []
    for step, place in checkpoints_of(run_dir, number):
        batch = checkpoint.read_record(place).batch
        (before if step <= found.numbers.step and batch <= found.batch else after).append((batch, place))
    if before:
        return max(before, key=lambda one: one[0])[1]
    if after:
        return min(after, key=lambda one: one[0])[1]
    raise IntegrityError(f"{run_dir}: no checkpoint is left in the lineage of attempt {number:04d}")


def _batches(built: BuiltRun, config: RunConfig, found: Incident) -> tuple[StepBatch, StepBatch]:
    """Return the batch of the incident, checked against the record of its samples, and another one."""
    loader = built.state.loader
    loader.restore(LoaderState())
    loader.skip_steps(found.batch)
    batch = loader.next_step()
    identities = [(one.source, one.offset, one.position) for one in loader.identify(batch)]
    if found.samples and identities != [(one["source"], one["offset"], one["position"]) for one in found.samples]:
        raise IntegrityError(f"batch {found.batch} does not hold the samples that incident {found.number} names")
    spoiled = [
        fault
        for fault in parse_faults(config.faults.inject)
        if fault.kind == "corrupt_batch" and fault.batch == found.batch
    ]
    return spoil_batch(spoiled, batch), loader.elsewhere()


# --- what is shown -------------------------------------------------------------------------------------


def _numbers(replay: Replay) -> dict[str, Any]:
    return {
        "step": replay.step,
        "loss": replay.loss,
        "gradient_norm": replay.gradient_norm,
        "update_norm": replay.update_norm,
        "block_gradient_norms": list(replay.block_gradient_norms),
    }


def _distance(steps: int) -> str:
    return f"{abs(steps)} steps {'before' if steps >= 0 else 'after'} it"


def _evidence(listed: list[Mapping[str, Any]]) -> str:
    return "; ".join(f"{one['name']} {float(one['value']):.4g} ({one['expected']})" for one in listed) or "nothing"


def _table(columns: Mapping[str, Replay], blocks: tuple[str, ...]) -> Iterator[str]:
    """Yield a table with a column for each replay: loss, norms, and the gradient norm of each block."""
    width = max(len(label) for label in (*blocks, *(label for label, _ in _ROWS)))
    yield "  ".join([" " * width, *(f"{name:>20}" for name in columns)])
    for label, name in _ROWS:
        cells = [getattr(replay, name) for replay in columns.values()]
        yield "  ".join([f"{label:<{width}}", *(_cell(cell) for cell in cells)])
    for index, block in enumerate(blocks):
        norms = [replay.block_gradient_norms for replay in columns.values()]
        cells = [of_block[index] if index < len(of_block) else None for of_block in norms]
        yield "  ".join([f"{block:<{width}}", *(_cell(cell) for cell in cells)])


def _cell(value: float | None) -> str:
    return f"{'-' if value is None else format(value, '.6g'):>20}"


def _samples(one: Incident) -> Iterator[str]:
    """Yield the samples that cost most; one whose loss is not a number costs more than any."""
    by_loss = sorted(one.samples, key=lambda sample: sample["loss"] if sample["loss"] == sample["loss"] else 1e999)
    for sample in reversed(by_loss[-8:]):
        yield f"  {sample['loss']:10.4f}  {sample['source']} at byte {sample['offset']}, position {sample['position']}"
