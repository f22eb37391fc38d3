"""What a child attempt goes on from: the parent found, verified and read before anything is created."""

import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pretrain import files, reading
from pretrain.attempt.ancestry import checkpoints_of
from pretrain.config import RunConfig, parse
from pretrain.errors import ConfigError, IntegrityError, StorageError
from pretrain.evidence import checkpoint, incident, manifest, metrics, namespace, verification
from pretrain.evidence.checkpoint import CheckpointRecord
from pretrain.evidence.manifest import Manifest
from pretrain.evidence.namespace import Parent


@dataclass(frozen=True)
class Origin:
    """The attempt that was named, and the verified checkpoint to go on from; both None = it starts at step 0.

    number: the attempt named. folder: the attempt in which the checkpoint lies, which is an ancestor of the named one
    where none of its own verifies, and owner the config of that attempt. finished: the manifest when the named attempt
    is done. passed_over: what lies there of newer checkpoints and is none, or does not verify, for a person to know.
    noted: what is gone of incidents and older checkpoints. left: the steps of newer checkpoints in that folder that are
    not gone on from although none of them was found to be damaged. incidents: the files of the incidents up to the
    checkpoint, by path. is_replaceable: whether the one before it will do where its files do not verify, because nobody
    has named it.
    """

    number: int
    config: RunConfig
    environment: dict[str, Any]
    folder: Path
    parent: Parent | None
    checkpoint: Path | None
    record: CheckpointRecord | None
    finished: Manifest | None
    manifest_sha256: str | None
    passed_over: tuple[str, ...] = ()
    noted: tuple[str, ...] = ()
    left: tuple[int, ...] = ()
    incidents: Mapping[str, bytes] = field(default_factory=dict)
    owner: RunConfig | None = None
    is_replaceable: bool = False

    @property
    def run_dir(self) -> Path:
        """Return the folder of the run."""
        return self.folder.parent.parent

    @property
    def step(self) -> int:
        """Return the completed steps to go on from."""
        return self.record.step if self.record is not None else 0

    def warnings(self) -> tuple[str, ...]:
        """Return what a child tells of: what is passed over for this checkpoint, and what is gone."""
        return (*(f"{what}; passed over, going on from step {self.step}" for what in self.passed_over), *self.noted)

    def make_durable(self) -> None:
        """Make the name of the record that a child binds durable: its writer may have been killed before that."""
        if self.parent is not None and self.checkpoint is not None:
            files.fsync_folder(self.folder if self.parent.kind == "manifest" else self.checkpoint)


