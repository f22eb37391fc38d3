"""The system calls that change or read a file, and what their failures say."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from pretrain.errors import IntegrityError, StorageError

_ADVICE = {
    errno.ENOSPC: "free space on this disk, then resume",
    errno.EDQUOT: "free space or raise the quota, then resume",
    errno.EROFS: "the file system is read-only: remount it, or choose another run.dir",
    errno.EACCES: "the folder must be writable for this user",
    errno.EPERM: "the folder must be writable for this user",
    errno.EMFILE: "raise the limit of open files (ulimit -n), then resume",
    errno.ENFILE: "the system is out of open files; close some, then resume",
    errno.EIO: "the disk reports a fault: check it before resuming from it",
    errno.ELOOP: "a link is in its place: move it away, then resume",
    errno.EISDIR: "a folder is in its place: move it away, then resume",
    errno.EFBIG: "a file may not become that large: raise the limit (ulimit -f), then resume",
}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_NOT_AS_WRITTEN = {
    *(errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM),
    *(errno.EISDIR, errno.ENXIO, errno.ENAMETOOLONG),
}


class System:
    """The system calls that change or read a file; tests put a failing one in the place of `system`."""

    def open(self, path: Path, flags: int, mode: int = 0o644) -> int:
        return os.open(path, flags, mode)

    def read(self, fd: int, count: int) -> bytes:
        return os.read(fd, count)

    def read_into(self, fd: int, buffer: memoryview) -> int:
        return os.readv(fd, [buffer])

    def write(self, fd: int, data: memoryview) -> int:
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def close(self, fd: int) -> None:
        os.close(fd)

    def replace(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def mkdir(self, path: Path) -> None:
        os.mkdir(path, 0o755)

    def rmdir(self, path: Path) -> None:
        os.rmdir(path)

    def flock(self, fd: int, operation: int) -> None:
        fcntl.flock(fd, operation)


system = System()


@contextlib.contextmanager
def writing(path: Path, action: str, *, repeatable: bool = True) -> Iterator[None]:
    """Turns the OSError of a write into a StorageError that names the path and what to do."""
    try:
        yield
    except OSError as error:
        is_full = repeatable and error.errno in _FULL
        raise StorageError(_storage_text(path, action, error), is_full=is_full) from error


def _storage_text(path: Path, action: str, error: OSError) -> str:
    advice = _ADVICE.get(error.errno or 0, "once this is mended the run resumes from its last checkpoint")
    if error.errno == errno.ENOSPC and _has_no_inodes(path.parent):
        advice = "the file system has no inodes left (df -i): remove files, then resume"
    return f"{path}: {action} failed: {error.strerror or error}; {advice}"


def _has_no_inodes(folder: Path) -> bool:
    """Whether it is files that a file system is full of; one that makes inodes as it needs them says 0 of 0."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_files > 0 and found.f_favail == 0


def reading_error(path: Path, error: OSError) -> IntegrityError | StorageError:
    if error.errno == errno.ENOENT:
        return IntegrityError(f"{path}: missing")
    if error.errno in _NOT_AS_WRITTEN:
        found = "a symlink" if error.errno == errno.ELOOP else (error.strerror or str(error)).lower()
        return IntegrityError(f"{path}: expected a readable regular file, found {found}")
    return StorageError(_storage_text(path, "reading", error))
