"""`verify-manifest`: what a path means, whether it verifies, and its checksums for other tools."""

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pretrain import reading
from pretrain.errors import ConfigError, IntegrityError, StorageError
from pretrain.evidence import checkpoint, metrics, namespace, verification
from pretrain.evidence.checkpoint_record import RECORD_NAME
from pretrain.evidence.findings import Findings, Verification
from pretrain.evidence.manifest import read_manifest
from pretrain.evidence.namespace import Parent

_SHA256 = re.compile(r"[0-9a-f]{64}")
_STEP_FOLDER = re.compile(r"step_[0-9]{8,}")


def checked_sha256(given: str | None) -> str | None:
    """What --expect-sha256 was given, in lowercase. Raises ConfigError for anything but 64 hex digits."""
    if given is not None and not _SHA256.fullmatch(given.lower()):
        raise ConfigError(f"--expect-sha256: expected 64 hex digits, found {given!r}")
    return None if given is None else given.lower()


def verify(path: Path, expect_sha256: str | None = None) -> Verification:
    """Check an attempt, its manifest.json, a run (its newest attempt) or a checkpoint, by reading alone.

    expect_sha256: what the SHA-256 of manifest.json (or checkpoint.json) must be; only this, or the child that
    bound it, finds a record that was rewritten with all its digests. Nothing in the files checked is taken as
    an option. Raises ConfigError for a path that is none of these; what is found is in the Verification.
    """
    expect_sha256 = checked_sha256(expect_sha256)
    folder, is_checkpoint = _locate(path)
    if is_checkpoint:
        return verification.verify_checkpoint_folder(folder, expect_sha256)
    return verification.verify_attempt(folder, expect_sha256)


def verify_lineage(path: Path, expect_sha256: str | None = None) -> list[Verification]:
    """Check an attempt and every attempt it goes on from, the newest first.

    Of a parent that is bound by a manifest, the attempt is checked; of one that is bound by a checkpoint, that
    checkpoint. An ancestor that is there without the record that was bound is reported as missing it; one whose
    folder is gone, as it may be, ends the list: see `cut_text`.
    """
    folder, is_checkpoint = _locate(path)
    found = [verify(path, expect_sha256)]
    while not is_checkpoint:
        try:
            above = _parent_of(folder)
        except (IntegrityError, StorageError) as error:
            if namespace.ENVIRONMENT not in found[-1].changed + found[-1].unsafe:
                found.append(_finding(folder, _kind_of(error), namespace.ENVIRONMENT, str(error)))
            break
        if above is None:
            break
        folder = namespace.attempt_folder(folder.parent.parent, above.attempt)
        if not folder.is_dir():
            break
        found.append(_verify_bound(folder, above))
    return found


def exit_code(reports: Sequence[Verification]) -> int:
    """0 where all of it verifies; 6 where nothing but reads that failed stands against that, else 3."""
    unsound = [report for report in reports if not report.sound]
    if unsound and all(report.is_only_unread for report in unsound):
        return StorageError.exit_code
    return 0 if not unsound and reports[0].ok else IntegrityError.exit_code


def cut_text(path: Path) -> str:
    """Say where the lineage of what `path` means goes on to an attempt that is not here; nothing where it does not."""
    folder, is_checkpoint = _locate(path)
    with contextlib.suppress(IntegrityError, StorageError):  # A record that cannot be read is among what was found.
        while not is_checkpoint and (above := _parent_of(folder)) is not None:
            folder = namespace.attempt_folder(folder.parent.parent, above.attempt)
            if not folder.is_dir():
                return f"its parent {folder.name} is not here: verified up to it\n"
    return ""


def migrations(report: Verification) -> list[dict[str, Any]]:
    """Where the lineage of an attempt that verifies became another run: `step`, and `keys` with old and new value."""
    path = report.path / metrics.NAME
    if not report.sound or not path.is_file():
        return []
    return [{"step": row["step"], "keys": row["keys"]} for row in metrics.migrations(path)]


def migration_text(row: Mapping[str, Any]) -> str:
    """The same of one row for a person."""
    changes = ", ".join(f"{key} {_shown(values)}" for key, values in row["keys"].items())
    return f"migrated at step {row['step']}, another run from there on: {changes}\n"


def _shown(values: Any) -> str:
    return " -> ".join("null" if value is None else str(value) for value in values)


def _parent_of(folder: Path) -> Parent | None:
    """What an attempt says that it goes on from."""
    path = folder / namespace.ENVIRONMENT
    if not os.path.lexists(path):
        return None
    return Parent.parse(namespace.read_environment(folder)["parent"], f"{path}: parent")


def _verify_bound(folder: Path, parent: Parent) -> Verification:
    """Check what the record of `parent` binds in its attempt, and that the record is there as it was bound."""
    if parent.kind == "manifest":
        if os.path.lexists(folder / namespace.MANIFEST):
            return verification.verify_attempt(folder, parent.record_sha256)
        name = namespace.MANIFEST
    else:
        unread = []
        for _, place in checkpoint.list_checkpoints(folder):
            try:
                is_it = reading.hash_file(place / RECORD_NAME).sha256 == parent.record_sha256
            except IntegrityError:
                continue
            except StorageError as error:  # It may be the one.
                unread.append((f"{place.relative_to(folder).as_posix()}/{RECORD_NAME}", str(error)))
                continue
            if is_it:
                return verification.verify_checkpoint_folder(place, parent.record_sha256)
        if unread:
            return _finding(folder, "unread", *unread[-1])
        name = RECORD_NAME
    return _finding(folder, "missing", name, f"its child is bound to one with SHA-256 {parent.record_sha256}")


def _kind_of(error: IntegrityError | StorageError) -> str:
    return "unread" if isinstance(error, StorageError) else "changed"


def _finding(folder: Path, kind: str, name: str, reason: str) -> Verification:
    findings = Findings(folder)
    findings.add(kind, name, reason)
    return findings.verification()


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
