"""`verify-manifest`: what a path means, whether it verifies, and its checksums for other tools."""

import os
import re
from pathlib import Path

from pretrain import files
from pretrain.errors import ConfigError
from pretrain.evidence import checkpoint, metrics, namespace, verification
from pretrain.evidence.checkpoint_record import RECORD_NAME
from pretrain.evidence.findings import Verification
from pretrain.evidence.manifest import read_manifest
from pretrain.evidence.namespace import Parent

_SHA256 = re.compile(r"[0-9a-f]{64}")
_STEP_FOLDER = re.compile(r"step_[0-9]{8,}")


def verify(path: Path, expect_sha256: str | None = None) -> Verification:
    """Check an attempt, its manifest.json, a run (its newest attempt) or a checkpoint, by reading alone.

    expect_sha256: what the SHA-256 of manifest.json (or checkpoint.json) must be; only this, or the child that
    bound it, finds a record that was rewritten with all its digests. Nothing in the files checked is taken as
    an option. Raises ConfigError for a path that is none of these; what is found is in the Verification.
    """
    expect_sha256 = None if expect_sha256 is None else expect_sha256.lower()
    if expect_sha256 is not None and not _SHA256.fullmatch(expect_sha256):
        raise ConfigError(f"--expect-sha256: expected 64 hex digits, found {expect_sha256!r}")
    folder, is_checkpoint = _locate(path)
    if is_checkpoint:
        return verification.verify_checkpoint_folder(folder, expect_sha256)
    return verification.verify_attempt(folder, expect_sha256)


def verify_lineage(path: Path, expect_sha256: str | None = None) -> list[Verification]:
    """Check an attempt and every attempt it goes on from, the newest first.

    Of a parent that is bound by a manifest, the manifest is checked; of one that is bound by a checkpoint, that
    checkpoint. An ancestor whose folder is gone ends the list with the child that says so by `parent_ok`.
    """
    folder, is_checkpoint = _locate(path)
    found = [verify(path, expect_sha256)]
    while not is_checkpoint and (above := _parent_of(folder)) is not None:
        folder = namespace.attempt_folder(folder.parent.parent, above.attempt)
        if not folder.is_dir():
            break
        place = _bound_place(folder, above)
        if place is None:  # The child's `parent_ok` says so; there is nothing to follow.
            break
        found.append(
            verification.verify_attempt(place)
            if above.kind == "manifest"
            else verification.verify_checkpoint_folder(place, above.record_sha256)
        )
    return found


def _parent_of(folder: Path) -> Parent | None:
    if not os.path.lexists(folder / namespace.ENVIRONMENT):
        return None
    return Parent.parse(namespace.read_environment(folder)["parent"], f"{folder / namespace.ENVIRONMENT}: parent")


def _bound_place(folder: Path, parent: Parent) -> Path | None:
    """The folder that the record of `parent` lies in: the attempt's, or that of one of its checkpoints."""
    if parent.kind == "manifest":
        return folder if os.path.lexists(folder / namespace.MANIFEST) else None
    for _, place in checkpoint.list_checkpoints(folder):
        if files.hash_file(place / RECORD_NAME).sha256 == parent.record_sha256:
            return place
    return None


def sums(path: Path) -> str:
    """Lines for `sha256sum -c`, run in the folder that `path` means: every file that its records bind.

    The records themselves stand there with the SHA-256 that they have now. Raises IntegrityError for a record
    that cannot be read, ConfigError for a path that means no attempt or checkpoint.
    """
    folder, is_checkpoint = _locate(path)
    bound: dict[str, str] = {}
    if is_checkpoint:
        bound = _bound_by(folder, "")
    elif os.path.lexists(folder / namespace.MANIFEST):
        manifest, sha256 = read_manifest(folder)
        bound = {entry.path: entry.sha256 for entry in manifest.files} | {namespace.MANIFEST: sha256}
    else:
        for _, step_folder in checkpoint.list_checkpoints(folder):
            bound |= _bound_by(step_folder, step_folder.relative_to(folder).as_posix() + "/")
    return "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(bound.items()))


def _bound_by(step_folder: Path, prefix: str) -> dict[str, str]:
    record = checkpoint.read_record(step_folder)
    bound = {prefix + file.path: file.sha256 for file in record.files}
    return bound | {prefix + RECORD_NAME: record.record_sha256}


def _locate(path: Path) -> tuple[Path, bool]:
    """The folder that `path` means, and whether it is a checkpoint's.

    A record's name means its folder, there or not. Names decide before contents, so that no file that was added
    turns an attempt into something else.
    """
    if path.name in (namespace.MANIFEST, RECORD_NAME) and path.parent.is_dir():
        return path.parent.resolve(), path.name == RECORD_NAME
    if not path.is_dir():
        raise ConfigError(f"{path}: expected an attempt, a run or a checkpoint folder, found none there")
    folder = path.resolve()
    if namespace.number_of(folder) is not None and folder.parent.name == namespace.ATTEMPTS:
        return folder, False
    if _STEP_FOLDER.fullmatch(folder.name):
        return folder, True
    names = (namespace.MANIFEST, namespace.ENVIRONMENT, metrics.NAME)
    if any(os.path.lexists(folder / name) for name in names):
        return folder, False
    if os.path.lexists(folder / RECORD_NAME):
        return folder, True
    newest = namespace.newest(folder)
    if newest is None:
        raise ConfigError(
            f"{path}: expected an attempt, a run or a checkpoint folder, found no {namespace.MANIFEST}, "
            f"{RECORD_NAME} or {namespace.ATTEMPTS} in it"
        )
    return namespace.attempt_folder(folder, newest), False
