"""What can be other around a run when it is resumed: the process, the machine, the files; and what must come of it."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import torch

from pretrain.machine import environment

SPACES, LETTERS = "mit Leerzeichen", "läuft ☃ 漢字"
Place = contextlib.AbstractContextManager[Path]


@dataclass(frozen=True)
class Case:
    """A change of what lies around a run, and what a resume must make of it.

    change: makes it for the run at a path, and yields the path to resume. overrides: of the resume. differs: what the
    manifest must name as the reason why the bits may be others; none = they are the same. code, words: of a refusal.
    """

    change: Callable[[Path], Place]
    overrides: tuple[str, ...] = ()
    differs: str = ""
    code: int = 0
    words: tuple[str, ...] = ()


@contextlib.contextmanager
def elsewhere(run: Path) -> Iterator[Path]:
    with contextlib.chdir("/"):
        yield run


@contextlib.contextmanager
def relative(run: Path) -> Iterator[Path]:
    with contextlib.chdir(run.parent):
        yield Path(run.name)


@contextlib.contextmanager
def moved(run: Path) -> Iterator[Path]:
    place = run.parent / SPACES / LETTERS
    place.parent.mkdir(parents=True)
    yield run.rename(place)


def umask(value: int) -> Callable[[Path], Place]:
    @contextlib.contextmanager
    def change(run: Path) -> Iterator[Path]:
        before = os.umask(value)
        try:
            yield run
        finally:
            os.umask(before)

    return change


def variables(**values: str | None) -> Callable[[Path], Place]:
    """Set variables, or take them away, in this process: what is read at its start is another matter."""

    @contextlib.contextmanager
    def change(run: Path) -> Iterator[Path]:
        with mock.patch.dict(os.environ, {name: value for name, value in values.items() if value is not None}):
            for name in [name for name, value in values.items() if value is None]:
                os.environ.pop(name, None)
            time.tzset()
            yield run
        time.tzset()

    return change


def version(package: str) -> Callable[[Path], Place]:
    @contextlib.contextmanager
    def change(run: Path) -> Iterator[Path]:
        real = environment.version
        with mock.patch.object(environment, "version", lambda name: "0.0.1" if name == package else real(name)):
            yield run

    return change


def patched(name: str, value: object) -> Callable[[Path], Place]:
    @contextlib.contextmanager
    def change(run: Path) -> Iterator[Path]:
        with mock.patch(name, return_value=value):
            yield run

    return change


@contextlib.contextmanager
def threads_of_torch(run: Path) -> Iterator[Path]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        yield run
    finally:
        torch.set_num_threads(before)


def rewritten(name: str, old: bytes, new: bytes) -> Callable[[Path], Place]:
    """Change a file of the run, or beside it, in its place: its size and its times stay as they were."""
    assert len(old) == len(new)

    @contextlib.contextmanager
    def change(run: Path) -> Iterator[Path]:
        path = (run / name).resolve()
        was, content = path.stat(), path.read_bytes()
        assert old in content, f"{path}: {old!r}"
        path.write_bytes(content.replace(old, new, 1))
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
        yield run

    return change


@contextlib.contextmanager
def touched(run: Path) -> Iterator[Path]:
    os.utime(run.parent / "corpus.txt", (0, 2**33))
    yield run


@contextlib.contextmanager
def data_gone(run: Path) -> Iterator[Path]:
    (run.parent / "corpus.txt").unlink()
    yield run


SWITCHES = ("MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "KMP_AFFINITY", "GOMP_CPU_AFFINITY", "NVIDIA_TF32_OVERRIDE", "TORCH_LOGS")
CASES: Mapping[str, Case] = {
    "another folder": Case(elsewhere),
    "a relative path": Case(relative),
    "spaces and letters": Case(moved),
    "umask 077": Case(umask(0o077)),
    "umask 000": Case(umask(0)),
    "time zone": Case(variables(TZ="Pacific/Kiritimati")),
    "no home": Case(variables(HOME=None, USER=None, LOGNAME=None)),
    "touched data": Case(touched),
    "threads of torch": Case(threads_of_torch, ("training.threads=null",)),
    "threads": Case(contextlib.nullcontext, ("training.threads=2",), "threads was 1, is 2"),
    **{
        f"version of {name}": Case(version(name), differs=f"{name} was") for name in (*environment.PACKAGES, "pretrain")
    },
    "version of python": Case(patched("platform.python_version", "3.0.0"), differs="python was"),
    "CPU capability": Case(patched("torch.backends.cpu.get_cpu_capability", "NONE"), differs="cpu_capability was"),
    **{f"variable {name}": Case(variables(**{name: "1"}), differs=name) for name in SWITCHES},
    "other data": Case(
        rewritten("../corpus.txt", b"70 green", b"70 brown"), code=3, words=("corpus.txt", "is not the data", "SHA-256")
    ),
    "no data": Case(data_gone, code=2, words=("corpus.txt",)),
    "older versions": Case(
        rewritten("attempts/0001/environment.json", b'"torch":"2', b'"torch":"1'), code=3, words=("environment.json",)
    ),
    "another config": Case(
        rewritten("attempts/0001/config.yaml", b"seed: 1", b"seed: 2"), code=3, words=("config.yaml",)
    ),
}


@dataclass(frozen=True)
class Process:
    """A resume by a process of its own: what its variables are, and what must come of it, as in Case."""

    environment: Mapping[str, str | None] = field(default_factory=dict)
    umask: int = -1
    differs: str = ""
    code: int = 0
    words: tuple[str, ...] = ()


# Stands for a folder on another file system than the run's, wherever this machine has one.
ELSEWHERE = "another file system"
# Where the capital of i is no I.
TURKISH = "tr_TR.UTF-8"
# With UTF-8 neither asked for nor allowed, Python cannot read the letters of a path, nor write them back.
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
HARMLESS: Mapping[str, Mapping[str, str | None]] = {
    "C": {"LC_ALL": "C", "LANG": "C"},
    "POSIX without UTF-8": ASCII,
    "Turkish": {"LC_ALL": TURKISH, "LANG": TURKISH},
    "seed of hashes": {"PYTHONHASHSEED": "7"},
    "time zone": {"TZ": "Pacific/Chatham"},
    "no home": {"HOME": None, "USER": None, "LOGNAME": None},
    "TMPDIR": {"TMPDIR": ELSEWHERE},
}
PROCESSES: Mapping[str, Process] = {
    **{name: Process(values) for name, values in HARMLESS.items()},
    "all that is harmless": Process(
        {name: value for values in HARMLESS.values() for name, value in values.items()}, umask=0o077
    ),
    "threads": Process({"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}, differs="OMP_NUM_THREADS"),
    "CPU capability": Process({"ATEN_CPU_CAPABILITY": "default"}, differs="ATEN_CPU_CAPABILITY"),
    "letters in ASCII": Process(ASCII, code=2, words=("cannot stand in a config.yaml",)),
}