def find_origin(
    run_dir: Path,
    number: int,
    expect_sha256: str | None,
    step: int | None = None,
    damaged: Mapping[Path, str] = MappingProxyType({}),
) -> Origin:
    """Verify attempt `number` of a run and return what a child goes on from; nothing is written.

    A finished attempt is verified whole; of an unfinished one the record of its newest checkpoint and the metric
    prefix that it binds, while the files of that checkpoint are verified when they are loaded. One that does not
    verify is passed over for the one before it; an IntegrityError names what there is no way round.
    expect_sha256: the hash that the manifest, or the checkpoint record, must have. step: that of the checkpoint of
    this attempt to go on from, and no other, None = the newest. damaged: checkpoints whose files were found not to
    verify, and why.
    """
    named = namespace.attempt_folder(run_dir, number)
    environment = namespace.read_environment(named)
    config = _config_of(named, environment)
    finished, manifest_sha256 = _manifest(named)
    record: CheckpointRecord | None = None
    faults: list[str] = []
    parent: Parent | None
    if step is not None and (finished is None or finished.latest.step != step):
        place = _place(run_dir, number, step)
        folder, parent = named, Parent(number, "checkpoint", checkpoint.read_record(place).record_sha256)
    else:
        if finished is None:
            record, faults = _newest_that_verifies(named, damaged)
        if record is not None:
            folder, parent, step = named, Parent(number, "checkpoint", record.record_sha256), record.step
        else:
            folder, parent, step = _beginning(run_dir, number, finished, manifest_sha256, faults)
    passed_over = list(faults)
    noted: list[str] = []
    for name, text in (found for one in dict.fromkeys((named, folder)) for found in _without_record(one, step)):
        (noted if _is_older(name, step) else passed_over).append(text)
    if expect_sha256 is not None and (parent is None or parent.record_sha256 != expect_sha256.lower()):
        found = parent.record_sha256 if parent is not None else "no record at all"
        raise IntegrityError(
            f"{named}: expected the parent's record to have SHA-256 {expect_sha256}, found {found}", *faults
        )
    if parent is None:
        return Origin(
            number, config, environment, named, None, None, None, None, None, tuple(passed_over), tuple(noted)
        )
    place = checkpoint.folder_of(folder, step)
    is_newest = record is not None
    if record is None:
        with damage_explained(run_dir, place):
            record = checkpoint.read_record(place)  # its files are verified while they are loaded
        _verify_rows(place, record)
    count = record.scalars["ledger"]["incidents"]
    incidents = {incident.name_of(found): data for found, data in incident.read_incidents(folder, count)}
    noted += [
        f"{folder / name}: the file of an incident is gone"
        for name in map(incident.name_of, range(1, count + 1))
        if name not in incidents
    ]
    # Where the newest that verifies was looked for, whatever is newer in its folder was found not to.
    left = () if is_newest else tuple(found for found, _ in checkpoint.list_checkpoints(folder) if found > step)
    owner = config if folder == named else _config_of(folder, namespace.read_environment(folder))
    return Origin(
        *(number, config, environment, folder, parent, place, record, finished, manifest_sha256),
        *(tuple(passed_over), tuple(noted), left, incidents, owner),
        is_replaceable=is_newest and expect_sha256 is None,
    )


def _verify_rows(place: Path, record: CheckpointRecord) -> None:
    for _ in metrics.verify_prefix(place.parent.parent / metrics.NAME, record.metrics):
        pass


def _newest_that_verifies(folder: Path, damaged: Mapping[Path, str]) -> tuple[CheckpointRecord | None, list[str]]:
    """Return the record of the newest checkpoint that verifies, rows and all, and why those after it do not."""
    faults: list[str] = []
    for _, place in reversed(checkpoint.list_checkpoints(folder)):
        reason = damaged.get(place)
        if reason is None:
            try:
                record = checkpoint.read_record(place)
                _verify_rows(place, record)
            except IntegrityError as error:
                reason = str(error)
            else:
                return record, faults
        faults.append(f"{place} does not verify: {reason}")
    return None, faults


def _config_of(folder: Path, environment: Mapping[str, Any]) -> RunConfig:
    try:
        return parse(namespace.read_config(folder, environment), str(folder / namespace.CONFIG))
    except ConfigError as error:
        first, *rest = error.args
        raise IntegrityError(f"{folder}: its config.yaml cannot be read back: {first}", *rest) from error


def _place(run_dir: Path, number: int, step: int) -> Path:
    """Return the folder of the checkpoint of `step` in an attempt; ConfigError says where it is, or which there are."""
    folder = namespace.attempt_folder(run_dir, number)
    saved = dict(checkpoint.list_checkpoints(folder))
    if step not in saved:
        steps = ", ".join(map(str, saved)) or "none"
        missing = f"--checkpoint: {folder} holds no checkpoint of step {step}; it holds those of {steps}"
        for found, place in checkpoints_of(run_dir, number):
            if found == step:
                owner = place.parent.parent
                raise ConfigError(
                    f"{missing}. Attempt {owner.name}, which it goes on from, does: `pretrain resume --attempt "
                    f"{shlex.quote(str(owner))} --checkpoint {step}`"
                )
        raise ConfigError(missing)
    return saved[step]


