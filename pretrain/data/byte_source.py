"""Random access to the bytes of a file, by pread alone: the process never maps or holds what it has read."""

import os
import stat
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pretrain import progress
from pretrain.data.windows import SourceFile
from pretrain.errors import DataError, IntegrityError, StorageError
from pretrain.reading import hash_file, walk

# Files of one source that stay open; with more of them each read opens its file again, so that a folder of a
# million documents does not run into the limit of open files.
KEEP_OPEN = 128
_SCAN_BYTES = 4 << 20
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True)
class _Seen:
    """What a stat says of a file: equal as long as nobody writes to it or puts another in its place."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


class ByteSource(Protocol):
    """A fixed string of bytes that can be read from any offset, from several threads at once."""

    @property
    def file(self) -> SourceFile:
        """Path, size and SHA-256."""

    def read_into(self, offset: int, buffer: NDArray[np.uint8]) -> None:
        """Fill the contiguous 1-D `buffer` from `offset`. Raises DataError at the end of the file."""

    def check_unchanged(self) -> None:
        """Raise DataError when the file is no longer the one that was hashed, by what a stat says."""


class MemoryBytes:
    """The bytes of a builtin."""

    def __init__(self, name: str, content: bytes) -> None:
        self.file = SourceFile(name, len(content), sha256(content).hexdigest())
        self._content = np.frombuffer(content, dtype=np.uint8)

    def read_into(self, offset: int, buffer: NDArray[np.uint8]) -> None:
        """See `ByteSource.read_into`."""
        buffer[:] = self._content[offset : offset + len(buffer)]

    def check_unchanged(self) -> None:
        """Nothing can change it."""


class FileBytes:
    """A regular file, hashed when it is opened and held to what a stat said of it then."""

    def __init__(self, path: Path, *, keep_open: bool = True) -> None:
        """Raises DataError when `path` is missing, a link or no regular file, StorageError on I/O errors."""
        before = _look(path)
        try:
            published = hash_file(path)
        except IntegrityError as error:
            raise DataError(f"{error}; {_advice(path)}") from error
        self.path = path
        self.file = SourceFile(str(path), published.bytes, published.sha256)
        fd = _open(path)
        self._seen = _seen(os.fstat(fd))
        self._fd: int | None = None
        if keep_open:
            self._fd = fd
            weakref.finalize(self, os.close, fd)
        else:
            os.close(fd)
        if self._seen != before or self._seen.size != published.bytes:
            raise DataError(f"{path}: was written to or replaced while it was hashed; start again when it is complete")

    def read_into(self, offset: int, buffer: NDArray[np.uint8]) -> None:
        """See `ByteSource.read_into`; also raises DataError when a file that is not kept open has changed."""
        if self._fd is not None:
            self._fill(self._fd, offset, buffer)
            return
        fd = _open(self.path)
        try:
            self._compare(_seen(os.fstat(fd)))
            self._fill(fd, offset, buffer)
        finally:
            os.close(fd)

    def check_unchanged(self) -> None:
        """See `ByteSource.check_unchanged`."""
        # By name, not by descriptor: a name that still leads to the hashed inode leads to what is read, too.
        self._compare(_look(self.path))
        progress.moved()  # one file of a million, perhaps on a server

    def _compare(self, now: "_Seen | None") -> None:
        if now == self._seen:
            return
        if now is None:
            found = "removed"
        elif (now.device, now.inode) != (self._seen.device, self._seen.inode):
            found = "replaced by another file"
        elif now.size != self._seen.size:
            found = f"changed from {self._seen.size} to {now.size} bytes"
        else:
            found = "written to, or its attributes were changed,"
        raise DataError(
            f"{self.path}: {found} since this run hashed it (SHA-256 {self.file.sha256[:16]}...); "
            "put the file back as it was, then resume from the last checkpoint"
        )

    def blocks(self, begin: int, end: int, multiple: int = 1) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield (offset, bytes) over [begin, end) in blocks of whole `multiple`s; the buffer is reused."""
        size = max(_SCAN_BYTES // multiple, 1) * multiple
        buffer = np.empty(min(size, max(end - begin, 0)), dtype=np.uint8)
        for offset in range(begin, end, size):
            block = buffer[: min(size, end - offset)]
            self.read_into(offset, block)
            yield offset, block

    def _fill(self, fd: int, offset: int, buffer: NDArray[np.uint8]) -> None:
        left = buffer.data
        while left:
            try:
                count = os.preadv(fd, [left], offset)
            except OSError as error:
                raise StorageError(
                    f"{self.path}: reading {len(left)} bytes at {offset} failed: {error.strerror or error}; "
                    "check the disk, then resume"
                ) from error
            if count == 0:
                raise DataError(
                    f"{self.path}: expected {self.file.bytes} bytes as at the start, found the end at byte "
                    f"{offset}; put the file back as it was, then resume"
                )
            progress.moved()
            left, offset = left[count:], offset + count


def files_below(folder: Path) -> list[Path]:
    """Every regular file below `folder`, sorted by relative path; DataError at a symlink or special file.

    What is hidden, by a name that begins with a point, is left out with all that is below it.
    """
    try:
        found = [(name, kind) for name, kind in walk(folder) if not f"/{name}".count("/.")]
    except IntegrityError as error:
        raise DataError(f"{error}; expected a folder of data files") from error
    for relative, kind in found:
        if kind in ("link", "other"):
            raise DataError(
                f"{folder / relative}: expected only regular files and folders below {folder}, found "
                f"{'a symlink' if kind == 'link' else 'a special file'}; move it away, or name one file"
            )
    return [folder / relative for relative, kind in found if kind == "file"]


def _seen(found: os.stat_result) -> _Seen:
    return _Seen(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _look(path: Path) -> _Seen | None:
    """Stat the name itself; None when there is nothing under it."""
    try:
        return _seen(os.stat(path, follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DataError(f"{path}: cannot be looked at: {error.strerror or error}") from error


def _advice(path: Path) -> str:
    if path.is_symlink():
        return "data files are read under their own name, never through a link: name its target"
    return "a relative path starts at the folder that the command runs in"


def _open(path: Path) -> int:
    try:
        fd = os.open(path, _FLAGS)
    except OSError as error:
        raise DataError(f"{path}: cannot be opened: {error.strerror or error}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DataError(f"{path}: expected a regular file, found something else")
    return fd
