"""Commands of the program, each a fork of one warm process: bounded in time and memory, its system calls on record."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.drill.syscalls import missing
from tests.loop.forks import ROOT, warm

SECONDS, MEMORY = 10, 1 << 30
PATIENCE_SECONDS = 90.0  # of the clock, for what waits rather than works: the machine may have more to do
_TRACED = "execve,execveat,open,openat,openat2,connect"


@dataclass(frozen=True)
class Call:
    """What a command came to.

    code: its exit code, None where it ran out of time or was killed. seconds: of the processor. memory: the most bytes
    that it held beyond those it was born with. system_calls: as strace shows them, None where there is no strace.
    """

    code: int | None
    seconds: float
    memory: int
    out: str
    err: str
    system_calls: tuple[str, ...] | None

    @property
    def executed(self) -> list[str]:
        """The programs that were started, and the sockets that were connected."""
        return [line for line in self.system_calls or () if re.search(r"\b(execve|execveat|connect)\(", line)]

    def opened(self, folder: Path) -> list[str]:
        """What was opened below a folder, by its real path."""
        found = [line for line in self.system_calls or () if re.search(r"\bopen", line)]
        return [line for line in found if f"<{folder.resolve()}/" in line.rpartition(" = ")[2]]


class Calls:
    """The process that forks, seen from a layer of the drill."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "strace"
        lacks = missing()
        command = [sys.executable, "-m", "tests.drill.bounded"]
        if lacks is not None:
            print(f"SKIPPED: what is executed and opened is not looked at, {lacks}", file=sys.stderr, flush=True)
        else:
            command = ["strace", "-f", "--seccomp-bpf", "-qq", "-y", "-o", str(self._log), "-e", _TRACED, *command]
        self._is_traced = lacks is None
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._pid = self._answer()["pid"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process that forks has died"
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    def call(self, words: Sequence[object], folder: Path) -> Call:
        """Run `pretrain WORDS` in `folder`, beside which its output is kept."""
        assert self._process.stdin is not None
        out, err = folder.with_name("out"), folder.with_name("err")
        order = {"words": [str(word) for word in words], "folder": str(folder), "out": str(out), "err": str(err)}
        start = self._log.stat().st_size if self._is_traced else 0
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        texts = (out.read_text(errors="replace"), err.read_text(errors="replace"))
        return Call(**answer, out=texts[0], err=texts[1], system_calls=self._system_calls(start))

    def _system_calls(self, start: int) -> tuple[str, ...] | None:
        """The lines of everybody but the process that forks."""
        if not self._is_traced:
            return None
        with self._log.open("rb") as file:
            file.seek(start)
            lines = file.read().decode(errors="replace").splitlines()
        return tuple(line for line in lines if not line.startswith(f"{self._pid} "))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


# --- in the process that forks -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Order:
    words: list[str]
    folder: str
    out: str
    err: str


def _run(order: _Order, size: int) -> int:
    """Be the command, in the child."""
    from pretrain import cli

    os.chdir(order.folder)
    for name, number in ((order.out, 1), (order.err, 2)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS,) * 2)
    sys.argv = ["pretrain", *order.words]
    try:
        cli.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def _sizes() -> list[int]:
    """The bytes of this process: its addresses, and what of them is in memory."""
    with open("/proc/self/statm") as file:
        return [int(word) * resource.getpagesize() for word in file.read().split()[:2]]


def _fork(order: _Order) -> dict[str, Any]:
    born = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            size, resident = _sizes()  # a child is born without the pages of files, and far smaller than its parent
            os.write(born[1], resident.to_bytes(8, "little"))
            for end in born:
                os.close(end)
            code = _run(order, size)
        finally:
            if sys.exc_info()[0] is not None:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(born[1])
    resident = int.from_bytes(os.read(born[0], 8), "little")
    os.close(born[0])
    with _killed_in_time(child):
        _, status, usage = os.wait4(child, 0)
    seconds = usage.ru_utime + usage.ru_stime
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
    return {"code": code, "seconds": seconds, "memory": max(0, usage.ru_maxrss * 1024 - resident)}


@contextmanager
def _killed_in_time(child: int) -> Iterator[None]:
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def serve() -> None:
    """Answer one order a line, until there are no more."""
    import pretrain.attempt
    import pretrain.console
    import pretrain.lineage
    import pretrain.plan  # noqa: F401

    with tempfile.TemporaryDirectory() as folder:
        warm(Path(folder))
    print(json.dumps({"pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_fork(_Order(**json.loads(line)))), flush=True)


if __name__ == "__main__":
    serve()
