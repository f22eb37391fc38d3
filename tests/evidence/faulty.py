"""The real system with one failing call, and an action under each of them in turn."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pretrain import reading, syscalls
from pretrain.errors import StorageError

OLD, NEW = b"old content\n" * 50, bytes(range(256)) * 37
ERRORS = [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE]


ERRORS = [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE]


CALLS = (
    "open",
    "read",
    "read_into",
    "write",
    "fsync",
    "truncate",
    "close",
    "replace",
    "unlink",
    "mkdir",
    "rmdir",
    "flock",
)


class Faulty(syscalls.System):
    """The real system, whose call number `at` fails: that one only, or every one `from_then_on`.

    short: every write takes at most this many bytes.
    """

    def __init__(self, at: int = 0, error: int = 0, from_then_on: bool = False, short: int = 0) -> None:
        self.at, self.error, self.from_then_on, self.short = at, error, from_then_on, short
        self.calls: list[str] = []
        self.unlink_failed = False

    def __getattribute__(self, name: str) -> Any:
        attribute = super().__getattribute__(name)
        return (lambda *arguments: self._call(name, attribute, *arguments)) if name in CALLS else attribute

    def _call(self, name: str, real: Callable[..., Any], *arguments: Any) -> Any:
        self.calls.append(name)
        count = len(self.calls)
        if name == "write" and self.short:
            arguments = (arguments[0], arguments[1][: self.short])
        fails = self.error and (count == self.at or (self.from_then_on and count > self.at))
        if fails and name == "close":
            real(*arguments)  # Linux gives the descriptor back even when close reports an error
        if fails:
            self.unlink_failed |= name in ("unlink", "rmdir")
            raise OSError(self.error, os.strerror(self.error))
        # Only a power cut tells whether an fsync was one, and real ones take most of the time of this file.
        return None if name == "fsync" else real(*arguments)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def faults(
    monkeypatch: pytest.MonkeyPatch, prepare: Callable[[], Callable[[], Any]], short: int = 0
) -> Iterator[tuple[Faulty, BaseException | None]]:
    """Run what `prepare` returns with call 1, 2, 3 ... failing, until none fails; yields after each."""
    for error in ERRORS:
        for from_then_on in (False, True):
            for at in range(1, 1000):
                with monkeypatch.context() as patch:
                    patch.setattr(syscalls, "system", Faulty())
                    action = prepare()
                faulty = Faulty(at, error, from_then_on, short)
                before = open_descriptors()
                raised: BaseException | None = None
                with monkeypatch.context() as patch:
                    patch.setattr(syscalls, "system", faulty)
                    try:
                        action()
                    except StorageError as caught:
                        raised = caught
                assert open_descriptors() <= before, f"a descriptor leaked at {faulty.calls}"
                yield faulty, raised
                if len(faulty.calls) < at:
                    assert raised is None
                    break
            else:
                pytest.fail("there is no end of system calls")


def names(folder: Path) -> list[str]:
    return [name for name, _ in reading.walk(folder)]
