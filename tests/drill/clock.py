"""L12: clocks that jump by years, go back or stand still, and files from the future: the same bytes all the same."""

import gc
import itertools
import os
import random
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from pretrain.evidence import events, namespace
from tests.drill.layer import Layer
from tests.loop.forks import Forks, Life, Order, live_on
from tests.loop.lineages import end_of, small_config

DAY, YEAR = 86400.0, 365.25 * 86400.0
HURT = "faults.inject=[nan_grad@1, nan_weight@5]"
RUNS = {"text": (6, ()), "iq": (6, ()), "hurt": (8, (HURT,))}
# What the clock of the day may do. The others never go back, and never stand still while something is waited for.
JUMPS = ("years ahead", "a day back", "still", "before 1970", "anywhere")
OTHERS = ("years ahead", "still")
# The rule of Europe/Berlin, for which no file of zones is needed, and the seconds since 1970 at which its clocks on the
# wall jump, an hour ahead and an hour back.
ZONE = "CET-1CEST,M3.5.0,M10.5.0/3"
SWITCHES = {"summer time": 1774746000.0, "winter time": 1792890000.0}
REAL = {"time": time.time, "monotonic": time.monotonic, "perf_counter": time.perf_counter}


class Clocks:
    """Short runs, and their ends by a clock that is right."""

    def __init__(self, forks: Forks, folder: Path) -> None:
        self._forks, self._configs, self._ends = forks, {}, {}
        for name, (steps, overrides) in RUNS.items():
            own = folder / name
            own.mkdir()
            config = small_config(own, "iq" if name == "iq" else "text", steps, 2, *overrides)
            life = forks.live(Order(str(own / "run"), str(own / "log"), str(config)))
            assert life.exit_code == 0
            self._configs[name], self._ends[name] = config, end_of(own / "run")

    def points(self, *, whole: bool) -> Sequence[str]:
        """Return each run with each jump of the clock of the day and of the others, and files from the future."""
        runs = list(RUNS) if whole else ["text"]
        of_the_day = [f"{run} time {jump}" for run in runs for jump in JUMPS]
        others = [f"{run} {clock} {jump}" for run in runs for clock in ("monotonic", "perf_counter") for jump in OTHERS]
        future = [f"{run} files from the future" for run in runs]
        switches = [f"{run} time {switch}" for run in runs for switch in SWITCHES]
        return [*of_the_day, *others, *future, *switches] if whole else [*of_the_day, *others[:2], *future]

    def check(self, point: str, folder: Path) -> None:
        """Train by this clock until a kill, go on by it to the end; or go on among files that are not written yet."""
        name, _, what = point.partition(" ")
        run = folder / "run"
        future = what == "files from the future"
        words = () if future else tuple(what.split(" ", 1))
        self._live(folder, str(self._configs[name]), words, kill_at=120)
        if future:
            later = time.time() + 10 * YEAR
            for place in (run, *run.rglob("*"), self._configs[name].with_name("corpus.txt")):
                if place.exists():
                    os.utime(place, (later, later))
        life = self._live(folder, None, words)
        assert life.exit_code == 0, (folder / "log").read_text()
        assert "Traceback" not in (folder / "log").read_text()
        assert end_of(run) == self._ends[name], "another end"
        if words[-1:] and words[-1] in SWITCHES:
            _check_times(run, SWITCHES[words[-1]])

    def _live(self, folder: Path, config: str | None, clock: tuple[str, ...], kill_at: int = 0) -> Life:
        does = "tests.drill.clock:live_by_this_clock" if clock else ""
        overrides = ("training.watchdog_timeout_seconds=60",) if "monotonic" in clock else ()
        run, log = str(folder / "run"), str(folder / "log")
        return self._forks.live(Order(run, log, config, kill_at, overrides=overrides, does=does, words=clock))


def live_by_this_clock(order: Order) -> int:
    """In a child: train or resume by a clock that does what the words say."""
    which, how = order.words
    if how in SWITCHES:
        os.environ["TZ"] = ZONE
        time.tzset()
        hours = {time.localtime(SWITCHES[how] + seconds).tm_hour for seconds in (-1, 0)}
        assert hours == ({1, 3} if how == "summer time" else {2}), "the clocks on the wall do not jump here"
    calls = itertools.count()
    turn(which, _clock(REAL[which], how, calls))
    code = live_on(order)
    assert next(calls), "nobody has looked at this clock"
    return code


def _clock(real: Callable[[], float], how: str, calls: Iterator[int]) -> Callable[[], float]:
    began, chance = real(), random.Random(how)

    def clock() -> float:
        call = next(calls)
        match how:
            case "years ahead":
                return real() + YEAR * (call // 7)
            case "a day back":
                return real() - DAY * (call // 7)
            case "still":
                return began
            case "summer time" | "winter time":  # two seconds from look to look, from soon before the jump
                return SWITCHES[how] - 60.0 + 2.0 * call
            case "before 1970":
                return real() - (began + YEAR if call % 2 else 0.0)
            case _:
                return chance.uniform(-1e12, 1e12)

    return clock


def turn(which: str, clock: Callable[[], float]) -> None:
    """Put a clock in the place of that of `time`, also where a function of ours has the real one as a default."""
    real = REAL[which]
    gc.unfreeze()  # what was frozen before the fork is not looked through
    for one in gc.get_objects():
        if isinstance(one, types.FunctionType) and str(one.__module__).startswith("pretrain"):
            one.__defaults__ = _turned(one.__defaults__, real, clock)
            one.__kwdefaults__ = one.__kwdefaults__ and {
                name: clock if value is real else value for name, value in one.__kwdefaults__.items()
            }
    for module in [module for name, module in sys.modules.items() if name.startswith("pretrain")]:
        for name, value in list(vars(module).items()):
            if value is real:
                setattr(module, name, clock)
    setattr(time, which, clock)


def _turned(defaults: tuple[Any, ...] | None, real: object, clock: object) -> tuple[Any, ...] | None:
    return defaults and tuple(clock if value is real else value for value in defaults)


def _check_times(run: Path, switch: float) -> None:
    """What is on record is UTC: it goes on evenly where the clocks on the wall jump, and is off by no hour."""
    for number in namespace.list_attempts(run):
        times = [row["time"] for row in events.read(namespace.attempt_folder(run, number))]
        assert times == sorted(times), times
        assert switch - 1800.0 < times[0] < switch < times[-1] < switch + 1800.0, times


@contextmanager
def opened(folder: Path, seed: int) -> Iterator[Clocks]:
    """Start the process that forks; `seed` changes nothing."""
    with mock.patch.dict(os.environ, PRETRAIN_ALLOW_FAULTS="1"), Forks() as forks:
        yield Clocks(forks, folder)


LAYER = Layer("L12", "clocks that jump, go back or stand still, and files from the future", (8, 33), opened)
