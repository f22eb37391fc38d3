"""What a verification found, file by file, and how it is told."""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretrain import reading
from pretrain.errors import IntegrityError, StorageError

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Verification:
    """What was found; a name is relative to `path`, and that of a folder ends in a slash.

    extra: there, but no record names it. missing: named, but not there. changed: other bytes than were bound, a
    record that was altered, or a file that cannot be read. unsafe: a symlink, or no regular file. unfinished: an
    attempt without a manifest, of which all that its checkpoints bind was checked. parent_ok: whether the record
    that the attempt goes on from lies beside it, as it was bound; None = there is none, or its attempt is not beside
    this one. reasons: one sentence for each finding.

    unread: those of `changed` of which nothing is known but that the system reported an error while they were read.
    is_parent_unread: parent_ok is False because a record that may be the parent's cannot be read.
    """

    path: Path
    num_files: int
    manifest_sha256: str | None
    record_sha256: str | None
    unfinished: bool
    extra: tuple[str, ...]
    missing: tuple[str, ...]
    changed: tuple[str, ...]
    unsafe: tuple[str, ...]
    parent_ok: bool | None
    reasons: tuple[str, ...]
    unread: tuple[str, ...] = ()
    is_parent_unread: bool = False

    @property
    def sound(self) -> bool:
        """All that is bound was found as bound, which can be said of an unfinished attempt as well."""
        return not (self.extra or self.missing or self.changed or self.unsafe or self.parent_ok is False)

    @property
    def is_only_unread(self) -> bool:
        """It is not sound, for nothing else than reads that failed: a fault of the disk, which a copy does not mend."""
        is_parent_bad = self.parent_ok is False and not self.is_parent_unread
        others = self.extra or self.missing or self.unsafe or set(self.changed) - set(self.unread)
        return not self.sound and not others and not is_parent_bad

    @property
    def ok(self) -> bool:
        """Sound, and bound by a record that could be read: nothing is left to finish."""
        return self.sound and not self.unfinished and (self.manifest_sha256 or self.record_sha256) is not None

    def answer(self) -> dict[str, Any]:
        """What `verify-manifest --json` prints."""
        names = ("ok", "manifest_sha256", "unfinished", "extra", "missing", "changed", "unsafe", "parent_ok")
        values = {name: getattr(self, name) for name in names}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def text(self) -> str:
        """The same for a person, one line for each finding."""
        if self.ok:
            record = "checkpoint.json" if self.manifest_sha256 is None else "manifest.json"
            parent = ", and the parent is as it was bound" if self.parent_ok else ""
            path = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], str(self.path))
            return (
                f"{path}: verified, {self.num_files} files{parent}\n"
                f"{record} has SHA-256 {self.manifest_sha256 or self.record_sha256}\n"
                "Note this hash elsewhere: --expect-sha256 finds what was rewritten together with its digests.\n"
            )
        fault = "cannot be read" if self.is_only_unread else "does not verify"
        lines = [f"{self.path}: {'unfinished' if self.sound else fault}"]
        for kind in ("extra", "missing", "changed", "unsafe", "unread"):
            names = [name for name in getattr(self, kind) if kind != "changed" or name not in self.unread]
            lines += [f"{kind}: {name}" for name in names]
        # A name may hold anything, also what a terminal obeys.
        lines += [f"  {reason}" for reason in self.reasons]
        return "".join((line if line.isprintable() else ascii(line)) + "\n" for line in lines)


