"""The lock that gives one process the right to write one run, or one file."""

import fcntl
import os
from pathlib import Path
from typing import Self

from pretrain import syscalls
from pretrain.errors import BusyError, DisplacedError, StorageError
from pretrain.syscalls import writing


class Lock:
    """The right to write one run, or one file, held by `flock` until released or until the process dies."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self._fd = path, fd

    @classmethod
    def acquire(cls, path: Path, what: str, thing: str = "this run") -> "Lock":
        """Take the lock file `path`, made where missing. Raises BusyError, that `what` is written, or StorageError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        while True:
            with writing(path, "opening the lock"):
                lock = cls(path, syscalls.system.open(path, flags))
            try:
                with writing(path, "locking"):
                    syscalls.system.flock(lock._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
            with writing(self.path, "releasing the lock"):
                syscalls.system.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _is_still(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(fd))
    except (FileNotFoundError, NotADirectoryError):
        return False
