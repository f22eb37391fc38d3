"""What checkpoint.json holds: the fields of a checkpoint's record, written and strictly parsed."""

import dataclasses
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pretrain.errors import IntegrityError
from pretrain.evidence import canonical
from pretrain.evidence.metrics import Cursor

RECORD_NAME = "checkpoint.json"
SCHEMA = 1

_SHARD = re.compile(r"shard_[0-9]{5}\.safetensors")
_FIELDS = (
    *(
        "schema",
        "step",
        "batch",
        "identity_sha256",
        "files",
        "content_sha256",
        "layout",
        "metrics",
        "scalars",
    ),
)
_SCALARS = ("loader", "ledger", "guard", "spikes", "scaler", "best")
_LEDGER = (
    *("retries", "rollbacks", "rung", "incidents"),
    *("quarantined", "learning_rate_factor", "faults_fired"),
)


@dataclass(frozen=True)
class CheckpointFile:
    """One file that a checkpoint binds: its path in the folder, its size and its SHA-256."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class CheckpointRecord:
    """What a checkpoint binds, and `record_sha256`, the SHA-256 of the record itself: the checkpoint's name.

    step: completed optimizer steps. batch: global batches consumed. metrics: the prefix of the metric stream
    that led here. scalars, layout: plain data, as FORMATS has them. bytes: of all files and the record.
    """

    step: int
    batch: int
    identity_sha256: str
    files: tuple[CheckpointFile, ...]
    content_sha256: str
    layout: dict[str, Any]
    metrics: Cursor
    scalars: dict[str, Any]
    record_sha256: str
    bytes: int


def shard_name(rank: int) -> str:
    """Return the name of the file that `rank` writes."""
    return f"shard_{rank:05d}.safetensors"


def is_shard_name(name: str) -> bool:
    """Whether `name` is one that a rank writes."""
    return _SHARD.fullmatch(name) is not None


@dataclass(frozen=True)
class RecordDraft:
    """What a record binds beside the files: all that is known before they are written."""

    step: int
    batch: int
    identity_sha256: str
    layout: Mapping[str, Any]
    metrics: Cursor
    scalars: Mapping[str, Any]

    def check(self) -> None:
        """Raise IntegrityError, TypeError or ValueError naming what no record may hold."""
        self.encode([CheckpointFile(shard_name(0), 0, "0" * 64)], "0" * 64)

    def encode(self, files: Sequence[CheckpointFile], content_sha256: str) -> bytes:
        """Return the bytes of checkpoint.json, which `parse_record` has read back; raises as `check` does."""
        where = f"{RECORD_NAME} of step {self.step}"
        _check_finite(self.layout, f"{where}: layout")
        _check_finite(self.scalars, f"{where}: scalars")
        record = {
            "schema": SCHEMA,
            "step": self.step,
            "batch": self.batch,
            "identity_sha256": self.identity_sha256,
            "files": [dataclasses.asdict(file) for file in sorted(files, key=lambda file: file.path)],
            "content_sha256": content_sha256,
            "layout": self.layout,
            "metrics": self.metrics.record(),
            "scalars": self.scalars,
        }
        data = canonical.encode(canonical.seal(record))
        parse_record(data, where)
        return data


def parse_record(data: bytes, where: str) -> CheckpointRecord:
    """Return what the bytes of a checkpoint.json say; IntegrityError names `where` and the wrong field."""
    record = canonical.parse_record(data, where, _FIELDS)
    if canonical.integer(record["schema"], f"{where}: schema") != SCHEMA:
        raise IntegrityError(f"{where}: schema: expected {SCHEMA}, found {record['schema']}")
    files = _files(record["files"], f"{where}: files")
    return CheckpointRecord(
        step=canonical.integer(record["step"], f"{where}: step"),
        batch=canonical.integer(record["batch"], f"{where}: batch"),
        identity_sha256=canonical.digest(record["identity_sha256"], f"{where}: identity_sha256"),
        files=files,
        content_sha256=canonical.digest(record["content_sha256"], f"{where}: content_sha256"),
        layout=_object(record["layout"], f"{where}: layout"),
        metrics=Cursor.parse(record["metrics"], f"{where}: metrics"),
        scalars=_scalars(record["scalars"], f"{where}: scalars"),
        record_sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data) + sum(file.bytes for file in files),
    )


def _files(value: Any, where: str) -> tuple[CheckpointFile, ...]:
    found = []
    for entry in canonical.items(value, where):
        file = canonical.fields(entry, ("path", "bytes", "sha256"), where)
        path = canonical.text(file["path"], f"{where}: path")
        if not is_shard_name(path):
            raise IntegrityError(f"{where}: expected a name like {shard_name(0)}, found {path[:80]!r}")
        size = canonical.integer(file["bytes"], f"{where}: {path}: bytes")
        found.append(CheckpointFile(path, size, canonical.digest(file["sha256"], f"{where}: {path}: sha256")))
    paths = [file.path for file in found]
    if not paths or paths != sorted(set(paths)):
        raise IntegrityError(f"{where}: expected one or more, sorted, each once, found {str(paths)[:200]}")
    return tuple(found)


def _scalars(value: Any, where: str) -> dict[str, Any]:
    """`value`, once it has the shape of FORMATS; what guard and spikes hold is for their owners."""
    scalars = canonical.fields(value, _SCALARS, where)
    loader = canonical.fields(scalars["loader"], ("epoch", "position"), f"{where}: loader")
    for name, count in loader.items():
        canonical.integer(count, f"{where}: loader.{name}")
    _check_ledger(canonical.fields(scalars["ledger"], _LEDGER, f"{where}: ledger"), f"{where}: ledger")
    _object(scalars["guard"], f"{where}: guard")
    _object(scalars["spikes"], f"{where}: spikes")
    if scalars["scaler"] is not None:
        scaler = canonical.fields(scalars["scaler"], ("scale", "growth_tracker"), f"{where}: scaler")
        if _finite(scaler["scale"], f"{where}: scaler.scale") <= 0:
            raise IntegrityError(f"{where}: scaler.scale: expected more than 0")
        canonical.integer(scaler["growth_tracker"], f"{where}: scaler.growth_tracker")
    for row in canonical.items(scalars["best"], f"{where}: best"):
        best = canonical.fields(row, ("step", "value"), f"{where}: best")
        canonical.integer(best["step"], f"{where}: best: step")
        _finite(best["value"], f"{where}: best: value")
    return scalars


def _check_ledger(ledger: dict[str, Any], where: str) -> None:
    for name in ("rollbacks", "rung", "incidents"):
        canonical.integer(ledger[name], f"{where}.{name}")
    for step in canonical.items(ledger["retries"], f"{where}.retries"):
        canonical.integer(step, f"{where}.retries")
    for window in canonical.items(ledger["quarantined"], f"{where}.quarantined"):
        bounds = canonical.items(window, f"{where}.quarantined")
        if len(bounds) != 2 or canonical.integer(bounds[0], where) > canonical.integer(bounds[1], where):
            raise IntegrityError(f"{where}.quarantined: expected [first, last], found {str(bounds)[:80]}")
    for fault in canonical.items(ledger["faults_fired"], f"{where}.faults_fired"):
        canonical.text(fault, f"{where}.faults_fired")
    if _finite(ledger["learning_rate_factor"], f"{where}.learning_rate_factor") <= 0:
        raise IntegrityError(f"{where}.learning_rate_factor: expected more than 0")


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise IntegrityError(f"{where}: expected an object, found {str(value)[:80]!r}")
    return value


def _finite(value: Any, where: str) -> float:
    number = canonical.number(value, where)
    if not math.isfinite(number):
        raise IntegrityError(f"{where}: expected a finite number, found {number}")
    return number


def _check_finite(value: Any, where: str) -> None:
    """Refuses what canonical JSON would turn into a word: it would come back as a text."""
    if isinstance(value, float):
        _finite(value, where)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            _check_finite(inner, f"{where}.{name}")
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_finite(inner, where)
