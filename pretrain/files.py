"""The only writer: publish once, append, remove, lock, and read back through one verified descriptor."""

import contextlib
import errno
import fcntl
import hashlib
import itertools
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pretrain import progress
from pretrain.errors import BusyError, DisplacedError, IntegrityError, StorageError

BLOCK = 1 << 20  # bytes at a time: large enough to stream, small enough to hash from the cache
THREADS_FROM = 8 << 20  # bytes to verify in all, from which on threads pay
THREADS_LIMIT = 16
TEMPORARY = re.compile(r"\.tmp-[0-9]+-[0-9]+-.+", re.DOTALL)

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # NONBLOCK: opening a FIFO must not wait
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_serial = itertools.count(1)

_ADVICE = {
    errno.ENOSPC: "free space on this disk, then resume",
    errno.EDQUOT: "free space or raise the quota, then resume",
    errno.EROFS: "the file system is read-only: remount it, or choose another run.dir",
    errno.EACCES: "the folder must be writable for this user",
    errno.EPERM: "the folder must be writable for this user",
    errno.EMFILE: "raise the limit of open files (ulimit -n), then resume",
    errno.ENFILE: "the system is out of open files; close some, then resume",
    errno.EIO: "the disk reports a fault: check it before resuming from it",
    errno.EFBIG: "a file may not become that large: raise the limit (ulimit -f), then resume",
}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_NOT_AS_WRITTEN = {
    *(errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM),
    *(errno.EISDIR, errno.ENXIO, errno.ENAMETOOLONG),
}

Kind = Literal["file", "folder", "link", "other"]


class System:
    """The system calls that change or read a file; tests put a failing one in the place of `files.system`."""

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


@dataclass(frozen=True)
class Published:
    """What a file holds: its size and the SHA-256 of its bytes in lowercase hex."""

    bytes: int
    sha256: str


@contextlib.contextmanager
def _writing(path: Path, action: str, *, repeatable: bool = True) -> Iterator[None]:
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


# --- writing -------------------------------------------------------------------------------------------


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
            with _writing(path, "fsync"):
                system.fsync(fd)
        finally:
            with _writing(path, "closing"):
                system.close(fd)
        with _writing(path, "renaming into place"):
            system.replace(temporary, path)
        published = True
    finally:
        if not published:
            with contextlib.suppress(OSError):
                system.unlink(temporary)
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
    with _writing(final, "making the folder"):
        system.mkdir(temporary)
    published = False
    try:
        write(temporary)
        for name, kind in reversed(walk(temporary)):
            if kind == "folder":
                fsync_folder(temporary / name)
        fsync_folder(temporary)
        with _writing(final, "renaming into place"):
            system.replace(temporary, final)
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
    with _writing(path, "creating a temporary file beside it"):
        while True:
            temporary = _temporary_name(path)
            # A dead process of the same number may have left this name: the next one is free.
            with contextlib.suppress(FileExistsError):
                return temporary, system.open(temporary, _CREATE)


def _write_hashed(fd: int, path: Path, chunks: bytes | Iterable[bytes | memoryview]) -> Published:
    digest, total = hashlib.sha256(), 0
    for chunk in (chunks,) if isinstance(chunks, bytes | bytearray | memoryview) else chunks:
        view = memoryview(chunk).cast("B")
        for start in range(0, len(view), BLOCK):
            block = view[start : start + BLOCK]
            digest.update(block)
            with _writing(path, "writing"):
                _write_fully(fd, block)
        total += len(view)
    return Published(total, digest.hexdigest())


def _write_fully(fd: int, data: memoryview) -> None:
    while data:
        written = system.write(fd, data)
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
        with _writing(path, "opening for appending"):
            try:
                self._fd, created = system.open(path, _APPEND | os.O_CREAT | os.O_EXCL), True
            except FileExistsError:
                self._fd, created = system.open(path, _APPEND), False
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
        with _writing(self.path, "cutting back"):
            system.truncate(self._fd, keep)
        return keep

    def append(self, data: bytes) -> None:
        """Add `data` at the end, all of it or none. Raises StorageError."""
        self._check_usable()
        with self._changing("appending"):
            try:
                _write_fully(self._fd, memoryview(data))
            except OSError as error:
                try:
                    system.truncate(self._fd, self.length)
                except OSError:
                    self._condemned = f"a failed append ({error.strerror}) could not be taken back"
                raise
        self.length += len(data)

    def sync(self) -> None:
        """Make everything appended so far durable. Raises StorageError, and then for ever: see the class."""
        self._check_usable()
        with self._changing("fsync"):
            try:
                system.fsync(self._fd)
            except OSError as error:
                # The kernel may drop the dirty pages and report the next fsync as good: never try it again.
                self._condemned = f"an fsync failed ({error.strerror})"
                raise

    @contextlib.contextmanager
    def _changing(self, action: str) -> Iterator[None]:
        """As `_writing`; what has condemned the stream cannot be tried again."""
        try:
            with _writing(self.path, action):
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
            with _writing(self.path, "closing"):
                system.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- folders and removal -------------------------------------------------------------------------------


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
    with _writing(path, "making the folder"):
        try:
            system.mkdir(path)
        except FileExistsError:
            if not path.is_dir():
                raise
    fsync_folder(path.parent)