class Findings:
    """What was found so far in one folder, which is listed once, here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kinds = {_encodable(name): kind for name, kind in reading.walk(folder)}
        self._found: dict[str, set[str]] = {kind: set() for kind in ("extra", "missing", "changed", "unsafe", "unread")}
        self._reasons: list[tuple[str, str]] = []  # what each is about, "" = no single file, and what it says
        self._verified: set[str] = set()
        self.is_parent_unread = False

    def add(self, kind: str, name: str, reason: str) -> None:
        """Put `name` under extra, missing, changed, unsafe or unread."""
        self._found[kind].add(name)
        self.explain(f"{name}: {reason}", name)

    def explain(self, reason: str, name: str = "") -> None:
        """Say something about `name`, or about no single file."""
        self._reasons.append((name, _encodable(reason)))

    def forget(self, folder: str) -> None:
        """Take back all about the files below a folder, named `a/`, that was taken away while they were looked at."""
        for names in (*self._found.values(), self._verified):
            names.difference_update([name for name in names if name.startswith(folder)])
        self._reasons = [(name, reason) for name, reason in self._reasons if not name.startswith(folder)]

    def is_regular(self, name: str) -> bool:
        """Whether `name` is there and may be opened; a folder in its place is unsafe."""
        if self.kinds.get(name) == "folder":
            self.add("unsafe", name, "expected a regular file, found a folder")
        return self.kinds.get(name) == "file"

    def is_good(self, name: str) -> bool:
        """Whether the file `name` was found as it was bound, and nothing else about it."""
        return name in self._verified and not any(name in names for names in self._found.values())

    def is_sound(self, *names: str) -> bool:
        """Whether nothing was found about these files so far, nor about anything below these folders, named `a/`."""
        folders = tuple(name for name in names if name.endswith("/"))
        return not any(name in names or name.startswith(folders) for found in self._found.values() for name in found)

    @contextlib.contextmanager
    def changing(self, name: str) -> Iterator[None]:
        """Whatever is raised about the file `name` while it is read becomes a finding."""
        try:
            yield
        except (IntegrityError, StorageError) as error:
            self._fault(name, error)

    def unread(self, *names: str) -> list[str]:
        """Those of these files that could not be read, and of what lies below these folders, named `a/`."""
        folders = tuple(name for name in names if name.endswith("/"))
        return sorted(name for name in self._found["unread"] if name in names or name.startswith(folders))

    def _fault(self, name: str, error: IntegrityError | StorageError) -> None:
        # A disk that cannot read one file back is no reason to say nothing about the others.
        self._found["unread" if isinstance(error, StorageError) else "changed"].add(name)
        self.explain(str(error), name)

    def check_files(self, bound: Mapping[str, tuple[int, str]], bound_by: str, judged: Callable[[str], bool]) -> None:
        """Every bound file is there with its size and SHA-256, and every other name that is `judged` is extra.

        Links and special files are unsafe wherever they are; nothing but a regular file is opened.
        """
        folders = {path[:end] for path in bound for end, letter in enumerate(path) if letter == "/"}
        for name, kind in self.kinds.items():
            if kind in ("link", "other") or (kind == "folder" and name in bound):
                self.add("unsafe", name, f"expected a regular file, found a {kind}")
            elif kind == "folder" and name not in folders and judged(name + "/"):
                self.add("extra", name + "/", f"{bound_by} names nothing in this folder")
            elif kind == "file" and name not in bound and judged(name):
                self.add("extra", name, f"{bound_by} does not name it")
        there = [name for name in bound if self.kinds.get(name) == "file"]
        faults = reading.verify_all([(self.folder / name, *bound[name]) for name in there])
        found = dict(zip(there, faults, strict=True))
        for name in bound:
            if name not in self.kinds:
                self.add("missing", name, f"named by {bound_by}, but not there")
            elif (fault := found.get(name)) is not None:
                self._fault(name, fault)
            elif name in found:
                self._verified.add(name)

    def verification(
        self,
        *,
        manifest_sha256: str | None = None,
        record_sha256: str | None = None,
        unfinished: bool = False,
        parent_ok: bool | None = None,
    ) -> Verification:
        """Everything that was found."""
        return Verification(
            path=self.folder,
            num_files=len(self._verified),
            manifest_sha256=manifest_sha256,
            record_sha256=record_sha256,
            unfinished=unfinished,
            extra=tuple(sorted(self._found["extra"])),
            missing=tuple(sorted(self._found["missing"])),
            changed=tuple(sorted(self._found["changed"] | self._found["unread"])),
            unsafe=tuple(sorted(self._found["unsafe"])),
            parent_ok=parent_ok,
            reasons=tuple(reason for _, reason in self._reasons),
            unread=tuple(sorted(self._found["unread"] - self._found["changed"])),
            is_parent_unread=self.is_parent_unread,
        )


def _encodable(name: str) -> str:
    """A name that is not UTF-8 is told with its bytes escaped; no record can hold such a name."""
    return name.encode("utf-8", "backslashreplace").decode()
