"""Lives of a run that are killed, whose disk fails, or whose operations are put on record: one warm process forks them.

Forked from pytest they would inherit its threads, so a process of its own imports torch once, trains a tiny run to the
end, checks that no thread is left, and then forks one child for every life that it is asked for.
"""

import gc
import importlib
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from pretrain import syscalls
from tests.loop.savers import break_saver
from tests.loop.systems import Failing, Recording, Watched

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60.0
_CHANGES = frozenset({"write", "truncate", "replace", "unlink", "mkdir", "rmdir"})
_NUMBERS = struct.Struct("qqq")  # changes, calls, the step of the newest checkpoint that was announced


@dataclass(frozen=True)
class Order:
    """A life to live: attempt 0001 of `config`, or, without one, the child of the newest attempt of `run`.

    kill_at: die at this change of the disk, counted from 1; 0 = never. armed_by: count from the first change whose
    path holds this. torn: when that change is a write, die in the middle of it, else before it. delay_seconds: die
    at that moment instead. overrides: of the config. does: what the child does instead, as module:function, which is
    called with the order and returns the exit code; it may call `live_on`. words: whatever that function needs.

    fail_at: the call of the file module that fails instead, with the errno of the name `fail_with`, and with it every
    later one where it is `fail_on`: see `Failing`. record: the file to put the operations of the disk on record in.
    broken: how its saver is broken: see `SAVERS`. ledger: the file to put the samples that it trains on on record in.
    """

    run: str
    log: str
    config: str | None = None
    kill_at: int = 0
    armed_by: str = ""
    torn: bool = False
    delay_seconds: float | None = None
    overrides: tuple[str, ...] = ()
    does: str = ""
    words: tuple[str, ...] = ()
    fail_at: int = 0
    fail_with: str = ""
    fail_on: bool = False
    record: str = ""
    broken: str = ""
    ledger: str = ""


@dataclass(frozen=True)
class Life:
    """How a life ended: exit_code is None where it was killed; `last` is its last change or the one it died at."""

    exit_code: int | None
    changes: int
    calls: int
    announced: int
    last: str


class Killing(Watched):
    """The real system, which counts and kills its process at the chosen change of the disk.

    Between two changes the disk stays as it is, so to die before each change is to die anywhere. A descriptor that
    is opened, read or synced changes nothing: only a power cut tells whether an fsync was one.
    """

    def __init__(self, order: Order, report: mmap.mmap) -> None:
        self.order, self.report = order, report
        self.changes, self.calls, self.armed = 0, 0, not order.armed_by
        self.paths: dict[int, str] = {}

    def visit(self, name: str, real: Any, arguments: tuple[Any, ...]) -> Any:
        self.calls += 1
        creates = name == "open" and arguments[1] & os.O_CREAT and not os.path.lexists(arguments[0])
        if name in _CHANGES or creates:
            target = arguments[1] if name == "replace" else arguments[0]
            path = self.paths.get(target, "") if isinstance(target, int) else str(target)
            self.armed = self.armed or self.order.armed_by in path
            self.changes += self.armed
            tell(self.report, self.changes, self.calls, last=f"{name} {path}")
            if self.armed and self.changes == self.order.kill_at:
                if self.order.torn and name == "write":
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
        result = None if name == "fsync" else real(*arguments)
        if name == "open":
            self.paths[result] = str(arguments[0])
        return result


def tell(report: mmap.mmap, changes: int, calls: int, last: str) -> None:
    *_, announced = _NUMBERS.unpack_from(report)
    _NUMBERS.pack_into(report, 0, changes, calls, announced)
    text = last.encode()[-2000:]
    report[_NUMBERS.size : _NUMBERS.size + len(text) + 1] = text + b"\0"


def note(*told: Any) -> None:
    """Put what a person was told among the operations of the disk, where these are on record."""
    if isinstance(syscalls.system, Recording):
        syscalls.system.note(*told)


class Announced:
    """A sink that puts the step of a checkpoint on record once a person was told that it is saved."""

    def __init__(self, report: mmap.mmap) -> None:
        self.report = report

    def emit(self, event: Any) -> None:
        if getattr(event, "kind", "") == "saved":
            changes, calls, _ = _NUMBERS.unpack_from(self.report)
            step = int(event.text.rsplit(" ", 1)[1])
            _NUMBERS.pack_into(self.report, 0, changes, calls, step)
            note("announced", step)
        if getattr(event, "verdict", "") == "done":
            note("done")

    def close(self) -> None:
        """Nothing is open."""


def system_of(order: Order, report: mmap.mmap) -> syscalls.System:
    """Return what stands in the place of the file module's system in the life of `order`."""
    if order.record:
        return break_saver(Recording(Path(order.record), Path(order.run).parent), order.broken)
    if order.fail_with:

        def told(count: int, what: str) -> None:
            tell(report, 0, count, what)

        return Failing(order.fail_at, order.fail_with, from_then_on=order.fail_on, told=told)
    return Killing(order, report)


