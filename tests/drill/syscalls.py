"""L4: a real train or resume dies at, or is refused, each fsync, rename, unlink and mkdir; then the run goes on."""

import errno
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pretrain.config import load
from pretrain.errors import StorageError
from tests.drill.cycle import cycle_config
from tests.drill.layer import Layer
from tests.loop.forks import ROOT, Forks, Life, Order
from tests.loop.lineages import End, Lineage, end_of
from tests.tiny import train

# A train of so many steps removes its first checkpoint. A resume does so once it has saved three of its own.
STEPS = {"train": 2, "resume": 4}
STOPPED_AFTER = 1
NAMES = {
    "fsync": ("fsync", "fdatasync"),
    "rename": ("rename", "renameat", "renameat2"),
    "unlink": ("unlink", "unlinkat"),
    "mkdir": ("mkdir", "mkdirat"),
    "rmdir": ("rmdir",),
}
KILL = "KILL"
FAULTS = ("EIO once", "ENOSPC on", "EDQUOT once", "EIO on", "EINTR once")
_LINE = re.compile(r"(\d+) +(\w+)\((.*)")
_SAVED = re.compile(r"saved: checkpoint of step (\d+)")
_SECONDS = 600.0  # A process that takes longer hangs.
_STRACE = ("strace", "-f", "-qq")
_FAST = "--seccomp-bpf"  # stops at the traced calls alone; strace 6.1 then sends no signal


