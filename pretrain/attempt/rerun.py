"""The experiments of an incident, run again from the nearest checkpoint of its lineage; nothing is written."""

from collections.abc import Sequence
from pathlib import Path

from pretrain.attempt.ancestry import checkpoints_of
from pretrain.attempt.prepare import check_same_data
from pretrain.attempt.replayed import Replayed
from pretrain.batch import StepBatch
from pretrain.build import BuiltRun, build_data, build_optimizer, build_run
from pretrain.config import RunConfig, parse, resumed
from pretrain.data.loader import LoaderState
from pretrain.errors import ConfigError, IntegrityError
from pretrain.evidence import checkpoint, incident, metrics, namespace
from pretrain.evidence.checkpoint_record import RECORD_NAME, CheckpointRecord
from pretrain.evidence.incident import Incident
from pretrain.evidence.manifest import read_manifest
from pretrain.faults import spoil_batch
from pretrain.machine.device import select_device, set_determinism
from pretrain.policy.fault_plan import parse as parse_faults
from pretrain.replay import Conditions, Twin, run_experiments


def replay_incident(path: Path, overrides: Sequence[str] = ()) -> Replayed:
    """Run the step of the incident at `path` again from the nearest checkpoint of its lineage, one before it if it can.

    overrides: what a resume may change, such as the paths of data that has moved. Raises ConfigError for a path that is
    no incident of an attempt, IntegrityError where the incident, the data or the checkpoint is not what was recorded,
    or no checkpoint is left.
    """
    number, run_dir = _place_of(path)
    folder = namespace.attempt_folder(run_dir, number)
    found = _read(path, folder)
    environment = namespace.read_environment(folder)
    config = parse(namespace.read_config(folder, environment), str(folder / namespace.CONFIG))
    config = resumed(config, overrides)
    set_determinism(config.training.deterministic, config.training.threads or environment["threads"])
    device = select_device(config.training.device)
    data = build_data(config)
    check_same_data(data.records, environment["data"], f"attempt {number:04d}")
    built = build_run(config, data, device)
    record = _load_nearest(built, run_dir, number, found)
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
        raise ConfigError(f"{path}: expected the file of an incident, found none there{_there(path)}")
    if path.parent.is_symlink():
        raise IntegrityError(f"{path.parent}: expected a folder, found a symlink")
    whole = path.resolve()
    number = namespace.number_of(whole.parent.parent)
    named = incident.number_of(f"{whole.parent.name}/{whole.name}")
    if named is None or number is None or whole.parent.parent.parent.name != namespace.ATTEMPTS:
        raise ConfigError(f"{path}: expected RUN/{namespace.ATTEMPTS}/0001/{incident.name_of(1)} or one like it")
    return number, whole.parent.parent.parent.parent


def _there(folder: Path) -> str:
    """Name the incidents of an attempt, or of a run's newest one, where `folder` is that."""
    attempt = namespace.attempt_meant(folder)
    if attempt is None:
        return ""
    found = [
        str(file)
        for file in sorted((attempt / incident.FOLDER).glob("*.json"))
        if incident.number_of(f"{incident.FOLDER}/{file.name}") is not None
    ]
    return f"; there are {', '.join(found)}" if found else f"; there is none in {attempt}"


def _read(path: Path, attempt: Path) -> Incident:
    """Return the incident, the one that its name says, and that the manifest binds where there is one."""
    found = incident.read_incident(path)
    name = incident.name_of(found.number)
    if found.number != incident.number_of(f"{incident.FOLDER}/{path.name}"):
        raise IntegrityError(f"{path}: expected the incident that its name says, found the record of {name}")
    if (attempt / namespace.MANIFEST).exists():
        bound = {entry.path: entry.sha256 for entry in read_manifest(attempt)[0].files}
        if bound.get(name) != found.sha256:
            raise IntegrityError(
                f"{path}: is not the file that {namespace.MANIFEST} binds; "
                f"`pretrain verify-manifest {attempt}` says more"
            )
    return found


def _load_nearest(built: BuiltRun, run_dir: Path, number: int, found: Incident) -> CheckpointRecord:
    """Bring the state to the newest checkpoint before the incident, or the first after it where none is left."""
    state = built.state
    for place in _nearest(run_dir, number, found):
        try:
            return checkpoint.load_checkpoint(place, state.state_tensors(), state.generators())
        except IntegrityError:
            if (place / RECORD_NAME).exists():
                raise
            # A process that writes the run has let it go since: the next one will do.
    raise IntegrityError(
        f"{run_dir}: no checkpoint is left in the lineage of attempt {number:04d}, and a step can only be run again "
        "from one; checkpoint.keep_every_n_steps keeps more of them"
    )


def _nearest(run_dir: Path, number: int, found: Incident) -> list[Path]:
    """Return the checkpoints of the lineage, the nearest first: those before the incident, then those after it.

    Before it is before its batch: after a rollback the same steps are taken again, and what was undone before the
    incident, which an earlier attempt may still hold, did not lead to it.
    """
    attempt = namespace.attempt_folder(run_dir, number)
    undone = metrics.rollbacks(attempt / metrics.NAME)
    before: list[tuple[int, Path]] = []
    after: list[tuple[int, Path]] = []
    for step, place in checkpoints_of(run_dir, number):
        try:
            batch = checkpoint.read_record(place).batch
        except IntegrityError:
            if (place / RECORD_NAME).exists():
                raise
            continue
        if any(target < step and batch <= at < found.batch for target, at in undone):
            continue
        (before if step <= found.numbers.step and batch <= found.batch else after).append((batch, place))
    return [place for _, place in sorted(before, reverse=True)] + [place for _, place in sorted(after)]


def _batches(built: BuiltRun, config: RunConfig, found: Incident) -> tuple[StepBatch, StepBatch]:
    """Return the batch of the incident, checked against the record of its samples, and another one."""
    loader = built.state.loader
    loader.restore(LoaderState())
    loader.skip_steps(found.batch)
    batch = loader.next_step()
    # By place alone: the files may have moved, and their hashes have been compared.
    places = [(one.offset, one.position) for one in loader.identify(batch)]
    if found.samples and places != [(one["offset"], one["position"]) for one in found.samples]:
        raise IntegrityError(
            f"incident {found.number}: expected batch {found.batch} to hold the samples that it names, found others; "
            "the file, or the config of its attempt, was changed"
        )
    spoiled = [
        fault
        for fault in parse_faults(config.faults.inject)
        if fault.kind == "corrupt_batch" and fault.batch == found.batch
    ]
    return spoil_batch(spoiled, batch), loader.elsewhere()