def live(order: Order, report: mmap.mmap) -> int:
    """Live a life in this process and return its exit code."""
    syscalls.system = system_of(order, report)
    if order.ledger:
        from tests.loop.samples_taken import keep_ledger

        keep_ledger(Path(order.ledger))
    if order.does:
        module, _, function = order.does.partition(":")
        code = getattr(importlib.import_module(module), function)(order)
        assert isinstance(code, int)
        return code
    return live_on(order, Announced(report))


def live_on(order: Order, *sinks: Any) -> int:
    """Train or resume as the command line does, which tells a fault in one message; return the exit code."""
    from pretrain.attempt import resume_attempt, start_attempt
    from pretrain.cli import _run
    from pretrain.config import load
    from pretrain.console import Screen
    from pretrain.machine.signals import StopRequest

    def work() -> int:
        shown = [Screen(), *sinks]
        if order.config is not None:
            config = load(Path(order.config), [f"run.dir={order.run}", *order.overrides])
            return start_attempt(config, StopRequest(), shown).exit_code
        return resume_attempt(Path(order.run), [*order.overrides], StopRequest(), shown).exit_code

    code = 1
    try:
        _run(work, as_json=False)
    except SystemExit as ended:
        code = int(ended.code or 0)
    if code == 0:
        note("done")
    return code


class Child:
    """One forked child, which begins to live `order` when `begin` is closed by everybody else."""

    def __init__(self, order: Order, begin: tuple[int, int]) -> None:
        self._order, self._report = order, mmap.mmap(-1, 4096)
        _NUMBERS.pack_into(self._report, 0, 0, 0, -1)
        self._pid = os.fork()
        if self._pid == 0:
            os.close(begin[1])
            os.read(begin[0], 1)
            os.close(begin[0])
            self._live()

    def _live(self) -> None:
        code = 1
        try:
            log = os.open(self._order.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            code = live(self._order, self._report)
        finally:
            if sys.exc_info()[0] is not None:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(code)

    def end(self, born: float) -> Life:
        """Wait for its end, which is that of its patience or its delay at the latest."""
        delay = self._order.delay_seconds
        limit = PATIENCE_SECONDS if delay is None else delay
        while (ended := os.waitpid(self._pid, os.WNOHANG))[0] == 0 and time.monotonic() < born + limit:
            time.sleep(0.001)
        if ended[0] == 0:
            os.kill(self._pid, signal.SIGKILL)
            ended = os.waitpid(self._pid, 0)
        changes, calls, announced = _NUMBERS.unpack_from(self._report)
        last = bytes(self._report[_NUMBERS.size :]).split(b"\0", 1)[0].decode(errors="replace")
        self._report.close()
        killed = os.WIFSIGNALED(ended[1])
        return Life(None if killed else os.waitstatus_to_exitcode(ended[1]), changes, calls, announced, last)


def fork(orders: Sequence[Order]) -> list[Life]:
    """Fork a child for every order, let them all begin at once, and wait for their ends."""
    begin = os.pipe()
    children = [Child(order, begin) for order in orders]
    for descriptor in begin:
        os.close(descriptor)
    born = time.monotonic()
    return [child.end(born) for child in children]


def warm(folder: Path) -> None:
    """Import and use once all that a life uses, and make sure that a child gets a process that is safe to fork."""
    import torch
    import torch.distributed.checkpoint

    torch.set_num_threads(1)
    from tests.tiny import go_on, tiny, train

    importlib.import_module("tests.loop.samples_taken")
    for task in ("text", "iq"):
        train(tiny(folder, task, "training.max_steps=1", "checkpoint.checkpoint_every_n_steps=1", run=task))
        go_on(folder / task, "training.max_steps=2")
    assert torch.get_num_threads() == 1
    assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
    tasks = Path("/proc/self/task")
    assert not tasks.exists() or len(list(tasks.iterdir())) == 1, "a thread that Python does not know of"
    gc.collect()
    gc.freeze()


def serve() -> None:
    """Answer the orders of one line with their lives, until there are no more."""
    with tempfile.TemporaryDirectory() as folder:
        warm(Path(folder))
    for line in sys.stdin:
        lives = fork([Order(**order) for order in json.loads(line)])
        print(json.dumps([asdict(life) for life in lives]), flush=True)


class Forks:
    """The process that forks, seen from a test."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.loop.forks"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def live(self, order: Order, ends: Collection[int] = (0,)) -> Life:
        """Return how a life ended; one that ended by its own hand, in none of these codes, fails the test."""
        (life,) = self.together([order])
        assert life.exit_code in (None, *ends), f"{order}\n{life}\n{Path(order.log).read_text()}"
        expected_to_die = order.kill_at or order.delay_seconds is not None
        assert life.exit_code is not None or expected_to_die, f"hung for {PATIENCE_SECONDS} s: {order}\n{life}"
        return life

    def together(self, orders: Sequence[Order]) -> list[Life]:
        """Return how lives ended that began at the same moment, however they ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([asdict(order) for order in orders]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the process that forks has died"
        return [Life(**life) for life in json.loads(answer)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


if __name__ == "__main__":
    serve()
