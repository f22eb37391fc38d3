"""The only writer: publish once, append, and remove."""

import contextlib
import errno
import hashlib
import itertools
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Self

from pretrain import progress, syscalls
from pretrain.errors import IntegrityError, StorageError
from pretrain.reading import BLOCK, Published, list_folder, walk
from pretrain.syscalls import writing

TEMPORARY = re.compile(r"\.tmp-[0-9]+-[0-9]+-.+", re.DOTALL)

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_serial = itertools.count(1)


def publish(path: Path, chunks: bytes | Iterable[bytes | memoryview], *, durable_folder: bool = True) -> Published:
    """Make `path` hold exactly `chunks`, whole or not at all, and return its size and hash.

    A temporary file in the same folder is written, fsynced and renamed over `path`; then the folder is
    fsynced (`durable_folder=False` leaves that to a caller who publishes several files there). Raises
    StorageError; before the rename the old file is untouched, and the temporary is removed, also when
    `chunks` itself raises.
    """
    temporary, fd = _new_temporary(path)
    published = False
    try:
        try:
            result = _write_hashed(fd, path, chunks)
            with writing(path, "fsync"):
                syscalls.system.fsync(fd)
        finally:
            with writing(path, "closing"):
                syscalls.system.close(fd)
        with writing(path, "renaming into place"):
            syscalls.system.replace(temporary, path)
        published = True
    finally:
        if not published:
            with contextlib.suppress(OSError):
                syscalls.system.unlink(temporary)
    if durable_folder:
        fsync_folder(path.parent)
    return result


def publish_folder(final: Path, write: Callable[[Path], None]) -> None:
    """Make the folder `final` appear whole: `write(temporary)` fills a sibling, which is fsynced and renamed.

    `write` uses `publish` for its files, so they are durable already; every folder inside is fsynced here.
    Raises StorageError, also when `final` exists, which names what it was to be; a failure leaves neither `final`
    nor, where it can be removed, the temporary.
    """
    if os.path.lexists(final):
        raise StorageError(f"{final}: exists already; nothing was written")
    temporary = _temporary_name(final)
    with writing(final, "making the folder"):
        syscalls.system.mkdir(temporary)
    published = False
    try:
        write(temporary)
        for name, kind in reversed(walk(temporary)):
            if kind == "folder":
                fsync_folder(temporary / name)
        fsync_folder(temporary)
        with writing(final, "renaming into place"):
            syscalls.system.replace(temporary, final)
        published = True
    except StorageError as error:  # A name that nobody finds afterwards says nothing to whoever reads it.
        lines = [str(line).replace(str(temporary), str(final)) for line in error.args]
        raise StorageError(*lines, is_full=error.is_full) from error
    finally:
        if not published:
            with contextlib.suppress(OSError, StorageError):
                _remove_tree(temporary)
    fsync_folder(final.parent)


def _temporary_name(path: Path) -> Path:
    return path.with_name(f".tmp-{os.getpid()}-{next(_serial)}-{path.name}")


def _new_temporary(path: Path) -> tuple[Path, int]:
    with writing(path, "creating a temporary file beside it"):
        while True:
            temporary = _temporary_name(path)
            # A dead process of the same number may have left this name: the next one is free.
            with contextlib.suppress(FileExistsError):
                return temporary, syscalls.system.open(temporary, _CREATE)


def _write_hashed(fd: int, path: Path, chunks: bytes | Iterable[bytes | memoryview]) -> Published:
    digest, total = hashlib.sha256(), 0
    for chunk in (chunks,) if isinstance(chunks, bytes | bytearray | memoryview) else chunks:
        view = memoryview(chunk).cast("B")
        for start in range(0, len(view), BLOCK):
            block = view[start : start + BLOCK]
            digest.update(block)
            with writing(path, "writing"):
                _write_fully(fd, block)
        total += len(view)
    return Published(total, digest.hexdigest())


def _write_fully(fd: int, data: memoryview) -> None:
    while data:
        written = syscalls.system.write(fd, data)
        if written <= 0:
            raise OSError(errno.EIO, "the system wrote nothing")
        progress.moved()
        data = data[written:]


