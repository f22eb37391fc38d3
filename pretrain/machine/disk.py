"""The file system below a path: what is free on it, and what kind it is."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
# By the name that the kernel gives it, before the first point: what lies on another machine or is served by a process.
_REMOTE = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "9p", "virtiofs", "vboxsf", "vmhgfs", "prl_fs"),
    *("fuse", "fuseblk", "fusectl", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "orangefs", "pvfs2", "panfs"),
    *("ocfs2", "gfs2", "coda", "wekafs", "davfs"),
}


@dataclass(frozen=True)
class Space:
    """What a user may still write: bytes, and files, None where the system does not say or has no limit."""

    bytes: int | None = None
    files: int | None = None


def free_space(path: Path) -> Space:
    """Return what is free on the file system of `path`, or of the nearest folder above it that there is."""
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    try:
        found = os.statvfs(path)
    except OSError:
        return Space()
    return Space(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None)


def free_bytes(path: Path) -> int | None:
    """Return what a user may still write to the file system of `path`; None where it does not say."""
    return free_space(path).bytes if os.path.lexists(path) else None


def kind_of(path: Path) -> str | None:
    """Return the kind of the file system that `path` is or will be on, such as ext4; None where Linux does not say."""
    try:
        lines = _MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    place, longest, kind = path.resolve(), -1, None
    for line in lines:
        # number parent major:minor root POINT options [tag ...] - KIND source options
        fields, _, rest = line.partition(" - ")
        point = Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields.split(" ")[4]))
        # Of two mounts at one point the later lies above the earlier.
        if place.is_relative_to(point) and len(point.parts) >= longest:
            longest, kind = len(point.parts), rest.split(" ")[0]
    return kind


def is_remote(kind: str | None) -> bool:
    """Whether a file system of this kind may not keep what a local one keeps of rename, fsync and flock."""
    return kind is not None and kind.split(".")[0] in _REMOTE