def missing() -> str | None:
    """Return why no system call can be traced here, None where it can be."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    found = subprocess.run([*_STRACE, _FAST, "-e", "trace=mkdir", "true"], capture_output=True, text=True)
    return None if found.returncode == 0 else f"strace does not work: {found.stderr.strip()}"


@dataclass(frozen=True)
class Script:
    """What a real process does: attempt 0001 of `config`, or the child of `parent`, which a signal has stopped.

    end: of the run when nobody touches it. calls: name and number of each system call that changes the disk.
    """

    config: Path
    parent: Path | None
    end: End
    calls: tuple[tuple[str, int], ...]


class Calls:
    """A short train and a resume as processes of their own, whose system calls are counted in a plain trace."""

    def __init__(self, forks: Forks, folder: Path, seed: int) -> None:
        self._forks, self._seed = forks, seed
        # Taken once: an import in this process may change it, and the calls of the processes that follow with it.
        self._environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(ROOT),
        }
        self._scripts = {name: self._traced(folder / name, name) for name in STEPS}

    def _traced(self, folder: Path, name: str) -> Script:
        """Count the calls of a script, which ends as the run does that no strace has seen."""
        folder.mkdir()
        config, parent, log = cycle_config(folder, STEPS[name]), None, folder / "trace"
        untouched = Order(str(folder / "untouched"), str(folder / "untouched.log"), str(config))
        assert self._forks.live(untouched).exit_code == 0
        end = end_of(folder / "untouched")
        if name == "resume":
            parent = folder / "parent"
            stopped = Order(str(parent), str(folder / "parent.log"), str(config), does=f"{__name__}:stopped")
            self._forks.live(stopped, ends=(75,))
        script = Script(config, parent, end, ())
        names = ",".join(name for group in NAMES.values() for name in group)
        run = self._begun(script, folder / "run")
        life = run.lived(self._live(run, script, _FAST, "-y", "-o", str(log), "-e", f"trace={names}"), "traced")
        assert life.exit_code == 0, Path(f"{run.run}.log").read_text()
        assert end_of(run.run) == end, f"another end: {life}"
        calls = tuple(_calls(log, str(folder)))
        assert "unlink" in dict(calls), f"no checkpoint is removed: {calls}"
        return Script(config, parent, end, calls)

    def _begun(self, script: Script, run: Path) -> Lineage:
        if script.parent is not None:
            shutil.copytree(script.parent, run)
        return Lineage(self._forks, script.config, run)

    def _live(self, run: Lineage, script: Script, *options: str) -> Life:
        """Train or resume in a new process under strace, and return how it ended."""
        words = ["train", "--config", str(script.config), f"run.dir={run.run}"]
        if script.parent is not None:
            words = ["resume", "--attempt", str(run.run)]
        command = [*_STRACE, *options, sys.executable, "-m", "pretrain", *words]
        with Path(f"{run.run}.log").open("w") as said:
            ended = subprocess.run(command, env=self._environment, stdout=said, stderr=said, timeout=_SECONDS)
        saved = _SAVED.findall(Path(said.name).read_text())
        announced = int(saved[-1]) if saved else -1
        return Life(None if ended.returncode < 0 else ended.returncode, 0, 0, announced, " ".join(options))

    def points(self, *, whole: bool) -> Sequence[str]:
        """A kill before every call, and a fault of every unlink and of a third of the others, each seed of another.

        A quick part is a kill and a fault of a train, and a kill of a resume.
        """
        kills, faults, chosen = {}, {}, []
        for script, of_script in self._scripts.items():
            calls = [f"{script} {name} {at}" for name, at in of_script.calls]
            kills[script] = [f"{call} {KILL} once" for call in calls]
            faults[script] = [f"{call} {FAULTS[turn % len(FAULTS)]}" for turn, call in enumerate(calls)]
            chosen += [
                fault
                for turn, (fault, (name, _)) in enumerate(zip(faults[script], of_script.calls, strict=True))
                if name == "unlink" or turn % 3 == self._seed % 3
            ]
        if not whole:
            third, half = len(kills["train"]) // 3, len(kills["resume"]) // 2
            return [kills["train"][third], faults["train"][2 * third + 1], kills["resume"][half]]
        return [*kills["train"], *kills["resume"], *chosen]

    def check(self, point: str, folder: Path) -> None:
        """Die or be refused at one call, and go on to the end without strace."""
        script, name, at, fault, how = point.split()
        of_script = self._scripts[script]
        run = self._begun(of_script, folder / "run")
        when = f"when={at}{'+' if how == 'on' else ''}"
        what = ["signal=SIGKILL"] if fault == KILL else [f"error={fault}", _FAST]
        options = ["-o", os.devnull, "-e", f"trace={name}", "-e", f"inject={name}:{what[0]}:{when}", *what[1:]]
        life = run.lived(self._live(run, of_script, *options), point)
        said = Path(f"{run.run}.log").read_text()
        assert "Traceback" not in said, said
        if fault == KILL:
            assert life.exit_code is None, f"{life}: it was not killed: {said}"
        else:
            # Python makes a call again that was interrupted, but for those that change names, which no local disk is.
            passes = fault == "EINTR" and name in NAMES["fsync"]
            assert life.exit_code in ((0,) if passes else (0, StorageError.exit_code)), f"{life}: {said}"
            assert passes or os.strerror(getattr(errno, fault)) in said, f"no word of the fault: {said}"
        run.check_claims()
        if life.exit_code != 0:
            assert run.live().exit_code == 0, run.lives
        assert end_of(run.run) == of_script.end, f"another end: {run.lives}"
        run.check_claims()


def stopped(order: Order) -> int:
    """Train until a signal comes, with the first batch; return the exit code."""
    assert order.config is not None
    return train(load(Path(order.config), [f"run.dir={order.run}"]), STOPPED_AFTER).exit_code


def _calls(log: Path, folder: str) -> Iterator[tuple[str, int]]:
    """Yield name and number of each call of the process itself that concerns the folder; strace counts by name."""
    counts: Counter[str] = Counter()
    lines = [found.groups() for line in log.read_text().splitlines() if (found := _LINE.match(line))]
    process = lines[0][0]
    for thread, name, arguments in lines:
        if thread == process:
            counts[name] += 1
            if folder in arguments:
                yield name, counts[name]


@contextmanager
def opened(folder: Path, seed: int) -> Iterator[Calls]:
    """Start the process that forks, which goes on with what was cut short, and count."""
    with Forks() as forks:
        yield Calls(forks, folder, seed)


LAYER = Layer("L4", "a real process dies at, or is refused, each call that changes the disk", (3, 133), opened, missing)
