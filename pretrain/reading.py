"""Reading back: open once, refuse what is no regular file, check size and then hash, load from the same descriptor."""

import hashlib
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pretrain import progress, syscalls
from pretrain.errors import IntegrityError, StorageError
from pretrain.syscalls import reading_error

BLOCK = 1 << 20  # bytes at a time: large enough to stream, small enough to hash from the cache
THREADS_FROM = 8 << 20  # bytes to verify in all, from which on threads pay
THREADS_LIMIT = 16

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # NONBLOCK: opening a FIFO must not wait

Kind = Literal["file", "folder", "link", "other"]


@dataclass(frozen=True)
class Published:
    """What a file holds: its size and the SHA-256 of its bytes in lowercase hex."""

    bytes: int
    sha256: str


def read_regular(path: Path, *, limit: int) -> bytes:
    """All bytes of the regular file `path`, opened once without following a link.

    Raises IntegrityError when it is missing, no regular file or larger than `limit` bytes.
    """
    fd, size = _open_regular(path)
    try:
        if size > limit:
            raise IntegrityError(f"{path}: expected at most {limit} bytes, found {size}")
        content = bytearray()
        for block in _blocks(path, fd):
            content += block
            if len(content) > limit:
                raise IntegrityError(f"{path}: grew past {limit} bytes while it was read")
        return bytes(content)
    finally:
        os.close(fd)


def read_blocks(path: Path) -> Iterator[bytes]:
    """The regular file `path` in blocks of at most 1 MiB, opened once without following a link."""
    fd, _ = _open_regular(path)
    try:
        yield from _blocks(path, fd)
    finally:
        os.close(fd)


def hash_file(path: Path) -> Published:
    """Size and SHA-256 of the regular file `path`, streamed. Raises IntegrityError."""
    fd, size = _open_regular(path)
    try:
        return _hash(path, fd, size)
    finally:
        os.close(fd)


class Verified:
    """A descriptor at the start of a file whose size and then hash were found as expected; the caller closes `fd`.

    What is read from it is of the file that was verified, whatever happens to the name meanwhile. Once all is read,
    `check` says whether its bytes are, too.
    """

    def __init__(self, path: Path, fd: int, before: os.stat_result) -> None:
        self.path, self.fd, self._before = path, fd, before

    def check(self) -> None:
        """Raise IntegrityError where the file was written to since before its hash was taken.

        Also with the old times put back, which leaves a trace of its own. Pages that another process has mapped and
        changed before leave none.
        """
        before, now = self._before, os.fstat(self.fd)
        touched = before.st_ctime_ns != now.st_ctime_ns and before.st_nlink == now.st_nlink  # else linked, or removed
        if touched or (before.st_mtime_ns, before.st_size) != (now.st_mtime_ns, now.st_size):
            raise IntegrityError(f"{self.path}: it was changed while it was read; find out what writes to it")


def open_verified(path: Path, bytes_: int, sha256: str) -> Verified:
    """Open `path` after its size and then its hash were found as expected; raises IntegrityError naming the file."""
    return _open_verified(path, bytes_, sha256, threading.Event())


def verify_all(expected: Sequence[tuple[Path, int, str]]) -> list[IntegrityError | StorageError | None]:
    """What is wrong with each of these files, given as path, size and SHA-256, in their order; None = nothing.

    Large ones are hashed in several threads, which a signal ends at their next block: a hash leaves the interpreter
    free, and each thread holds one block. The largest come first, since one file is never divided.
    """
    stopped = threading.Event()
    cores = min(len(expected), len(os.sched_getaffinity(0)), THREADS_LIMIT)
    if cores < 2 or sum(size for _, size, _ in expected) < THREADS_FROM:
        return [_fault_of(*file, stopped) for file in expected]
    from concurrent.futures import ThreadPoolExecutor  # most verifications are small, and do without

    order = sorted(range(len(expected)), key=lambda place: (-expected[place][1], place))
    pool = ThreadPoolExecutor(cores)
    try:
        running = {place: pool.submit(_fault_of, *expected[place], stopped) for place in order}
        return [running[place].result() for place in range(len(expected))]
    finally:
        stopped.set()  # Whatever came in between, nobody waits for the end of a large file.
        pool.shutdown(cancel_futures=True)


def _fault_of(path: Path, bytes_: int, sha256: str, stopped: threading.Event) -> IntegrityError | StorageError | None:
    try:
        os.close(_open_verified(path, bytes_, sha256, stopped).fd)
    except (IntegrityError, StorageError) as error:
        return error
    return None


def _open_verified(path: Path, bytes_: int, sha256: str, stopped: threading.Event) -> Verified:
    fd, size = _open_regular(path)
    try:
        before = os.fstat(fd)
        if size != bytes_:
            raise IntegrityError(f"{path}: expected {bytes_} bytes, found {size}")
        found = _hash(path, fd, size, stopped)
        if found.sha256 != sha256:
            raise IntegrityError(f"{path}: expected SHA-256 {sha256}, found {found.sha256}")
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:  # The caller only gets, and closes, what was verified.
        os.close(fd)
        raise
    return Verified(path, fd, before)


def walk(folder: Path) -> list[tuple[str, Kind]]:
    """Everything under `folder` as (relative POSIX path, kind), sorted; links are named, never followed.

    A folder below it that a writer has removed in the meantime is not there.
    """
    found: list[tuple[str, Kind]] = []
    unvisited = [""]
    while unvisited:
        prefix = unvisited.pop()
        try:
            listed = list_folder(folder / prefix)
        except IntegrityError:
            if not prefix or os.path.lexists(folder / prefix):
                raise
            found.remove((prefix[:-1], "folder"))
            continue
        for name, kind in listed:
            found.append((prefix + name, kind))
            if kind == "folder":
                unvisited.append(f"{prefix}{name}/")
    return sorted(found)


def list_folder(folder: Path) -> list[tuple[str, Kind]]:
    try:
        with os.scandir(folder) as entries:
            return [(entry.name, _kind(entry)) for entry in entries]
    except OSError as error:
        raise reading_error(folder, error) from error


def _kind(entry: os.DirEntry[str]) -> Kind:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


def _open_regular(path: Path) -> tuple[int, int]:
    try:
        fd = syscalls.system.open(path, _READ)
    except OSError as error:
        raise reading_error(path, error) from error
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise IntegrityError(f"{path}: expected a regular file, found something else")
    return fd, found.st_size


def _blocks(path: Path, fd: int) -> Iterator[bytes]:
    while True:
        try:
            block = syscalls.system.read(fd, BLOCK)
        except OSError as error:
            raise reading_error(path, error) from error
        progress.moved()
        if not block:
            return
        yield block


def _hash(path: Path, fd: int, size: int, stopped: threading.Event | None = None) -> Published:
    """Size and SHA-256 of what is read from `fd`, of about `size` bytes; a hash that was `stopped` is of no use."""
    digest, total = hashlib.sha256(), 0
    buffer = memoryview(bytearray(max(4096, min(BLOCK, size))))
    while stopped is None or not stopped.is_set():
        try:
            count = syscalls.system.read_into(fd, buffer)
        except OSError as error:
            raise reading_error(path, error) from error
        if not count:
            break
        digest.update(buffer[:count])
        progress.moved()
        total += count
    return Published(total, digest.hexdigest())
