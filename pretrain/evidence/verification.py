"""Whether an attempt or a checkpoint is what its records say, every file of it, by reading alone."""

import contextlib
import hashlib
import os
from pathlib import Path

from pretrain import files, reading
from pretrain.errors import IntegrityError, StorageError
from pretrain.evidence import canonical, checkpoint, incident, metrics, namespace
from pretrain.evidence.checkpoint_record import RECORD_NAME, CheckpointRecord
from pretrain.evidence.findings import Findings, Verification
from pretrain.evidence.manifest_record import NAME, Manifest, parse_manifest
from pretrain.evidence.namespace import CONFIG, ENVIRONMENT, Parent
from pretrain.evidence.safetensors_file import ShardFile
from pretrain.evidence.shards import content_sha256, gather, tensor_sha256

_CHECKPOINTS = "checkpoints/"
_INCIDENTS = f"{incident.FOLDER}/"


def verify_attempt(folder: Path, expect_sha256: str | None = None) -> Verification:
    """Check everything that the manifest of an attempt binds, or, without one, all that its checkpoints bind.

    expect_sha256: what the SHA-256 of manifest.json must be. Nothing is written and no link is followed.
    """
    findings = Findings(folder)
    manifest, manifest_sha256 = _read_manifest(findings, expect_sha256)
    if manifest is None:
        usable = _check_bound_by_checkpoints(findings)
        parent = _check_environment(findings)
        if NAME not in findings.kinds:
            findings.explain(_unfinished(findings, usable, has_parent=parent is not None))
    else:
        _check_bound_by_manifest(findings, manifest)
        parent = manifest.parent
    return findings.verification(
        manifest_sha256=manifest_sha256,
        unfinished=NAME not in findings.kinds,
        parent_ok=None if parent is None else _check_parent(findings, parent),
    )


def verify_checkpoint_folder(folder: Path, expect_sha256: str | None = None) -> Verification:
    """Check everything that the record of a checkpoint binds, naming every file that differs.

    The tensors are read as well: they are those of content_sha256. Inside an attempt it is enough that the shard
    files, whose bytes are bound, hold whole tensors.

    expect_sha256: what the SHA-256 of checkpoint.json must be.
    """
    findings = Findings(folder)
    record = _read_record(findings, "")
    findings.check_files(_bound_by(record, "") if record else {}, RECORD_NAME, lambda _: record is not None)
    if record:
        _check_tensors(findings, record, "", with_content=True)
    if RECORD_NAME not in findings.kinds:
        findings.add("missing", RECORD_NAME, "every checkpoint has one, written last")
    found = record.record_sha256 if record else None
    if record and expect_sha256 not in (None, found):
        findings.add("changed", RECORD_NAME, f"expected SHA-256 {expect_sha256}, found {found}")
    return findings.verification(record_sha256=found)


def _read_manifest(findings: Findings, expect_sha256: str | None) -> tuple[Manifest | None, str | None]:
    path = findings.folder / NAME
    manifest, sha256 = None, None
    if findings.is_regular(NAME):
        with findings.changing(NAME):
            data = reading.read_regular(path, limit=canonical.RECORD_LIMIT)
            sha256 = hashlib.sha256(data).hexdigest()
            if expect_sha256 not in (None, sha256):
                findings.add("changed", NAME, f"expected SHA-256 {expect_sha256}, found {sha256}")
            manifest = parse_manifest(data, str(path))
    return manifest, sha256


def _read_record(findings: Findings, step_folder: str) -> CheckpointRecord | None:
    name = step_folder + RECORD_NAME
    record = None
    if findings.is_regular(name):
        with findings.changing(name):
            record = checkpoint.read_record(findings.folder / step_folder)
    return record


def _bound_by(record: CheckpointRecord, step_folder: str) -> dict[str, tuple[int, str]]:
    bound = {step_folder + file.path: (file.bytes, file.sha256) for file in record.files}
    size = record.bytes - sum(file.bytes for file in record.files)
    return {**bound, step_folder + RECORD_NAME: (size, record.record_sha256)}


def _check_tensors(
    findings: Findings, record: CheckpointRecord, step_folder: str, *, with_content: bool = False
) -> None:
    """The files of a checkpoint, found as bound, are shard files that hold whole tensors between them."""
    with contextlib.ExitStack() as stack:
        shards = []
        for name in (step_folder + file.path for file in record.files):
            if findings.is_good(name):
                with findings.changing(name):
                    shards.append(stack.enter_context(ShardFile.open(findings.folder / name)))
        if len(shards) < len(record.files):
            return
        with findings.changing(step_folder + RECORD_NAME):
            tensors = gather(shards)
            if with_content:
                rows = {name: (one.dtype, one.shape, tensor_sha256(one)) for name, one in tensors.items()}
                if content_sha256(rows) != record.content_sha256:
                    raise IntegrityError(f"{RECORD_NAME}: content_sha256 is not that of the tensors it binds")


# --- with a manifest -----------------------------------------------------------------------------------


