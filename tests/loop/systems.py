"""What stands in for `syscalls.system` in a life: every call can be looked at, made to fail, or put on record."""

import base64
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pretrain import syscalls

CALLS = frozenset(name for name in vars(syscalls.System) if not name.startswith("_"))
SHORT = "SHORT"
_SHORT_READ = 100  # bytes
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Watched(syscalls.System):
    """The real system; every call of it goes through `visit`."""

    def __getattribute__(self, name: str) -> Any:
        attribute = super().__getattribute__(name)
        return (lambda *arguments: self.visit(name, attribute, arguments)) if name in CALLS else attribute

    def visit(self, name: str, real: Any, arguments: tuple[Any, ...]) -> Any:
        """Make the call of this name, which is `real(*arguments)`."""
        raise NotImplementedError


class Failing(Watched):
    """The real system, of which call number `at` fails, counted from 1 (0 = none), or every one from then on.

    fault: the name of an errno. SHORT: a write takes the half of its bytes and a read gives a few, which is no failure.
    told: called before each call with its number and what it is.
    """

    def __init__(self, at: int, fault: str, *, from_then_on: bool, told: Callable[[int, str], None]) -> None:
        self.at, self.fault, self.from_then_on, self.told = at, fault, from_then_on, told
        self.count = 0
        self.paths: dict[int, str] = {}

    def visit(self, name: str, real: Any, arguments: tuple[Any, ...]) -> Any:
        self.count += 1
        target = arguments[1] if name == "replace" else arguments[0]
        path = self.paths.get(target, "") if isinstance(target, int) else str(target)
        fails = self.at and (self.count == self.at or (self.from_then_on and self.count > self.at))
        if not fails and (not self.at or self.count < self.at):
            self.told(self.count, f"{name} {path}")
        elif fails and self.fault == SHORT:
            arguments = _shortened(name, arguments)
        elif fails:
            if self.count == self.at:
                self.told(self.count, f"{name} {path}")
            if name == "close":
                real(*arguments)  # Linux gives the descriptor back even where close reports an error.
            number = getattr(errno, self.fault)
            raise OSError(number, os.strerror(number), *([path] if isinstance(arguments[0], Path) else []))
        # Only a power cut tells whether an fsync was one, and real ones take most of the time.
        result = None if name == "fsync" else real(*arguments)
        if name == "open":
            self.paths[result] = path
        return result


def _shortened(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    if name == "write":
        return arguments[0], arguments[1][: (len(arguments[1]) + 1) // 2]
    if name == "read":
        return arguments[0], min(arguments[1], _SHORT_READ)
    return arguments


class Recording(Watched):
    """The real system, which puts every change of the disk on record in `log`, and every fsync without making it.

    Paths are relative to `base`. A line is a list: what is done, and to what. left_out: operations that never are made.
    """

    def __init__(self, log: Path, base: Path) -> None:
        self.base = base
        self.left_out: frozenset[str] = frozenset()
        self.paths: dict[int, str] = {}
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def note(self, *operation: Any) -> None:
        """Put an operation, or what a person was told, on record."""
        if operation[0] not in self.left_out:
            os.write(self._log, json.dumps(operation).encode() + b"\n")

    def visit(self, name: str, real: Any, arguments: tuple[Any, ...]) -> Any:
        is_new = name == "open" and not os.path.lexists(arguments[0])
        result = None if name == "fsync" else real(*arguments)
        match name:
            case "open":
                self.paths[result] = self._relative(arguments[0])
                if arguments[1] & _WRITES:
                    self.note("create" if is_new else "open", result, self.paths[result])
            case "write":
                self.note("write", arguments[0], base64.b64encode(arguments[1][:result]).decode())
            case "truncate":
                self.note("truncate", *arguments)
            case "fsync":
                path = self.paths[arguments[0]]
                self.note(*(("fsync_folder", path) if (self.base / path).is_dir() else ("fsync", arguments[0])))
            case "replace" | "unlink" | "mkdir" | "rmdir":
                self.note(name, *(self._relative(path) for path in arguments))
        return result

    def _relative(self, path: Path) -> str:
        return os.path.relpath(path, self.base)