class Appender:
    """One stream that only grows: each `append` is one write, `sync` makes what was appended durable.

    keep: cut the file to this many bytes first (IntegrityError when it is shorter); None = keep all of it.
    Creates the file, and makes its name durable, where there is none. A symlink or a non-regular file is
    refused. After a failed append the file is cut back to whole rows and can be used again; where that
    fails, and after any failed fsync, it is condemned and every further use raises StorageError.
    """

    def __init__(self, path: Path, keep: int | None = None) -> None:
        self.path = path
        self._condemned: str | None = None
        with writing(path, "opening for appending"):
            try:
                self._fd, created = syscalls.system.open(path, _APPEND | os.O_CREAT | os.O_EXCL), True
            except FileExistsError:
                self._fd, created = syscalls.system.open(path, _APPEND), False
        try:
            self.length = self._checked_length(keep)
            if created:
                fsync_folder(path.parent)
        except BaseException:  # There is no object yet whose owner could close the descriptor.
            self.close()
            raise

    def _checked_length(self, keep: int | None) -> int:
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            raise IntegrityError(f"{self.path}: expected a regular file to append to")
        if keep is None or keep == found.st_size:
            return found.st_size
        if keep > found.st_size:
            raise IntegrityError(
                f"{self.path}: expected {keep} bytes or more, found {found.st_size}; the stream was cut short"
            )
        with writing(self.path, "cutting back"):
            syscalls.system.truncate(self._fd, keep)
        return keep

    def append(self, data: bytes) -> None:
        """Add `data` at the end, all of it or none. Raises StorageError."""
        self._check_usable()
        with self._changing("appending"):
            try:
                _write_fully(self._fd, memoryview(data))
            except OSError as error:
                try:
                    syscalls.system.truncate(self._fd, self.length)
                except OSError:
                    self._condemned = f"a failed append ({error.strerror}) could not be taken back"
                raise
        self.length += len(data)

    def sync(self) -> None:
        """Make everything appended so far durable. Raises StorageError, and then for ever: see the class."""
        self._check_usable()
        with self._changing("fsync"):
            try:
                syscalls.system.fsync(self._fd)
            except OSError as error:
                # The kernel may drop the dirty pages and report the next fsync as good: never try it again.
                self._condemned = f"an fsync failed ({error.strerror})"
                raise

    @contextlib.contextmanager
    def _changing(self, action: str) -> Iterator[None]:
        """As `writing`; what has condemned the stream cannot be tried again."""
        try:
            with writing(self.path, action):
                yield
        except StorageError as error:
            error.is_full = error.is_full and self._condemned is None
            raise

    def _check_usable(self) -> None:
        if self._fd < 0:
            raise StorageError(f"{self.path}: the stream is closed")
        if self._condemned is not None:
            raise StorageError(f"{self.path}: refused, because {self._condemned}; resume in a new attempt")

    def close(self) -> None:
        """Give the descriptor back; does not sync. A second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with writing(self.path, "closing"):
                syscalls.system.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_folder(path: Path, *, is_durable: bool = True) -> None:
    """Make `path` and its missing parents, each name durable; a folder that is there is left as it is.

    is_durable: false where a process that was killed may have made what is there, before the name was durable; then
    it is made so.
    """
    if path.is_dir():
        # We make none in a folder that may not be read, and a mount point has its name on another file system.
        if not is_durable and os.access(path.parent, os.R_OK) and not os.path.ismount(path):
            fsync_folder(path.parent)
        return
    make_folder(path.parent, is_durable=is_durable)
    with writing(path, "making the folder"):
        try:
            syscalls.system.mkdir(path)
        except FileExistsError:
            if not path.is_dir():
                raise
    fsync_folder(path.parent)


def fsync_folder(path: Path) -> None:
    """Make the names in the folder `path` durable. Raises StorageError, which no second fsync would mend."""
    with writing(path, "fsync of the folder", repeatable=False):
        fd = syscalls.system.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            syscalls.system.fsync(fd)
        finally:
            syscalls.system.close(fd)


def remove_file(path: Path, *, durable_folder: bool = True) -> None:
    """Remove the file or symlink `path`; one that is already gone is no error. Raises StorageError."""
    with writing(path, "removing"), contextlib.suppress(FileNotFoundError):
        syscalls.system.unlink(path)
        if durable_folder:
            fsync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Remove the folder `path`, its files first; a link inside is removed, never followed.

    Raises StorageError. A folder that is already gone is no error; a symlink in its place is IntegrityError.
    """
    if path.is_symlink():
        raise IntegrityError(f"{path}: expected a folder, found a symlink; nothing was removed")
    if not path.exists():
        return
    with writing(path, "removing"):
        _remove_tree(path)
    fsync_folder(path.parent)


def _remove_tree(folder: Path) -> None:
    for name, kind in reversed(walk(folder)):
        (syscalls.system.rmdir if kind == "folder" else syscalls.system.unlink)(folder / name)
    syscalls.system.rmdir(folder)


def remove_temporaries(folder: Path, *, recursive: bool = True) -> list[str]:
    """Remove what a killed writer left under `folder`, return the names; for the owner of the lock only.

    recursive: false leaves everything alone that is inside a folder of another name.
    """
    removed: list[str] = []
    for name, kind in walk(folder) if recursive else sorted(list_folder(folder)):
        if not TEMPORARY.fullmatch(name.rpartition("/")[2]) or any(name.startswith(r + "/") for r in removed):
            continue
        with writing(folder / name, "removing a temporary"):
            if kind == "folder":
                _remove_tree(folder / name)
            else:
                syscalls.system.unlink(folder / name)
        removed.append(name)
    return removed
