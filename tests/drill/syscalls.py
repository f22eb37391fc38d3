"""L4: a real process dies at, or is refused, each fsync, rename, unlink and mkdir of its run; then the run goes on."""

import errno
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pretrain.errors import StorageError
from tests.drill.cycle import cycle_config
from tests.drill.layer import Layer
from tests.loop.forks import ROOT, Forks, Life
from tests.loop.lineages import Lineage, end_of

STEPS = 2
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


class Calls:
    """A short run in a process of its own, whose system calls in the run's folder are counted in a plain trace."""

    def __init__(self, forks: Forks, folder: Path, seed: int) -> None:
        self._forks, self._seed = forks, seed
        self._config = cycle_config(folder, STEPS)
        log = folder / "trace"
        names = ",".join(name for group in NAMES.values() for name in group)
        run = Lineage(forks, self._config, folder / "run")
        assert run.lived(self._live(run, _FAST, "-y", "-o", str(log), "-e", f"trace={names}"), "traced").exit_code == 0
        self._end = end_of(run.run)
        self._calls = list(_calls(log, str(folder)))

    def _live(self, run: Lineage, *options: str) -> Life:
        """Train in a new process under strace, and return how it ended."""
        command = [sys.executable, "-m", "pretrain", "train", "--config", str(self._config), f"run.dir={run.run}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)}
        with Path(f"{run.run}.log").open("w") as said:
            ended = subprocess.run(
                [*_STRACE, *options, *command],
                env=environment,
                stdout=said,
                stderr=said,
                timeout=_SECONDS,
            )
        saved = _SAVED.findall(Path(said.name).read_text())
        announced = int(saved[-1]) if saved else -1
        killed = ended.returncode < 0
        return Life(None if killed else ended.returncode, 0, 0, announced, " ".join(options))

    def points(self, *, whole: bool) -> Sequence[str]:
        """A kill before every call, and a fault of every second one, by turns; of a quick part two of each."""
        kills = [f"{name} {at} {KILL} once" for name, at in self._calls]
        faults = [f"{name} {at} {FAULTS[turn % len(FAULTS)]}" for turn, (name, at) in enumerate(self._calls)]
        if whole:
            return [*kills, *faults[self._seed % 2 :: 2]]
        third = len(self._calls) // 3
        return [kills[third], kills[2 * third], faults[third + 1], faults[2 * third + 1]]

    def check(self, point: str, folder: Path) -> None:
        """Die or be refused at one call, and go on to the end without strace."""
        name, at, fault, how = point.split()
        run = Lineage(self._forks, self._config, folder / "run")
        when = f"when={at}{'+' if how == 'on' else ''}"
        what = ["signal=SIGKILL"] if fault == KILL else [f"error={fault}", _FAST]
        options = ["-o", os.devnull, "-e", f"trace={name}", "-e", f"inject={name}:{what[0]}:{when}", *what[1:]]
        life = run.lived(self._live(run, *options), point)
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
        assert end_of(run.run) == self._end, f"another end: {run.lives}"
        run.check_claims()


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


LAYER = Layer("L4", "a real process dies at, or is refused, each call that changes the disk", (4, 80), opened, missing)
