"""L6: a disk that is full, read-only, out of inodes or closed by a limit; then mended, and resumed to the same end."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from pretrain.evidence import checkpoint, events, namespace
from tests.drill.commands import LIMITS, Commands, Ended
from tests.drill.disks import EXT4, READ_ONLY, TMPFS, Disk, ext4, in_memory, not_here
from tests.drill.layer import Layer, LeftOut
from tests.loop.forks import ROOT
from tests.loop.lineages import End, end_of, small_config

STEPS, EVERY = 6, 2
WAITING = "waiting for space, "
PATIENT = "checkpoint.storage_wait_seconds=50"


class Storage:
    """Short runs of both tasks, each measured once untouched: its end, its size on a disk, its changes of one."""

    def __init__(self, commands: Commands, folder: Path) -> None:
        self._commands = commands
        self._lacks = not_here(folder)
        self._configs: dict[str, Path] = {}
        self._ends: dict[str, End] = {}
        self._changes: dict[str, int] = {}
        self._bytes: dict[str, int] = {}
        self._files: dict[str, int] = {}
        for task in ("text", "iq"):
            own = folder / task
            own.mkdir()
            self._configs[task] = small_config(own, task, STEPS, EVERY)
            with self._somewhere(own) as place:
                ended = self._train(own, task, place.path / "run")
                assert ended.code == 0, ended
                found = os.statvfs(place.path)
                self._bytes[task] = (found.f_blocks - found.f_bfree) * found.f_bsize
                self._files[task] = found.f_files - found.f_ffree
                self._ends[task], self._changes[task] = end_of(place.path / "run"), ended.changes

    def points(self, *, whole: bool) -> Sequence[str]:
        """Return the faults that can be made here; where nothing may be mounted, more of those of limits."""
        text = self._changes["text"]
        kinds = self._kinds(whole=whole)
        found = [point for kind, points in kinds.items() if kind not in self._lacks for point in points]
        if TMPFS in self._lacks:
            found += [f"text files-at {at}" for at in self._spread(text, 6 if whole else 3)]
        return found

    def left_out(self, *, whole: bool) -> Sequence[LeftOut]:
        """Return the disks that cannot be had here."""
        kinds = self._kinds(whole=whole)
        return [LeftOut(kind, why, len(kinds[kind])) for kind, why in self._lacks.items() if kinds[kind]]

    def _kinds(self, *, whole: bool) -> dict[str, list[str]]:
        """Return all points by the kind of disk that they need, "" = any."""
        text, iq = self._changes["text"], self._changes["iq"]
        some, few = (6, 3) if whole else (1, 0)
        mounted = [
            *(f"text size {size}" for size in self._spread(self._bytes["text"], some)),
            *(f"iq size {size}" for size in self._spread(self._bytes["iq"], few)),
            *(f"text inodes {count}" for count in self._spread(self._files["text"], few)),
            *(f"text filled-at {at}" for at in self._spread(text, some)),
            *(f"text resumed-at {at}" for at in self._spread(text // 2, few)),
            *(f"text waits-at {at}" for at in self._spread(text, some)),
            *(f"text stopped-at {at}" for at in self._spread(text, few)),
            *(("text csv 0", f"text process {self._bytes['text'] // 2}") if whole else ()),
        ]
        limits = [
            *("text bytes 500", *(f"text bytes-at {at}" for at in self._spread(text, 10 if whole else 2))),
            *(f"iq files-at {at}" for at in self._spread(iq, 6 if whole else 0)),
            *(("text bytes 3000", "text bytes 8000", "iq bytes 9000", "text deaf 0") if whole else ()),
        ]
        return {
            TMPFS: mounted,
            READ_ONLY: [f"text readonly-at {at}" for at in self._spread(text, few)],
            EXT4: [f"iq ext4-at {at}" for at in self._spread(iq, few)],
            "": limits,
        }

    @staticmethod
    def _spread(end: int, count: int) -> list[int]:
        """Return so many places between nothing and `end`."""
        return [end * number // (count + 1) for number in range(1, count + 1)]

    def check(self, point: str, folder: Path) -> None:
        """Make the fault, look at what is left, mend it, and go on to the end of the untouched run."""
        task, kind, word = point.split()
        value, place = int(word), folder / "disk"
        match kind:
            case "size":
                self._fails(folder, task, in_memory(place, size=value))
            case "inodes":
                self._fails(folder, task, in_memory(place, inodes=value))
            case "process":
                self._fails(folder, task, in_memory(place, size=value), is_real=True)
            case "filled-at":
                self._fails(folder, task, in_memory(place), lambda disk, _: disk.fill(), stop_at=value)
            case "ext4-at":
                self._fails(folder, task, ext4(place), lambda disk, _: disk.fill(), stop_at=value)
            case "readonly-at":
                self._fails(folder, task, ext4(place), lambda disk, _: disk.fail(), Disk.mend, stop_at=value)
            case "stopped-at":
                says = (WAITING, lambda pid: os.kill(pid, signal.SIGTERM))
                more = {"when_said": says, "overrides": (PATIENT,)}
                self._fails(folder, task, in_memory(place), lambda disk, _: disk.fill(), stop_at=value, **more)
            case "bytes":
                self._fails(folder, task, self._somewhere(folder), mend=_let_be, limits={"bytes": value})
            case "bytes-at" | "files-at":
                act = partial(_limit, kind.removesuffix("-at"))
                self._fails(folder, task, self._somewhere(folder), act, _let_be, stop_at=value)
            case "waits-at":
                self._waits(folder, task, value)
            case "resumed-at":
                self._resumed(folder, task, value)
            case "csv":
                self._own_csv(folder, task)
            case "deaf":
                self._deaf(folder, task)
            case _:
                raise ValueError(point)

    # --- faults ------------------------------------------------------------------------------------------

    def _fails(
        self,
        folder: Path,
        task: str,
        made: AbstractContextManager[Disk],
        act: Callable[[Disk, int], None] = lambda disk, pid: None,
        mend: Callable[[Disk], None] = Disk.free,
        *,
        is_real: bool = False,
        overrides: tuple[str, ...] = (),
        **how: object,
    ) -> None:
        """Let a run fail on a disk; `act`: what is done to the disk or the process while that stands still."""
        with made as disk:
            run = disk.path / "run"
            if is_real:
                ended = self._real(task, run)
            else:
                ended = self._train(folder, task, run, *overrides, when_stopped=partial(act, disk), **how)
            self._look(ended, run, can_remove=mend is not Disk.mend)
            assert WAITING not in ended.err or "stopped by SIGTERM while it waited" in ended.err, ended
            mend(disk)
            self._finish(folder, task, run)

    def _waits(self, folder: Path, task: str, at: int) -> None:
        """Wait for space where there is a run to wait with; the end is reached in the same attempt."""
        with in_memory(folder / "disk") as disk:
            run = disk.path / "run"
            ended = self._train(
                *(folder, task, run, PATIENT),
                stop_at=at,
                when_stopped=lambda _: disk.fill(),
                when_said=(WAITING, lambda _: disk.free()),
            )
            if WAITING not in ended.err:  # The attempt was not born yet.
                self._look(ended, run)
                disk.free()
                self._finish(folder, task, run)
                return
            assert ended.code == 0, ended
            assert ended.err.count(WAITING) == ended.err.count("unpaused: there is space again") == 1, ended
            told = [row["event"] for row in events.read(namespace.attempt_folder(run, 1))]
            assert told.count("paused") == told.count("unpaused") == 1, told
            self._compare(task, run)

    def _resumed(self, folder: Path, task: str, at: int) -> None:
        """Fill the disk of a second attempt, whose parent was stopped."""
        with in_memory(folder / "disk") as disk:
            run = disk.path / "run"
            first = self._train(
                *(folder, task, run),
                stop_at=self._changes[task] // 2,
                when_stopped=lambda pid: os.kill(pid, signal.SIGTERM),
            )
            assert first.code == 75, first
            ended = self._commands.run(
                folder, ["resume", "--attempt", run], stop_at=at, when_stopped=lambda _: disk.fill()
            )
            self._look(ended, run)
            disk.free()
            self._finish(folder, task, run)

    def _own_csv(self, folder: Path, task: str) -> None:
        """A CSV whose own disk is full costs its rows and a warning."""
        with in_memory(folder / "disk") as disk, in_memory(folder / "csv", size=4096) as small:
            run = disk.path / "run"
            small.fill()
            log = f"telemetry.csv_log_path={small.path / 'steps.csv'}"
            ended = self._train(folder, task, run, log)
            assert ended.code == 0, ended
            assert ended.err.count("warning: there is no CSV of this attempt") == 1, ended
            self._compare(task, run)

    def _deaf(self, folder: Path, task: str) -> None:
        """What a person would read goes to a full disk; the training is not theirs to stop."""
        with self._somewhere(folder) as disk:
            run = disk.path / "run"
            ended = self._train(folder, task, run, out="/dev/full", err="/dev/full")
            assert ended.code == 0, ended
            self._compare(task, run)

    def _somewhere(self, folder: Path) -> AbstractContextManager[Disk]:
        return nullcontext(Disk(folder)) if TMPFS in self._lacks else in_memory(folder / "disk")

    # --- what must hold ----------------------------------------------------------------------------------

    def _train(self, folder: Path, task: str, run: Path, *overrides: str, **how: object) -> Ended:
        words = ["train", "--config", self._configs[task], f"run.dir={run}", *overrides]
        return self._commands.run(folder, words, **how)  # type: ignore[arg-type]

    def _real(self, task: str, run: Path) -> Ended:
        """Run the command in a process of its own, so that nothing of this harness has a part in it."""
        words = ["-m", "pretrain", "train", "--config", str(self._configs[task]), f"run.dir={run}"]
        found = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return Ended(found.returncode, found.stderr, 0, has_stopped=False)

    def _look(self, ended: Ended, run: Path, *, can_remove: bool = True) -> None:
        """Exit code 6 with one message, nothing half left, and whole what was announced and not pruned."""
        assert ended.code == 6, ended
        assert "Traceback" not in ended.err, ended.err
        lines = ended.err.splitlines()
        messages = [line for line in lines if line.startswith(("storage at step ", "pretrain: "))]
        assert len(messages) == 1, ended.err
        numbers = namespace.list_attempts(run) if run.is_dir() else []
        found = [
            saved for number in numbers for saved in checkpoint.list_checkpoints(namespace.attempt_folder(run, number))
        ]
        assert not can_remove or not list(run.rglob(".tmp-*")), f"something half is left: {ended}"
        newest = max((checkpoint.verify_checkpoint(folder).step for _, folder in found), default=-1)
        assert newest >= ended.announced, f"a checkpoint that was announced is lost: {ended}"
        if messages[0].startswith("storage"):
            is_told = (namespace.attempt_folder(run, numbers[-1]) / "outcome.json").is_file()
            assert is_told != ("the end of this attempt could not be put on record" in ended.err), ended.err

    def _finish(self, folder: Path, task: str, run: Path) -> None:
        """Go on to the end, from the beginning where no attempt was born."""
        if run.is_dir() and namespace.list_attempts(run):
            ended = self._commands.run(folder, ["resume", "--attempt", run])
        else:
            ended = self._train(folder, task, run)
        assert ended.code == 0, ended
        self._compare(task, run)

    def _compare(self, task: str, run: Path) -> None:
        assert end_of(run) == self._ends[task], "another end than that of the untouched run"
        assert not list((run / "attempts").glob(".tmp-*")), "temporaries are left"


def _limit(name: str, _: Disk, pid: int) -> None:
    """Let a process open no further file, or let none of its files become larger than a row."""
    hard = resource.prlimit(pid, LIMITS[name])[1]
    resource.prlimit(pid, LIMITS[name], ({"files": 3, "bytes": 300}[name], hard))


def _let_be(_: Disk) -> None:
    """The next process has not that limit."""


@contextmanager
def opened(folder: Path, seed: int) -> Iterator[Storage]:
    """Start the process that forks, and measure; `seed` changes nothing, since the points are spread evenly."""
    with Commands() as commands:
        yield Storage(commands, folder)


LAYER = Layer("L6", "a full, read-only or limited disk, then mended and resumed", (6, 53), opened)
