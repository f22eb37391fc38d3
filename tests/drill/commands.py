"""Real commands, each in a process forked from a warm one, that stand still at a chosen change of the disk.

There the test changes the disk under them, or a limit of theirs, and lets them go on: no moment is left to chance.
"""

import gc
import json
import mmap
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from pretrain import syscalls
from tests.loop.forks import ROOT, warm

PATIENCE_SECONDS = 60.0
_CHANGES = frozenset({"write", "truncate", "replace", "unlink", "mkdir", "rmdir"})
_COUNT = struct.Struct("q")
LIMITS = {"files": resource.RLIMIT_NOFILE, "bytes": resource.RLIMIT_FSIZE}


@dataclass(frozen=True)
class Order:
    """A command to run.

    words: of the command line. out, err: files that take what it prints. stop_at: stand still before this change of the
    disk, counted from 1; 0 = never. limits: soft ones of the process, by their names in LIMITS.
    """

    words: Sequence[str]
    out: str
    err: str
    stop_at: int = 0
    limits: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, all that it printed on stderr, and its changes of the disk."""

    code: int
    err: str
    changes: int
    has_stopped: bool

    @property
    def announced(self) -> int:
        """Return the newest step whose checkpoint a person was told to be saved, -1 = none."""
        said = "saved: checkpoint of step "
        return max(
            (int(line.removeprefix(said)) for line in self.err.splitlines() if line.startswith(said)), default=-1
        )


class Stopping(syscalls.System):
    """The real system, which stops its process before the chosen change of the disk."""

    def __init__(self, stop_at: int, report: mmap.mmap) -> None:
        self._stop_at, self._report, self._count = stop_at, report, 0

    def __getattribute__(self, name: str) -> Any:
        attribute = super().__getattribute__(name)
        if name in _CHANGES:
            self._change()
        return attribute

    def open(self, path: Path, flags: int, mode: int = 0o644) -> int:
        if flags & os.O_CREAT and not os.path.lexists(path):
            self._change()
        return super().open(path, flags, mode)

    def _change(self) -> None:
        self._count += 1
        _COUNT.pack_into(self._report, 0, self._count)
        if self._count == self._stop_at:
            os.kill(os.getpid(), signal.SIGSTOP)


def run(order: Order, report: mmap.mmap) -> int:
    """Run a command in this process, which is a child of its own, and return its exit code."""
    from pretrain import cli

    for number, path in ((1, order.out), (2, order.err)):
        opened = os.open(path, os.O_WRONLY)
        os.dup2(opened, number)
        os.close(opened)
    for name, limit in order.limits.items():
        resource.setrlimit(LIMITS[name], (limit, resource.getrlimit(LIMITS[name])[1]))
    syscalls.system = Stopping(order.stop_at, report)
    sys.argv = ["pretrain", *order.words]
    try:
        cli.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def serve() -> None:
    """Run an order a line: say when it stands still, and go on when another line comes; say how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        warm(Path(folder))
    assert threading.enumerate() == [threading.main_thread()]
    gc.collect()
    gc.freeze()
    print(json.dumps({"ready": os.getpid()}), flush=True)
    for line in sys.stdin:
        order, report = Order(**json.loads(line)), mmap.mmap(-1, 4096)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = run(order, report)
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                os._exit(code)
        while os.WIFSTOPPED(status := os.waitpid(child, os.WUNTRACED)[1]):
            print(json.dumps({"stopped": child}), flush=True)
        code = os.waitstatus_to_exitcode(status)
        print(json.dumps({"code": code, "changes": _COUNT.unpack_from(report)[0]}), flush=True)
        report.close()


class Commands:
    """The warm process, seen from a test."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.drill.commands"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._answer(self._read())

    def run(
        self,
        folder: Path,
        words: Sequence[object],
        *,
        stop_at: int = 0,
        limits: Mapping[str, int] | None = None,
        out: str = os.devnull,
        err: str | None = None,
        when_stopped: Callable[[int], None] = lambda pid: None,
        when_said: tuple[str, Callable[[int], None]] | None = None,
    ) -> Ended:
        """Run a command to its end.

        when_stopped: is called with the number of the process while it stands still. when_said: words, and what is
        called once stderr has them, with that number. err: a file that takes stderr, None = it is returned.
        """
        pipe = folder / "stderr"
        if not pipe.exists():
            os.mkfifo(pipe)  # a regular file would have the limits of the process
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        order = Order([str(word) for word in words], out, err or str(pipe), stop_at, dict(limits or {}))
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        self._process.stdin.flush()
        said, has_stopped, pid = b"", False, 0
        until = time.monotonic() + PATIENCE_SECONDS
        try:
            while True:
                ready, _, _ = select.select([reader, self._process.stdout], [], [], 0.05)
                said += self._rest(reader)
                if when_said is not None and when_said[0].encode() in said:
                    when_said[1](pid)
                    when_said = None
                if time.monotonic() > until:
                    self._process.kill()
                    raise AssertionError(f"no end after {PATIENCE_SECONDS} s: {order}\n{said.decode()}")
                if self._process.stdout not in ready:
                    continue
                answer = self._answer(self._read())
                if "stopped" not in answer:
                    said += self._rest(reader)
                    return Ended(answer["code"], said.decode(), answer["changes"], has_stopped)
                has_stopped, pid = True, answer["stopped"]
                when_stopped(pid)
                os.kill(pid, signal.SIGCONT)
        finally:
            os.close(reader)

    @staticmethod
    def _rest(reader: int) -> bytes:
        said = b""
        while True:
            try:
                block = os.read(reader, 65536)
            except BlockingIOError:
                return said
            if not block:
                return said
            said += block

    def _read(self) -> bytes:
        # Byte by byte: what a buffer had taken already, select would not see.
        assert self._process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self._process.stdout.fileno(), 1)
            assert byte, "the process that forks has died"
            line += byte
        return line

    @staticmethod
    def _answer(line: bytes) -> dict[str, Any]:
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


if __name__ == "__main__":
    serve()