@contextlib.contextmanager
def damage_explained(run_dir: Path, place: Path) -> Iterator[None]:
    """Say of a checkpoint that does not verify how to go on without it."""
    try:
        yield
    except IntegrityError as error:
        folder = place.parent.parent
        words = f"pretrain resume --attempt {shlex.quote(str(folder))}"
        before = [step for step, found in checkpoint.list_checkpoints(folder) if found.name < place.name]
        is_parent = namespace.newest(run_dir) != namespace.number_of(folder)
        bound = "; the attempts that went on from it then lack their parent" if is_parent else ""
        advice = (
            f"`{words} --checkpoint {before[-1]}` goes on from the one before it"
            if before
            else f"with {place} moved out of the run, `{words}` goes on from where that attempt began{bound}"
        )
        raise IntegrityError(*error.args, f"find out what changed it; {advice}") from error


def _is_older(name: str, step: int) -> bool:
    """Whether it is the folder of an older checkpoint, as is left where a kill came while one was removed."""
    digits = name.removeprefix("step_")
    return digits != name and digits.isdecimal() and int(digits) < step


def _without_record(folder: Path, step: int) -> tuple[tuple[str, str], ...]:
    """Name, and say, what is none beside the checkpoints: a save that a kill cut short, or a record that is gone."""
    place = folder / "checkpoints"
    if place.is_symlink():
        raise IntegrityError(f"{place}: expected a folder, found a symlink")
    if not place.is_dir():
        return ()
    known = {found.name for _, found in checkpoint.list_checkpoints(folder)}
    return tuple(
        (
            name,
            f"{place / name} has no record: its save was cut short, or the record is gone",
        )
        for name, kind in reading.walk(place)
        if "/" not in name and kind in ("folder", "link") and name not in known
    )


def _manifest(folder: Path) -> tuple[Manifest | None, str | None]:
    if not os.path.lexists(folder / namespace.MANIFEST):
        return None, None
    report = verification.verify_attempt(folder)
    if report.is_only_unread:
        raise StorageError(
            f"{folder}: the parent cannot be verified",
            *report.text().rstrip().split("\n"),
            "nothing is known to be changed: see to the disk, then resume; or name an older attempt",
        )
    if not report.ok:
        raise IntegrityError(
            f"{folder}: the parent does not verify",
            *report.text().rstrip().split("\n"),
            "all that a finished attempt left is bound, telemetry.csv among it: put back what it names from a copy, or "
            "name an older attempt",
        )
    return manifest.read_manifest(folder)


def _beginning(
    run_dir: Path, number: int, finished: Manifest | None, manifest_sha256: str | None, faults: Sequence[str]
) -> tuple[Path, Parent | None, int]:
    """Return the attempt folder that holds the checkpoint to go on from, its name as a parent, and the step.

    Of a finished attempt that is its last one; else, since none of its own verifies, the one that it began from.
    faults: what its own checkpoints are, where it has any; then to begin at step 0 again is for a person to decide.
    """
    folder = namespace.attempt_folder(run_dir, number)
    if finished is not None and manifest_sha256 is not None:
        return folder, Parent(number, "manifest", manifest_sha256), finished.latest.step
    above = Parent.parse(namespace.read_environment(folder)["parent"], f"{folder / namespace.ENVIRONMENT}: parent")
    if above is None and faults:
        raise IntegrityError(
            f"{folder}: none of its checkpoints verifies",
            *faults,
            "put back from a copy what one of them lacks; with all of them moved out of the run, `pretrain resume "
            f"--attempt {shlex.quote(str(folder))}` trains from step 0 again",
        )
    if above is None:
        return folder, None, 0
    ancestor = namespace.attempt_folder(run_dir, above.attempt)
    if above.kind == "manifest":
        done, sha256 = _manifest(ancestor)
        if done is not None and sha256 == above.record_sha256:
            return ancestor, above, done.latest.step
    for step, place in reversed(checkpoint.list_checkpoints(ancestor)):
        if above.kind == "checkpoint" and checkpoint.read_record(place).record_sha256 == above.record_sha256:
            return ancestor, above, step
    raise IntegrityError(
        f"{folder}: goes on from the {above.kind} {above.record_sha256} of attempt {above.attempt}, "
        f"which is not in {ancestor}"
    )