def fsync_folder(path: Path) -> None:
    """Make the names in the folder `path` durable. Raises StorageError, which no second fsync would mend."""
    with _writing(path, "fsync of the folder", repeatable=False):
        fd = system.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            system.fsync(fd)
        finally:
            system.close(fd)


def remove_file(path: Path, *, durable_folder: bool = True) -> None:
    """Remove the file or symlink `path`; one that is already gone is no error. Raises StorageError."""
    with _writing(path, "removing"), contextlib.suppress(FileNotFoundError):
        system.unlink(path)
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
    with _writing(path, "removing"):
        _remove_tree(path)
    fsync_folder(path.parent)


def _remove_tree(folder: Path) -> None:
    for name, kind in reversed(walk(folder)):
        (system.rmdir if kind == "folder" else system.unlink)(folder / name)
    system.rmdir(folder)


def remove_temporaries(folder: Path, *, recursive: bool = True) -> list[str]:
    """Remove what a killed writer left under `folder`, return the names; for the owner of the lock only.

    recursive: false leaves everything alone that is inside a folder of another name.
    """
    removed: list[str] = []
    for name, kind in walk(folder) if recursive else sorted(_list(folder)):
        if not TEMPORARY.fullmatch(name.rpartition("/")[2]) or any(name.startswith(r + "/") for r in removed):
            continue
        with _writing(folder / name, "removing a temporary"):
            if kind == "folder":
                _remove_tree(folder / name)
            else:
                system.unlink(folder / name)
        removed.append(name)
    return removed


# --- the lock ------------------------------------------------------------------------------------------


class Lock:
    """The right to write one run, or one file, held by `flock` until released or until the process dies."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self._fd = path, fd

    @classmethod
    def acquire(cls, path: Path, what: str, thing: str = "this run") -> "Lock":
        """Take the lock file `path`, made where missing. Raises BusyError, that `what` is written, or StorageError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        while True:
            with _writing(path, "opening the lock"):
                lock = cls(path, system.open(path, flags))
            try:
                with _writing(path, "locking"):
                    system.flock(lock._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except StorageError as error:
                lock.release()
                if isinstance(error.__cause__, BlockingIOError):
                    raise BusyError(f"{what}: another process writes {thing}; wait for its end, or stop it") from error
                raise
            if _is_still(path, lock._fd):
                return lock
            lock.release()  # another process removed the file in between: lock the new one

    def check(self) -> None:
        """Raise DisplacedError where `path` is no longer the file that is locked: nobody else is kept from writing."""
        if not _is_still(self.path, self._fd):
            raise DisplacedError(
                f"{self.path}: not the lock that this process took; its folder was moved, removed or replaced, or the "
                "lock was removed, and nothing more is written there"
            )

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with _writing(self.path, "releasing the lock"):
                system.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _is_still(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(fd))
    except (FileNotFoundError, NotADirectoryError):
        return False


# --- reading back --------------------------------------------------------------------------------------


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
            listed = _list(folder / prefix)
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


def _list(folder: Path) -> list[tuple[str, Kind]]:
    try:
        with os.scandir(folder) as entries:
            return [(entry.name, _kind(entry)) for entry in entries]
    except OSError as error:
        raise _reading_error(folder, error) from error


def _kind(entry: os.DirEntry[str]) -> Kind:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


def _open_regular(path: Path) -> tuple[int, int]:
    try:
        fd = system.open(path, _READ)
    except OSError as error:
        raise _reading_error(path, error) from error
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise IntegrityError(f"{path}: expected a regular file, found something else")
    return fd, found.st_size


def _reading_error(path: Path, error: OSError) -> IntegrityError | StorageError:
    if error.errno == errno.ENOENT:
        return IntegrityError(f"{path}: missing")
    if error.errno in _NOT_AS_WRITTEN:
        found = "a symlink" if error.errno == errno.ELOOP else (error.strerror or str(error)).lower()
        return IntegrityError(f"{path}: expected a readable regular file, found {found}")
    return StorageError(_storage_text(path, "reading", error))


def _blocks(path: Path, fd: int) -> Iterator[bytes]:
    while True:
        try:
            block = system.read(fd, BLOCK)
        except OSError as error:
            raise _reading_error(path, error) from error
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
            count = system.read_into(fd, buffer)
        except OSError as error:
            raise _reading_error(path, error) from error
        if not count:
            break
        digest.update(buffer[:count])
        progress.moved()
        total += count
    return Published(total, digest.hexdigest())
