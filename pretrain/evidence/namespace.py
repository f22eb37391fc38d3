"""The attempts of a run: where they are, how one is born, and what a path on the command line means."""

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pretrain import files, reading
from pretrain.errors import ConfigError, IntegrityError
from pretrain.evidence import canonical, metrics

SCHEMA = 1
# Of the record of a run that starts from given weights: it has one field more.
SCHEMA_WITH_INIT = 2
CONFIG = "config.yaml"
ENVIRONMENT = "environment.json"
MANIFEST = "manifest.json"
ATTEMPTS = "attempts"
LOCK = "run.lock"

_CONFIG_LIMIT = 1 << 20  # bytes
_NUMBER = re.compile(r"[0-9]{4,9}")
_LAST = 999_999_999
_DATA_FIELDS = ("domain", "path", "bytes", "sha256", "windows", "remainder")
_FIELDS = (
    *("schema", "attempt", "parent", "versions", "device", "threads", "cpu_capability", "determinism"),
    *("data", "tokenizer_sha256"),
)
_INIT_FIELDS = ("source", "path", "record_sha256", "weights_sha256")


@dataclass(frozen=True)
class Parent:
    """What an attempt goes on from: a record of an earlier attempt, named by its SHA-256 and never by a path.

    kind: "manifest" for the manifest.json of a finished attempt, "checkpoint" for a checkpoint.json.
    """

    attempt: int
    kind: str
    record_sha256: str

    def record(self) -> dict[str, Any]:
        """The parent as it stands in environment.json and manifest.json."""
        return asdict(self)

    @classmethod
    def parse(cls, value: Any, where: str) -> "Parent | None":
        """Read what `record` made; null is no parent. Raises IntegrityError."""
        if value is None:
            return None
        found = canonical.fields(value, ("attempt", "kind", "record_sha256"), where)
        return cls(
            attempt=canonical.integer(found["attempt"], f"{where}.attempt", minimum=1),
            kind=canonical.text(found["kind"], f"{where}.kind", ("manifest", "checkpoint")),
            record_sha256=canonical.digest(found["record_sha256"], f"{where}.record_sha256"),
        )


