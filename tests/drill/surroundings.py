"""L13: other surroundings at a resume: where it runs, what the machine is, what the data and the configuration are."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from pretrain import lineage, syscalls
from pretrain.config import difference, parse, resumed, to_yaml
from pretrain.errors import PretrainError
from tests.drill.changed_keys import ENTRIES, all_keys, allow_list, another, configuration, keys_of, pattern_of
from tests.drill.layer import Layer
from tests.drill.surrounding_cases import CASES, ELSEWHERE, LETTERS, PROCESSES, SPACES, TURKISH, Case, Process
from tests.loop.lineages import End, end_of, tree
from tests.loop.probes import Unsynced, newest_attempt
from tests.loop.test_thermal import FakeSensors, say
from tests.tiny import go_on, train

ROOT = Path(__file__).parents[2]
STOPPED = 3
# Where another file system may be than the one that the drill lies on.
PLACES = ("/dev/shm", "/tmp", "/var/tmp", "/run/lock", str(ROOT))


class Surroundings:
    """A run that is stopped and resumed, and how it ends where nothing changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stopped: dict[str, Path] = {}
        self._end = self._untouched("untouched")
        self._keys: dict[str, str] = {}
        patterns: set[str] = set()
        for name in ENTRIES:
            own = folder / f"keys of {name}"
            own.mkdir()
            for key in keys_of(configuration(name, own)):
                if pattern_of(key) not in patterns:
                    patterns.add(pattern_of(key))
                    self._keys[key] = name
        assert patterns >= all_keys().keys(), f"no configuration has {all_keys().keys() - patterns}"

    def points(self, *, whole: bool) -> Sequence[str]:
        """All of them; of a quick part every third case, one process, and some of the keys."""
        cases, processes, keys = [*CASES], [*PROCESSES], [f"{name} {key}" for key, name in self._keys.items()]
        if not whole:
            cases, processes, keys = cases[::3], ["all that is harmless"], keys[:120:9]
        points = {"case": cases, "process": processes, "key": keys, "moved": ["twice"] if whole else []}
        return [f"{kind} {name}" for kind, names in points.items() for name in names]

    def check(self, point: str, folder: Path) -> None:
        """Resume in the other surroundings: the same bytes, a reason on record, or a refusal that says what it is."""
        kind, _, name = point.partition(" ")
        if kind == "key":
            self._key(*name.split(" "), folder)
        elif kind == "process":
            self._process(PROCESSES[name], folder)
        elif kind == "moved":
            self._moved_twice(folder)
        else:
            self._case(CASES[name], folder)

    def _case(self, case: Case, folder: Path) -> None:
        stop("text", folder)
        with case.change(folder / "run") as path:
            run = path.resolve()
            if case.code or case.differs:
                before = tree(run)
                refusal = refused(path, *case.overrides, require_bit_exact=not case.code)
                assert refusal.exit_code == (case.code or 2), refusal
                words = case.words or ("--require-bit-exact", case.differs)
                assert all(word in str(refusal) for word in words), refusal
                assert tree(run) == before, "a refused resume changed the run"
            if not case.code:
                assert go_on(path, *case.overrides).verdict == "done"
                self._same(run, case.differs)

    def _same(self, run: Path, differs: str) -> None:
        """The end is that of the untouched run, or its manifest says why it may be another."""
        manifest: dict[str, Any] = json.loads((newest_attempt(run) / "manifest.json").read_bytes())
        assert manifest["bit_exact"] is not bool(differs), manifest["reasons"]
        assert bool(manifest["reasons"]) == bool(differs), manifest["reasons"]
        assert any(differs in reason for reason in manifest["reasons"] or [""]), manifest["reasons"]
        if differs:
            assert lineage.verify(newest_attempt(run)).ok
        else:
            assert end_of(run) == self._end, "another end"

    def _process(self, process: Process, folder: Path) -> None:
        with _temporaries(process, folder) as variables:
            self._of_its_own(process, folder, variables)

    def _of_its_own(self, process: Process, folder: Path, changed: Mapping[str, str | None]) -> None:
        stop("text", folder)
        run = (folder / "run").rename(folder / LETTERS) if process.code else folder / "run"
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "LOCPATH": str(folder), **changed}
        if shutil.which("localedef") and TURKISH in variables.values():  # Else the name means the C locale.
            subprocess.run(["localedef", "-i", "tr_TR", "-f", "UTF-8", folder / TURKISH], check=True)
        known = {name: value for name, value in variables.items() if value is not None}
        command = [sys.executable, "-m", "pretrain", "resume", "--attempt", str(run), "--quiet", "--json"]
        done = subprocess.run(
            command, cwd=folder, env=known, umask=process.umask, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == process.code, done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        assert all(word in done.stderr for word in process.words), done.stderr
        if not process.code:
            self._same(run, process.differs)

    def _moved_twice(self, folder: Path) -> None:
        stop("text", folder)
        place = folder / SPACES / LETTERS
        place.parent.mkdir(parents=True)
        run = (folder / "run").rename(place)
        assert go_on(run, stop_after=1).verdict == "interrupted"
        run = run.rename(folder / "back again")
        assert go_on(run).verdict == "done"
        self._same(run, "")

    def _key(self, name: str, key: str, folder: Path) -> None:
        """A key is allowed by the document, and changes no byte, or the resume is refused, and changes nothing."""
        shared = self._shared(name)
        config = configuration(name, shared)
        overrides, is_valid = another(config, key, folder)
        is_new = key.startswith("init.") and keys_of(config)[key] is None  # Other weights, not another place of them.
        if not is_valid or is_new or not any(fnmatchcase(key, pattern) for pattern in allow_list()):
            before, refusal = tree(shared / "run"), refused(shared / "run", *overrides)
            assert refusal.exit_code == 2, refusal
            told = f"resume: {key} was " if is_valid and key != "model.experts" else key
            assert told in str(refusal), refusal
            assert tree(shared / "run") == before, "a refused resume changed the run"
        elif key.startswith("telemetry.trackers."):  # What a tracker's library does is no matter of this layer.
            child = resumed(parse(to_yaml(config), "config.yaml"), overrides)
            assert not difference(config, child).refused
        else:
            self._allowed(key, overrides, folder)

    def _allowed(self, key: str, overrides: Sequence[str], folder: Path) -> None:
        stop("text", folder)
        (folder / "elsewhere").mkdir()
        shutil.copy(folder / "corpus.txt", folder / "elsewhere")
        run = folder / "run"
        if key == "training.device" and not torch.cuda.is_available():
            assert "training.device" in str(refused(run, *overrides))
            return
        if key == "run.dir":
            assert f"run.dir: a resume opens its attempt in the run that it goes on with, {run}" in str(
                refused(run, *overrides)
            )
            overrides = [f"run.dir={run}"]
        with mock.patch("pretrain.attempt.prepare.Sensors", FakeSensors):
            say(70.0)
            assert go_on(run, *overrides).verdict == "done"
        if key == "training.max_steps":
            assert end_of(run) == self._untouched("longer", *overrides, "scheduler.scheduler_total_steps=6")
        else:
            self._same(run, {"training.threads": "threads", "training.device": "device"}.get(key, ""))
        assert [path.name for path in folder.iterdir() if (path / "attempts").exists()] == ["run"], "a run elsewhere"

    def _shared(self, name: str) -> Path:
        """Return where a run of a configuration lies, stopped after its first step, that nothing may change."""
        if name not in self._stopped:
            self._stopped[name] = self._folder / f"stopped {name}"
            self._stopped[name].mkdir()
            if name != "trackers":
                stop(name, self._stopped[name], 1)
        return self._stopped[name]

    def _untouched(self, name: str, *overrides: str) -> End:
        own = self._folder / name
        own.mkdir()
        assert train(configuration("text", own, *overrides)).verdict == "done"
        return end_of(own / "run")


@contextmanager
def _temporaries(process: Process, folder: Path) -> Iterator[Mapping[str, str | None]]:
    """Yield the variables of a process, whose TMPDIR is a folder on another file system, in which it leaves nothing."""
    if process.environment.get("TMPDIR") != ELSEWHERE:
        yield process.environment
        return
    places = [place for place in map(Path, PLACES) if os.access(place, os.W_OK | os.X_OK)]
    other = [place for place in places if place.stat().st_dev != folder.stat().st_dev]
    if not other:
        print(f"SKIPPED L13: of {', '.join(PLACES)} none is on another file system than {folder}", flush=True)
    with tempfile.TemporaryDirectory(dir=(other or [folder])[0]) as temporaries:
        yield {**process.environment, "TMPDIR": temporaries}
        assert os.listdir(temporaries) == [], "something was left in TMPDIR"


def stop(name: str, folder: Path, after: int = STOPPED) -> None:
    """Leave a run of a configuration in `folder`, stopped as by a signal after some steps."""
    assert train(configuration(name, folder), after).verdict == "interrupted"


def refused(path: Path, *overrides: str, require_bit_exact: bool = False) -> PretrainError:
    """Return how a resume is refused."""
    try:
        result = go_on(path, *overrides, require_bit_exact=require_bit_exact)
    except PretrainError as error:
        return error
    raise AssertionError(f"{overrides}: not refused, {result}")


@contextmanager
def opened(folder: Path, seed: int) -> Iterator[Surroundings]:
    """Train the run that nothing changes around; `seed` changes nothing, since every point is gone through."""
    with mock.patch.object(syscalls, "system", Unsynced()):
        yield Surroundings(folder)


LAYER = Layer("L13", "other places, variables, machines, versions, data and settings at a resume", (24, 205), opened)
