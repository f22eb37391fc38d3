"""What manifest.json holds: the record of a finished attempt, written and strictly parsed."""

import math
import re
from dataclasses import asdict, dataclass
from typing import Any

from pretrain.errors import IntegrityError
from pretrain.evidence import canonical, events, metrics, namespace, outcome
from pretrain.evidence.checkpoint_record import RECORD_NAME
from pretrain.evidence.metrics import Counts, Cursor
from pretrain.evidence.namespace import CONFIG, ENVIRONMENT, Parent

SCHEMA = 1
NAME = namespace.MANIFEST
VERDICT = "done"
VALIDATION = ("held out", "training data")

_ROLES = {CONFIG: "config", ENVIRONMENT: "environment", metrics.NAME: "metrics", events.NAME: "events"}
_FIELDS = (
    *("schema", "verdict", "attempt", "step", "batch", "identity_sha256", "bit_exact", "reasons"),
    *("validation", "parent", "files", "latest", "best", "metrics", "counts", "faults"),
)


@dataclass(frozen=True)
class FileEntry:
    """One file of the attempt: relative POSIX path, size, SHA-256 and role."""

    path: str
    bytes: int
    sha256: str
    role: str


@dataclass(frozen=True)
class Latest:
    """The checkpoint of the greatest step, named by the SHA-256 of its checkpoint.json."""

    step: int
    record_sha256: str


@dataclass(frozen=True)
class Best:
    """A checkpoint that is kept for its validation value."""

    step: int
    value: float
    record_sha256: str


@dataclass(frozen=True)
class Manifest:
    """What manifest.json says.

    bit_exact, reasons: whether every attempt of the lineage ran under the same conditions, and what differed.
    faults: the test faults that were injected, so that such a run never passes as clean.
    """

    attempt: int
    step: int
    batch: int
    identity_sha256: str
    bit_exact: bool
    reasons: tuple[str, ...]
    validation: str
    parent: Parent | None
    files: tuple[FileEntry, ...]
    latest: Latest
    best: tuple[Best, ...]
    metrics: Cursor
    counts: Counts
    faults: tuple[str, ...]


def role_of(path: str) -> str:
    """What the file at this relative path is; a file that nothing else explains is telemetry."""
    if path.startswith("checkpoints/"):
        return "checkpoint"
    return "incident" if path.startswith("incidents/") else _ROLES.get(path, "telemetry")


def encode(manifest: Manifest) -> bytes:
    """The bytes of manifest.json."""
    record = {"schema": SCHEMA, "verdict": VERDICT, **asdict(manifest)}
    return canonical.encode(canonical.seal(record))


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Read a manifest strictly. Raises IntegrityError naming `where` and the field."""
    record = canonical.parse_record(data, where, _FIELDS)
    if canonical.integer(record["schema"], f"{where}: schema") != SCHEMA:
        raise IntegrityError(f"{where}: expected schema {SCHEMA}, found {record['schema']}")
    canonical.text(record["verdict"], f"{where}: verdict", (VERDICT,))
    manifest = Manifest(
        attempt=canonical.integer(record["attempt"], f"{where}: attempt", minimum=1),
        step=canonical.integer(record["step"], f"{where}: step"),
        batch=canonical.integer(record["batch"], f"{where}: batch"),
        identity_sha256=canonical.digest(record["identity_sha256"], f"{where}: identity_sha256"),
        bit_exact=canonical.boolean(record["bit_exact"], f"{where}: bit_exact"),
        reasons=_texts(record["reasons"], f"{where}: reasons"),
        validation=canonical.text(record["validation"], f"{where}: validation", VALIDATION),
        parent=Parent.parse(record["parent"], f"{where}: parent"),
        files=_files(record["files"], f"{where}: files"),
        latest=_latest(record["latest"], f"{where}: latest"),
        best=tuple(
            _best(value, f"{where}: best[{index}]")
            for index, value in enumerate(canonical.items(record["best"], f"{where}: best"))
        ),
        metrics=Cursor.parse(record["metrics"], f"{where}: metrics"),
        counts=Counts.parse(record["counts"], f"{where}: counts"),
        faults=_texts(record["faults"], f"{where}: faults"),
    )
    _check_consistent(manifest, where)
    return manifest


def _check_consistent(manifest: Manifest, where: str) -> None:
    by_path = {entry.path: entry for entry in manifest.files}
    for path in (CONFIG, ENVIRONMENT, metrics.NAME):
        if path not in by_path:
            raise IntegrityError(f"{where}: files: {path} is not named, and every attempt has one")
    stream = by_path[metrics.NAME]
    if (stream.bytes, stream.sha256) != (manifest.metrics.bytes, manifest.metrics.sha256):
        raise IntegrityError(f"{where}: metrics is not the cursor at the end of {metrics.NAME}")
    if manifest.parent is not None and manifest.parent.attempt >= manifest.attempt:
        raise IntegrityError(f"{where}: parent: attempt {manifest.parent.attempt} is no earlier one")
    if manifest.latest.step > manifest.step:
        raise IntegrityError(f"{where}: latest: step {manifest.latest.step} is after the end")
    records = {entry.sha256 for entry in manifest.files if entry.path.endswith("/" + RECORD_NAME)}
    # A best checkpoint may lie in an earlier attempt; the latest never does.
    if manifest.latest.record_sha256 not in records:
        raise IntegrityError(f"{where}: latest: no file is the checkpoint record that it names")


def _files(value: Any, where: str) -> tuple[FileEntry, ...]:
    entries = []
    for index, item in enumerate(canonical.items(value, where)):
        at = f"{where}[{index}]"
        found = canonical.fields(item, ("path", "bytes", "sha256", "role"), at)
        path = canonical.relative_path(found["path"], f"{at}.path")
        size = canonical.integer(found["bytes"], f"{at}.bytes")
        sha256 = canonical.digest(found["sha256"], f"{at}.sha256")
        role = canonical.text(found["role"], f"{at}.role", (role_of(path),))
        if path in (NAME, outcome.NAME):
            raise IntegrityError(f"{at}.path: {path} is no file that a manifest can name")
        entries.append(FileEntry(path, size, sha256, role))
    paths = [entry.path for entry in entries]
    if paths != sorted(set(paths)):
        raise IntegrityError(f"{where}: expected sorted paths, each once")
    folders = {path[: slash.start()] for path in paths for slash in re.finditer("/", path)}
    if clash := sorted(folders & set(paths)):
        raise IntegrityError(f"{where}: {clash[0]} is both a file and a folder")
    return tuple(entries)


def _latest(value: Any, where: str) -> Latest:
    found = canonical.fields(value, ("step", "record_sha256"), where)
    step = canonical.integer(found["step"], f"{where}.step")
    return Latest(step, canonical.digest(found["record_sha256"], f"{where}.record_sha256"))


def _best(value: Any, where: str) -> Best:
    found = canonical.fields(value, ("step", "value", "record_sha256"), where)
    step = canonical.integer(found["step"], f"{where}.step")
    loss = canonical.number(found["value"], f"{where}.value")
    if not math.isfinite(loss):
        raise IntegrityError(f"{where}.value: expected a finite number, found {loss}, which never ranks")
    return Best(step, loss, canonical.digest(found["record_sha256"], f"{where}.record_sha256"))


def _texts(value: Any, where: str) -> tuple[str, ...]:
    return tuple(canonical.text(item, where) for item in canonical.items(value, where))
