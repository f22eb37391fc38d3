"""L3: real processes, and each signal in each phase of a run: the exit code of the table, and the same end after it."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from pretrain.attempt import resume_attempt
from pretrain.config import RunConfig, load
from pretrain.evidence import checkpoint, namespace
from pretrain.machine.signals import STOP_SIGNALS, StopRequest
from tests.drill.layer import Layer
from tests.loop.lineages import Tree, end_of, small_config, tree
from tests.tiny import train

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 120
# A drill of the thermal guard, whose pause lasts until the next reading: of a cool GPU, since there is none.
PAUSES = (
    *("faults.inject=[temperature@3x90]", "thermal.gpu_temp_guard=true", "telemetry.gpu_metrics_backend=nvml"),
    "thermal.gpu_temp_poll_interval_seconds=0.05",
)
WATCHED_SECONDS = 2.0  # of a run that is suspended for longer than that
KILLS, HIT = 30, 2 / 3
MOST = "most of the kills"

# There is no phase of compiling: this version never calls torch.compile (see "Not in this version" in the README).
# Nothing of an attempt is there yet, and nothing is left of one.
BEFORE = ("imports", "more imports", "building", "loading the parent")
# What is done is done: the signal changes nothing any more.
BEHIND = ("manifest", "end")
QUICK = (
    *("before it listens=SIGTERM", "validation=SIGUSR1", "second save=SIGHUP+SIGINT", "loading the parent=SIGKILL"),
    "manifest=SIGTERM",
)
WHOLE = (
    *QUICK,
    *("before it listens=SIGKILL", "before it listens=SIGHUP", "imports=SIGTERM", "imports=SIGINT+SIGTERM"),
    *("more imports=SIGHUP", "building=SIGINT", "building=SIGKILL", "loading the parent=SIGUSR1"),
    *("loading the parent=SIGHUP+SIGTERM", "opening the attempt=SIGTERM", "opening the attempt=SIGKILL"),
    *("step=SIGINT", "step=SIGTERM; third save=SIGINT", "step=SIGKILL", "step=SIGCONT", "baselines=SIGHUP"),
    *("baselines=SIGKILL", "validation=SIGKILL", "validation=SIGINT+SIGUSR1", "second validation=SIGTERM"),
    *("pause=SIGTERM", "pause=SIGUSR1+SIGTERM", "pause=SIGKILL", "pause=SIGCONT", "save=SIGTERM", "save=SIGKILL"),
    *("second save=SIGUSR1", "second save=SIGCONT", "record=SIGINT", "record=SIGKILL", "pruning=SIGTERM"),
    *("pruning=SIGKILL", "hashing=SIGTERM", "hashing=SIGKILL", "manifest=SIGKILL", "end=SIGINT"),
    # Two at once where there is one above, and one after the other, the same one too.
    *("building=SIGINT+SIGTERM", "opening the attempt=SIGHUP+SIGTERM", "record=SIGINT+SIGTERM"),
    *("pruning=SIGHUP+SIGUSR1", "hashing=SIGUSR1+SIGTERM", "manifest=SIGINT+SIGTERM", "end=SIGHUP+SIGTERM"),
    *("manifest=SIGTERM; end=SIGINT", "step=SIGHUP; third save=SIGHUP"),
)


@dataclass(frozen=True)
class Ended:
    """How a process ended, what it said on stderr, and how long it has lived."""

    code: int
    said: str
    seconds: float


class Signals:
    """One short run, and what a child of it goes on from; its end when nothing is sent."""

    def __init__(self, folder: Path, seed: int) -> None:
        chance = random.Random(seed)
        # Of a life, one in each thirtieth of it: a moment that has a name is the same on a machine of another speed.
        self._kills = [f"{(at + chance.random()) / KILLS:.3f} of a life=SIGKILL" for at in range(KILLS)]
        self._found: dict[str, str] = {}
        self._seconds = 0.0
        self._config = small_config(folder, "text", 8, 2, *PAUSES)
        self._folder, self._parent, untouched = folder, folder / "parent", folder / "untouched"
        train(load(self._config, [f"run.dir={self._parent}"]), stop_after=5)
        assert train(load(self._config, [f"run.dir={untouched}"])).exit_code == 0
        self._end = end_of(untouched)

    def points(self, *, whole: bool) -> Sequence[str]:
        """Each phase with some signals; of the whole also kills at moments that nobody chose, and what they hit."""
        return [*WHOLE, *self._kills, MOST] if whole else QUICK

    def check(self, point: str, folder: Path) -> None:
        """Make one point, or look at what the kills at moments that nobody chose have hit."""
        if point == MOST:
            self._check_kills(folder)
        else:
            self._check_one(point, folder)

    def _check_one(self, point: str, folder: Path) -> None:
        """Send the signals in their phases, look at the exit code and at what is left, and go on to the end."""
        sent = [(phase, names.split("+")) for phase, _, names in (one.partition("=") for one in point.split("; "))]
        run, resumes = folder / "run", sent[0][0] == "loading the parent"
        if resumes:
            shutil.copytree(self._parent, run)
        before = _attempts(run)
        ended = self._live(sent, run, folder / "log")
        self._check_end(sent, ended, run, set(before))
        after = _attempts(run)
        self._found[point] = ("in an attempt" if after else "before it") if ended.code else "too late"
        assert {number: after.get(number) for number in before} == before, "the parent was touched"
        if ended.code != 0:
            result = resume_attempt(run, [], StopRequest(), []) if after else train(self._load(run))
            assert result.exit_code == 0, result
            now = _attempts(run)
            assert {number: now.get(number) for number in after} == after, "an earlier attempt was touched"
        assert end_of(run) == self._end, "another end"
        assert not list((run / "attempts").glob(".tmp-*")), "temporaries are left"

    def _live(self, sent: Sequence[tuple[str, list[str]]], run: Path, log: Path) -> Ended:
        """Live once as a process of its own, to which each phase brings its signals."""
        words = ["resume", "--attempt", str(run)]
        if not run.exists():
            words = ["train", "--config", str(self._config), f"run.dir={run}"]
        if any("SIGCONT" in names for _, names in sent):
            words.append(f"training.watchdog_timeout_seconds={WATCHED_SECONDS}")
        moment = re.fullmatch(r"(\S+) of a life", sent[0][0]) if sent else None
        seconds = float(moment[1]) * self._life() if moment else 0.0
        module = ["tests.drill.standing", ",".join(phase for phase, _ in sent)] if sent and not moment else ["pretrain"]
        born = time.monotonic()
        with log.open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", *module, *words], cwd=ROOT, stdout=said, stderr=said, preexec_fn=_listening
            )
        try:
            for phase, names in sent:
                if moment:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(seconds)
                else:
                    assert _stands(process), f"it never came to: {phase}\n{log.read_text()}"
                if names == ["SIGCONT"]:
                    time.sleep(1.5 * WATCHED_SECONDS)
                for name in names:
                    process.send_signal(signal.Signals[name])
                process.send_signal(signal.SIGCONT)
            code = process.wait(PATIENCE_SECONDS)
        finally:
            process.kill()
        return Ended(code, log.read_text(), time.monotonic() - born)

    def _life(self) -> float:
        """Return how many seconds a life takes to which nothing is sent: the shortest that was seen."""
        if not self._seconds:
            ended = self._live((), self._folder / "life", self._folder / "life.log")
            assert ended.code == 0, ended.said
            self._seconds = ended.seconds
        return self._seconds

    def _check_kills(self, folder: Path) -> None:
        """The kills at moments that nobody chose have hit what was alive, before there was an attempt and in one."""
        for number, point in enumerate(self._kills):
            if point not in self._found:
                (folder / str(number)).mkdir()
                self._check_one(point, folder / str(number))
        found = Counter(self._found[point] for point in self._kills)
        assert found["before it"] + found["in an attempt"] >= HIT * KILLS, f"most came when it had ended: {found}"
        assert min(found["before it"], found["in an attempt"]) >= 1, f"they were all in one part of a life: {found}"

    def _check_end(self, sent: Sequence[tuple[str, list[str]]], ended: Ended, run: Path, before: set[int]) -> None:
        phase, names = sent[-1][0], [name for _, of_phase in sent for name in of_phase]
        # A machine that has become faster since a life was measured may be done before the kill.
        if is_late := phase.endswith("of a life") and ended.code == 0:
            self._seconds = min(self._seconds, ended.seconds)
        expected = (0,) if is_late else _codes(phase, names, are_at_once=len(sent[-1][1]) > 1)
        assert ended.code in expected, f"expected exit code {expected}, found {ended.code}\n{ended.said}"
        assert "Traceback" not in ended.said, ended.said
        numbers = set(namespace.list_attempts(run))
        durable = [step for number in numbers for step, _ in _checkpoints(run, number)]
        announced = [int(step) for step in re.findall(r"^saved: checkpoint of step (\d+)$", ended.said, re.MULTILINE)]
        assert max(announced, default=-1) <= max(durable, default=-1), "a checkpoint that was announced is lost"
        if phase in BEFORE and ended.code in (75, -signal.SIGKILL):
            assert numbers == before, "an attempt was begun"
        elif ended.code == 75:
            outcome = json.loads((namespace.attempt_folder(run, max(numbers)) / "outcome.json").read_bytes())
            assert (outcome["verdict"], outcome["signal"]) == ("interrupted", names[0]), outcome
            assert outcome["checkpoint"] is not None, outcome
            assert outcome["checkpoint"]["step"] == outcome["step"], "what was reached is not saved"

    def _load(self, run: Path) -> RunConfig:
        return load(self._config, [f"run.dir={run}"])


def _codes(phase: str, names: Sequence[str], *, are_at_once: bool) -> tuple[int, ...]:
    """Return the exit codes that signals in a phase lead to.

    are_at_once: the last two were sent together; which of them is second is for the system and the threads to say.
    """
    numbers = sorted(signal.Signals[name] for name in names)
    if signal.SIGKILL in numbers or phase == "before it listens":
        return (-numbers[-1],)
    if names == ["SIGCONT"] or (phase in BEHIND and len(names) == 1):
        return (0,)
    if len(names) == 1:
        return (75,)
    return tuple(128 + signal.Signals[name] for name in (names[-2:] if are_at_once else names[-1:]))


def _listening() -> None:
    """A drill under nohup ignores SIGHUP, one in the background of a script SIGINT, and so would all that it starts."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def _stands(process: subprocess.Popen[bytes]) -> bool:
    """Wait until the process has stopped itself, which is true, or has ended."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        found = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is not None and found.si_code == os.CLD_STOPPED:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            return True
        if found is not None:
            return False
        time.sleep(0.005)
    return False


def _checkpoints(run: Path, number: int) -> list[tuple[int, Path]]:
    return checkpoint.list_checkpoints(namespace.attempt_folder(run, number))


def _attempts(run: Path) -> dict[int, Tree]:
    return {number: tree(namespace.attempt_folder(run, number)) for number in namespace.list_attempts(run)}


@contextmanager
def opened(folder: Path, seed: int) -> Iterator[Signals]:
    """Train the untouched run; `seed` chooses the moments of the kills that no phase is behind."""
    with mock.patch.dict(os.environ, PRETRAIN_ALLOW_FAULTS="1", OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT)):
        yield Signals(folder, seed)


LAYER = Layer("L3", "real processes: signals in every phase, one and two, and kills", (5, 73), opened)