def _check_bound_by_manifest(findings: Findings, manifest: Manifest) -> None:
    number = namespace.number_of(findings.folder)
    if number not in (None, manifest.attempt):
        findings.add("changed", NAME, f"it is of attempt {manifest.attempt}, not of {number}")
    bound = {entry.path: (entry.bytes, entry.sha256) for entry in manifest.files}
    findings.check_files(bound, NAME, lambda name: name != NAME)
    records = {
        path.removesuffix(RECORD_NAME): record
        for path in bound
        if path.endswith("/" + RECORD_NAME) and findings.is_good(path)
        if (record := _read_record(findings, path.removesuffix(RECORD_NAME)))
    }
    _check_records(findings, manifest, bound, records)
    for path in bound:
        if path.startswith(_INCIDENTS) and findings.is_good(path):
            _check_incident(findings, path)
    _check_stream(findings, manifest, records)
    if findings.is_good(ENVIRONMENT):
        with findings.changing(ENVIRONMENT):
            environment = namespace.read_environment(findings.folder)
            parent = Parent.parse(environment["parent"], ENVIRONMENT)
            if (environment["attempt"], parent) != (manifest.attempt, manifest.parent):
                findings.add("changed", NAME, f"attempt and parent are not those of {ENVIRONMENT}")


def _check_records(
    findings: Findings,
    manifest: Manifest,
    bound: dict[str, tuple[int, str]],
    records: dict[str, CheckpointRecord],
) -> None:
    """The records of the checkpoints, by their folders, say the same as the manifest that binds them."""
    for step_folder, record in records.items():
        _check_tensors(findings, record, step_folder)
        named = {path: entry for path, entry in bound.items() if path.startswith(step_folder)}
        if named != _bound_by(record, step_folder):
            findings.add("changed", NAME, f"it binds other files than {step_folder}{RECORD_NAME}")
        if record.identity_sha256 != manifest.identity_sha256:
            findings.add("changed", NAME, f"identity_sha256 is not that of {step_folder}{RECORD_NAME}")
        is_latest = record.record_sha256 == manifest.latest.record_sha256
        if record.step > manifest.latest.step or (is_latest and record.step != manifest.latest.step):
            findings.add("changed", NAME, f"latest is not the checkpoint of {step_folder}")
    for path in bound:
        step_folder = path[: path.rfind("/") + 1]
        if path.startswith(_CHECKPOINTS) and step_folder + RECORD_NAME not in bound:
            findings.add("changed", NAME, f"it binds {path}, but no record of that checkpoint")


def _check_stream(findings: Findings, manifest: Manifest, records: dict[str, CheckpointRecord]) -> None:
    if not findings.is_good(metrics.NAME):
        return
    path = findings.folder / metrics.NAME
    with findings.changing(metrics.NAME):
        broken = metrics.broken_prefixes(path, [manifest.metrics, *(r.metrics for r in records.values())])
        if manifest.metrics in broken:
            findings.add("changed", NAME, f"metrics does not count the rows of {metrics.NAME}")
        for step_folder in (folder for folder, record in records.items() if record.metrics in broken):
            findings.add("changed", step_folder + RECORD_NAME, f"its cursor is not of this {metrics.NAME}")
        if metrics.counts(path) != manifest.counts:
            findings.add("changed", NAME, f"counts are not those of {metrics.NAME}")


# --- without one ---------------------------------------------------------------------------------------


def _check_bound_by_checkpoints(findings: Findings) -> list[CheckpointRecord]:
    """Check what the records of the checkpoints bind, and return those from which a resume can go on, ascending."""
    for name in (CONFIG, ENVIRONMENT, metrics.NAME):
        if not findings.is_regular(name) and name not in findings.kinds:
            findings.add("missing", name, "every attempt is born with one")
    records, unknown = {}, set()
    for name, kind in findings.kinds.items():
        if kind == "folder" and name.startswith(_CHECKPOINTS) and name.count("/") == 1:
            record = _read_record(findings, name + "/")
            if record:
                records[name + "/"] = record
            elif name + "/" + RECORD_NAME in findings.kinds:
                unknown.add(name + "/")  # an altered record says nothing about the files beside it

    def is_judged(name: str) -> bool:
        # No record binds the other files yet; but a temporary, or half a checkpoint, has no business here.
        if any(files.TEMPORARY.fullmatch(part) for part in name.rstrip("/").split("/")):
            return True
        if name.startswith(_INCIDENTS):
            return name != _INCIDENTS and incident.number_of(name) is None
        return name.startswith(_CHECKPOINTS) and name != _CHECKPOINTS and not name.startswith(tuple(unknown))

    steps = ", ".join(str(record.step) for record in records.values())
    findings.explain(
        f"checked: the checkpoints of steps {steps} and the rows they bind" if steps else "no checkpoint yet"
    )
    bound = {path: entry for folder, record in records.items() for path, entry in _bound_by(record, folder).items()}
    findings.check_files(bound, f"a {RECORD_NAME}", is_judged)
    for folder, record in records.items():
        _check_tensors(findings, record, folder)
    for name in [name for name in findings.kinds if incident.number_of(name) is not None]:
        if findings.is_regular(name):
            _check_incident(findings, name)
    counted = max((record.scalars["ledger"]["incidents"] for record in records.values()), default=0)
    for name in map(incident.name_of, range(1, counted + 1)):
        if name not in findings.kinds:
            findings.add("missing", name, "a checkpoint counts it")
    broken = [record.metrics for record in records.values()]
    if findings.is_regular(metrics.NAME):
        with findings.changing(metrics.NAME):
            broken = metrics.broken_prefixes(findings.folder / metrics.NAME, broken)
            for folder in (folder for folder, record in records.items() if record.metrics in broken):
                findings.add("changed", metrics.NAME, f"its first rows are not those that {folder} binds")
    # Retention takes the record away first; whoever begins to look now finds no such checkpoint.
    gone = {folder for folder in {*records, *unknown} if not os.path.lexists(findings.folder / folder / RECORD_NAME)}
    for folder in gone:
        findings.forget(folder)
    return [
        record
        for folder, record in records.items()
        if record.metrics not in broken and folder not in gone and findings.is_sound(folder)
    ]