def environment_record(
    *,
    attempt: int,
    parent: Parent | None,
    versions: Mapping[str, str],
    device: str,
    threads: int,
    cpu_capability: str,
    determinism: Mapping[str, Any],
    data: Sequence[Mapping[str, Any]],
    tokenizer_sha256: str | None,
    init: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What environment.json holds; a row of `data` has domain, path, bytes, sha256, windows and remainder.

    init: where the run started with given weights, their source (`checkpoint` or `huggingface`), path, record_sha256
    (null for the latter) and weights_sha256.
    """
    record = {
        "schema": SCHEMA,
        "attempt": attempt,
        "parent": None if parent is None else parent.record(),
        "versions": dict(versions),
        "device": device,
        "threads": threads,
        "cpu_capability": cpu_capability,
        "determinism": dict(determinism),
        "data": [{**row, "path": canonical.unicode(row["path"])} for row in data],
        "tokenizer_sha256": tokenizer_sha256,
    }
    if init is not None:
        record |= {"schema": SCHEMA_WITH_INIT, "init": {**init, "path": canonical.unicode(init["path"])}}
    return _checked_environment(record, ENVIRONMENT)


def bound(record: Mapping[str, Any], config: bytes) -> dict[str, Any]:
    """The environment record with the SHA-256 of config.yaml, and of itself, among its `determinism`.

    So that a flipped bit in either is found before a checkpoint or a manifest binds them.
    """
    inner = {**record["determinism"], "config_sha256": hashlib.sha256(config).hexdigest()}
    whole = {**record, "determinism": inner}
    return {**whole, "determinism": {**inner, "environment_sha256": _digest(whole)}}


def _digest(record: Mapping[str, Any]) -> str:
    inner = {name: value for name, value in record["determinism"].items() if name != "environment_sha256"}
    return hashlib.sha256(canonical.encode({**record, "determinism": inner})).hexdigest()


def read_environment(attempt: Path) -> dict[str, Any]:
    """The environment record of an attempt folder. Raises IntegrityError, also where it was altered or is another's."""
    path = attempt / ENVIRONMENT
    data = reading.read_regular(path, limit=canonical.RECORD_LIMIT)
    record = _checked_environment(canonical.parse(data, str(path)), str(path))
    is_bound = "config_sha256" in record["determinism"] or "environment_sha256" in record["determinism"]
    if is_bound and record["determinism"].get("environment_sha256") != _digest(record):
        raise IntegrityError(f"{path}: its environment_sha256 is not the digest of the record; it was altered")
    if number_of(attempt) not in (None, record["attempt"]):
        raise IntegrityError(f"{path}: it is of attempt {record['attempt']}; give the folder its own number back")
    return record


def read_config(attempt: Path, environment: Mapping[str, Any]) -> str:
    """The text of an attempt's config.yaml. Raises IntegrityError where it is not the one that was bound."""
    path = attempt / CONFIG
    data = reading.read_regular(path, limit=_CONFIG_LIMIT)
    if environment["determinism"].get("config_sha256") not in (None, hashlib.sha256(data).hexdigest()):
        raise IntegrityError(f"{path}: is not the file that {ENVIRONMENT} binds by config_sha256; it was altered")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise IntegrityError(f"{path}: is not UTF-8: {error}") from error


def _checked_environment(value: Any, where: str) -> dict[str, Any]:
    has_init = isinstance(value, dict) and "init" in value
    schema = SCHEMA_WITH_INIT if has_init else SCHEMA
    record = canonical.fields(value, (*_FIELDS, "init") if has_init else _FIELDS, where)
    if canonical.integer(record["schema"], f"{where}: schema") != schema:
        raise IntegrityError(f"{where}: expected schema {schema}, found {record['schema']}")
    if has_init:
        _check_init(record["init"], f"{where}: init")
    number = canonical.integer(record["attempt"], f"{where}: attempt", minimum=1)
    parent = Parent.parse(record["parent"], f"{where}: parent")
    if parent is not None and parent.attempt >= number:  # Whoever follows parents comes to an end.
        raise IntegrityError(f"{where}: parent: expected an attempt before {number}, found {parent.attempt}")
    canonical.integer(record["threads"], f"{where}: threads", minimum=1)
    for name in ("device", "cpu_capability"):
        canonical.text(record[name], f"{where}: {name}")
    for name in ("versions", "determinism"):
        if not isinstance(record[name], dict):
            raise IntegrityError(f"{where}: {name}: expected an object, found {record[name]!r}")
    for index, row in enumerate(canonical.items(record["data"], f"{where}: data")):
        at = f"{where}: data[{index}]"
        found = canonical.fields(row, _DATA_FIELDS, at)
        canonical.digest(found["sha256"], f"{at}.sha256")
        for name in ("domain", "path"):
            canonical.text(found[name], f"{at}.{name}")
        for name in ("bytes", "windows", "remainder"):
            canonical.integer(found[name], f"{at}.{name}")
    if record["tokenizer_sha256"] is not None:
        canonical.digest(record["tokenizer_sha256"], f"{where}: tokenizer_sha256")
    return record


def _check_init(value: Any, where: str) -> None:
    found = canonical.fields(value, _INIT_FIELDS, where)
    source = canonical.text(found["source"], f"{where}.source", ("checkpoint", "huggingface"))
    canonical.text(found["path"], f"{where}.path")
    canonical.digest(found["weights_sha256"], f"{where}.weights_sha256")
    if source == "checkpoint" or found["record_sha256"] is not None:
        canonical.digest(found["record_sha256"], f"{where}.record_sha256")


def attempt_folder(run_dir: Path, number: int) -> Path:
    """Where attempt `number` lies, whether or not it exists."""
    return run_dir / ATTEMPTS / f"{number:04d}"


def number_of(folder: Path) -> int | None:
    """The attempt number that a folder's name says, None where it is no such name."""
    if not _NUMBER.fullmatch(folder.name):
        return None
    number = int(folder.name)
    return number if number and f"{number:04d}" == folder.name else None


def is_attempt(folder: Path) -> bool:
    """Whether `folder` is an attempt of some run, finished or not."""
    is_named = folder.parent.name == ATTEMPTS and number_of(folder) is not None
    return is_named and all((folder / name).is_file() for name in (CONFIG, ENVIRONMENT))


def attempts_around(place: Path) -> Path | None:
    """The folder of the attempts of some run in which `place` lies, or which it is; None = it lies in none.

    What is left of a damaged attempt is one too, and a name that is free may be that of the next attempt.
    """
    records = (CONFIG, ENVIRONMENT, MANIFEST)
    for folder in (place, *place.parents):
        if folder.name == ATTEMPTS and folder.is_dir():
            numbered = (entry for entry in folder.iterdir() if number_of(entry) is not None)
            if any(os.path.lexists(entry / name) for entry in numbered for name in records):
                return folder
    return None


def list_attempts(run_dir: Path) -> list[int]:
    """The attempts of a run in the order of their numbers; none where there is no such folder.

    Raises IntegrityError where the name of an attempt is a symlink or a file.
    """
    folder = run_dir / ATTEMPTS
    if not os.path.lexists(folder):
        return []
    if folder.is_symlink() or not folder.is_dir():
        raise IntegrityError(f"{folder}: expected a folder, found something else")
    found = []
    for entry in folder.iterdir():
        number = number_of(entry)
        if number is None:
            continue
        if entry.is_symlink() or not entry.is_dir():
            raise IntegrityError(f"{entry}: expected the folder of an attempt, found something else")
        found.append(number)
    return sorted(found)


def newest(run_dir: Path) -> int | None:
    """The greatest attempt number of a run, None where it has none."""
    return max(list_attempts(run_dir), default=None)


def create(
    run_dir: Path,
    number: int,
    config: bytes,
    environment: Mapping[str, Any],
    prefix: Iterable[bytes] = (),
    incidents: Mapping[str, bytes] = MappingProxyType({}),
) -> Path:
    """Make the folder of attempt `number` appear whole, and return it; only for the holder of the run's lock.

    config: the text of config.yaml. environment: see `environment_record`. prefix: the rows that the metric
    stream begins with; whatever it raises leaves no attempt behind. incidents: the files of those rows, by path.
    What a killed creation left beside the attempts is removed first; nothing inside another attempt is touched.
    Raises StorageError, and ConfigError for a number that is no name.
    """
    if number > _LAST:
        raise ConfigError(f"{run_dir}: attempt {_LAST} is the last that a run can have; begin another from its weights")

    def write(folder: Path) -> None:
        files.publish(folder / CONFIG, config, durable_folder=False)
        files.publish(folder / ENVIRONMENT, canonical.encode(environment), durable_folder=False)
        files.publish(folder / metrics.NAME, prefix, durable_folder=False)
        for path, data in incidents.items():
            files.make_folder((folder / path).parent)
            files.publish(folder / path, data)

    files.make_folder(run_dir / ATTEMPTS, is_durable=False)
    files.remove_temporaries(run_dir / ATTEMPTS, recursive=False)
    folder = attempt_folder(run_dir, number)
    files.publish_folder(folder, write)
    return folder


def attempt_meant(folder: Path) -> Path | None:
    """The attempt that `folder` is, or the newest of the run that it is; None where it is neither."""
    if is_attempt(folder):
        return folder
    number = newest(folder) if folder.is_dir() else None
    return None if number is None else attempt_folder(folder, number)


def resolve(path: Path) -> tuple[Path, int]:
    """(run folder, attempt number) that `path` means: an attempt folder, its manifest.json, or a run folder.

    A run folder means its newest attempt. The run folder is named as `path` names it where that is plain, and else by
    its real path. Raises ConfigError for any other path.
    """
    if not path.exists():
        raise ConfigError(f"{path}: expected an attempt or run folder, found nothing there")
    given = path.parent if path.name == MANIFEST else path
    folder = given.resolve()
    number = number_of(folder)
    if number is not None and folder.parent.name == ATTEMPTS and folder.is_dir():
        return _as_given(given.parent.parent, folder.parent.parent), number
    number = newest(folder) if folder.is_dir() else None
    if number is None:
        raise ConfigError(
            f"{path}: expected an attempt (RUN/{ATTEMPTS}/0001), its {MANIFEST}, or a run folder with attempts"
        )
    return _as_given(given, folder), number


def _as_given(given: Path, whole: Path) -> Path:
    """`given` where its own words lead to `whole`, with no link and no `..` on the way."""
    is_plain = given.name not in ("", "..") and ".." not in given.parts
    return given if is_plain and os.path.abspath(given) == str(whole) else whole
