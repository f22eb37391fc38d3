"""manifest.json: the last thing a finished attempt writes, naming every file it answers for."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pretrain import files, reading
from pretrain.errors import IntegrityError
from pretrain.evidence import canonical, checkpoint, metrics, outcome
from pretrain.evidence.manifest_record import (
    NAME,
    Best,
    FileEntry,
    Latest,
    Manifest,
    encode,
    parse_manifest,
    role_of,
)
from pretrain.evidence.metrics import Cursor
from pretrain.evidence.namespace import Parent

__all__ = [
    "NAME",
    "Best",
    "FileEntry",
    "Latest",
    "Manifest",
    "build_manifest",
    "parse_manifest",
    "publish_manifest",
    "read_manifest",
]


def build_manifest(
    attempt: Path,
    *,
    number: int,
    step: int,
    batch: int,
    identity_sha256: str,
    bit_exact: bool,
    reasons: Sequence[str],
    validation: str,
    parent: Parent | None,
    latest: Latest,
    best: Sequence[Best],
    metrics_cursor: Cursor,
    faults: Sequence[str] = (),
) -> Manifest:
    """Take in every file of the attempt folder, whose streams are closed; only for the holder of the lock.

    A temporary that a failed removal left behind is removed first. The hashes of a checkpoint's tensors are
    those taken while they were written; everything else is hashed here. Raises IntegrityError for a link, a
    special file, or a file that is not what its record says.
    """
    files.remove_temporaries(attempt)
    manifest = Manifest(
        attempt=number,
        step=step,
        batch=batch,
        identity_sha256=identity_sha256,
        bit_exact=bit_exact,
        reasons=tuple(reasons),
        validation=validation,
        parent=parent,
        files=tuple(_take_in(attempt)),
        latest=latest,
        best=tuple(best),
        metrics=metrics_cursor,
        counts=metrics.counts(attempt / metrics.NAME),
        faults=tuple(faults),
    )
    # What a reader would refuse is never written.
    return parse_manifest(encode(manifest), str(attempt / NAME))


def _take_in(attempt: Path) -> list[FileEntry]:
    hashed: dict[str, tuple[int, str]] = {}
    for _, folder in checkpoint.list_checkpoints(attempt):
        relative = folder.relative_to(attempt).as_posix()
        for file in checkpoint.read_record(folder).files:
            hashed[f"{relative}/{file.path}"] = (file.bytes, file.sha256)
    entries = []
    for path, kind in reading.walk(attempt):
        if kind == "folder":
            continue
        if kind != "file" or path in (NAME, outcome.NAME):
            raise IntegrityError(f"{attempt / path}: expected only regular files of an attempt that is done")
        size, sha256 = hashed.pop(path) if path in hashed else _published(attempt / path)
        if size != (attempt / path).lstat().st_size:
            raise IntegrityError(f"{attempt / path}: expected {size} bytes, as its checkpoint.json says")
        entries.append(FileEntry(path, size, sha256, role_of(path)))
    if hashed:
        raise IntegrityError(f"{attempt / min(hashed)}: missing, although its checkpoint.json names it")
    return entries


def _published(path: Path) -> tuple[int, str]:
    found = reading.hash_file(path)
    return found.bytes, found.sha256


def publish_manifest(attempt: Path, manifest: Manifest) -> str:
    """Write manifest.json, the last file of the attempt, and return its SHA-256. Raises StorageError."""
    return files.publish(attempt / NAME, encode(manifest)).sha256


def read_manifest(attempt: Path) -> tuple[Manifest, str]:
    """The manifest of an attempt folder and the SHA-256 of its file. Raises IntegrityError."""
    path = attempt / NAME
    data = reading.read_regular(path, limit=canonical.RECORD_LIMIT)
    return parse_manifest(data, str(path)), hashlib.sha256(data).hexdigest()