def _has_incidents(findings: Findings, record: CheckpointRecord) -> bool:
    """Whether those incidents that a checkpoint counts are whole which are there at all."""
    return all(name not in findings.kinds or findings.is_sound(name) for name in _incidents_of(record))


def _incidents_of(record: CheckpointRecord) -> list[str]:
    return [incident.name_of(number) for number in range(1, record.scalars["ledger"]["incidents"] + 1)]


def _unfinished(findings: Findings, usable: list[CheckpointRecord], *, has_parent: bool) -> str:
    """What an attempt without a manifest is, and what `pretrain resume` makes of what was found."""
    what = f"there is no {NAME}: the attempt is unfinished, and `pretrain resume`"
    listed = checkpoint.list_checkpoints(findings.folder)
    saved = [step for step, _ in listed]
    newest = usable[-1] if usable else None
    last = -1 if newest is None else newest.step
    over = ", ".join(str(step) for step in saved if step > last)
    read = [CONFIG, ENVIRONMENT, metrics.NAME]
    read += [f"{_CHECKPOINTS}{place.name}/" for step, place in listed if step > last]
    read += _incidents_of(newest) if newest else ()
    if unread := findings.unread(*read):
        # It is no damage that is passed over: the disk may read it at the next try.
        return f"{what} ends with exit code {StorageError.exit_code} as long as it cannot read {', '.join(unread)}"
    is_lost = newest is None and saved and not has_parent
    if is_lost or not findings.is_sound(CONFIG, ENVIRONMENT) or (newest and not _has_incidents(findings, newest)):
        return f"{what} refuses it as it is"
    if not over:
        return f"{what} goes on from it"
    goes_on = "from where it began" if newest is None else f"from that of step {last}"
    return f"{what} passes over the checkpoints of steps {over} and goes on {goes_on}"


def _check_incident(findings: Findings, name: str) -> None:
    """The file of an incident is whole, and is the one that its name says."""
    with findings.changing(name):
        found = incident.read_incident(findings.folder / name)
        if found.number != incident.number_of(name):
            findings.add("changed", name, f"it is the record of incident {found.number}")


def _check_environment(findings: Findings) -> Parent | None:
    """What environment.json says, and whether config.yaml is the one that it binds; returns its parent."""
    parent = None
    if findings.is_regular(ENVIRONMENT):
        with findings.changing(ENVIRONMENT):
            environment = namespace.read_environment(findings.folder)
            parent = Parent.parse(environment["parent"], ENVIRONMENT)
            if findings.is_regular(CONFIG):
                with findings.changing(CONFIG):
                    namespace.read_config(findings.folder, environment)
    return parent


# --- the parent ----------------------------------------------------------------------------------------


def _check_parent(findings: Findings, parent: Parent) -> bool | None:
    """Whether the record that `parent` names lies in its attempt, beside this one; None without that attempt."""
    attempt = findings.folder.with_name(f"{parent.attempt:04d}")
    if namespace.number_of(findings.folder) is None or not os.path.lexists(attempt):
        return None
    faults: list[IntegrityError | StorageError] = []
    try:
        if parent.kind == "manifest":
            records = [attempt / NAME]
        else:
            records = [folder / RECORD_NAME for _, folder in checkpoint.list_checkpoints(attempt)]
        for record in records if not attempt.is_symlink() else ():
            try:
                if reading.hash_file(record).sha256 == parent.record_sha256:
                    return True
            except (IntegrityError, StorageError) as error:
                faults.append(error)
    except (IntegrityError, StorageError) as error:
        faults.append(error)
    for fault in faults:
        findings.explain(str(fault))
    # Any that cannot be read may be the one.
    findings.is_parent_unread = any(isinstance(fault, StorageError) for fault in faults)
    findings.explain(
        f"the parent {attempt} holds no {parent.kind} record with SHA-256 {parent.record_sha256}"
        + (" that can be read" if findings.is_parent_unread else ": it was changed or removed")
    )
    return False
