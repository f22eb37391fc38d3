"""L10: the temperatures of a GPU: random sequences against a reference, and runs that are paused, ended and resumed."""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

from pretrain.policy.thermal import ThermalSettings, is_known
from tests.drill.layer import Layer
from tests.loop.lineages import End, end_of
from tests.loop.probes import newest_attempt
from tests.loop.test_thermal import FakeSensors, guarded, say, told
from tests.machine.test_nvml_library import GUARDED, Machine, compile_library
from tests.policy.test_thermal import reference, states_of, temperatures_of
from tests.tiny import go_on, tiny, train, write_config

WORDS = ("pause", "stop", "ignore")
COOL = 60.0
# What the compiled library says to a real process, and the code that it ends with.
PROCESSES = {
    "hot, cool, hot, too hot": ("temperatures 70  70 70 90  80 75 74  85 70 96", 5),
    "too hot at once": ("temperatures 70 96", 5),
    "cool throughout": ("temperatures 70", 0),
    "unreadable at the start": ("read 15", 2),
}


class Temperatures:
    """The state machine alone, tiny runs in this process, and real processes over the compiled library."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        assert train(tiny(folder, run="untouched")).verdict == "done"
        self._end: End = end_of(folder / "untouched")

    def points(self, *, whole: bool) -> Sequence[str]:
        """A thousand sequences, forty runs and four processes; a quick part has a tenth of them, and no process."""
        sequences, runs = (1000, 40) if whole else (100, 4)
        first = self._seed * 1000
        return [
            *(f"sequence {word} {first + number}" for number in range(sequences) for word in WORDS),
            *(f"run {WORDS[number % 3]} {first + number}" for number in range(runs)),
            *(f"process {name}" for name in PROCESSES if whole),
        ]

    def check(self, point: str, folder: Path) -> None:
        """Compare states with the reference, or a run with the untouched one."""
        kind, _, rest = point.partition(" ")
        if kind == "process":
            self._process(folder, *PROCESSES[rest])
            return
        word, number = rest.split()
        if kind == "run":
            self._run(folder, word, int(number))
            return
        temperatures = temperatures_of(int(number))
        states = states_of(temperatures, ThermalSettings(gpu_temp_guard=True, on_unreadable=word))
        assert states == reference(temperatures, word), temperatures

    def _run(self, folder: Path, word: str, number: int) -> None:
        """Train over the sensors of a random walk, with a resume after each end, as often as it takes."""
        chance = random.Random(number)
        readings = [*(one for one in temperatures_of(number) for _ in range(chance.choice((1, 1, 3)))), COOL]
        ended = 0
        with mock.patch("pretrain.attempt.prepare.Sensors", FakeSensors):
            while True:
                # The reading of the start is a cool one: a guard that cannot read it is refused, see PROCESSES.
                say(COOL, *readings)
                overrides = (f"thermal.on_unreadable={word}",)
                result = go_on(folder / "run") if ended else train(guarded(folder, *overrides))
                seen = [COOL, *readings][: FakeSensors.asked]
                self._check_told(newest_attempt(folder / "run"), seen[1:], word, result.verdict)
                if result.verdict == "done":
                    break
                assert (result.verdict, result.exit_code) == ("thermal", 5)
                assert reference(seen[1:], word)[-1] == "aborted"
                ended, readings = ended + 1, readings[FakeSensors.asked - 1 :]
        assert end_of(folder / "run") == self._end, f"another end after {ended} ends for the heat"

    def _check_told(self, attempt: Path, seen: list[float | None], word: str, verdict: str) -> None:
        """`events.jsonl` has each pause and its end, and nothing else, at the readings that the reference names."""
        states = ["normal", *reference(seen, word)]
        expected = {("normal", "paused"): "paused", ("paused", "normal"): "unpaused"}
        steps = [(expected[pair], seen[place]) for place, pair in enumerate(pairwise(states)) if pair in expected]
        found = [(name, degrees) for name, _, degrees in told(attempt, "paused", "unpaused")]
        assert [name for name, _ in found] == [name for name, _ in steps], (verdict, seen)
        for (_, shown), (_, read) in zip(found, steps, strict=True):
            assert shown == read or not is_known(read), (shown, read)

    def _process(self, folder: Path, said: str, code: int) -> None:
        compile_library(folder)
        machine, config, run = Machine(folder, folder), write_config(folder), folder / "run"
        machine.say(said)
        found, _, err = machine.run("train", "--config", config, *GUARDED)
        assert found == code, err
        assert "Traceback" not in err
        if code == 2:
            assert "thermal.gpu_temp_guard" in err
            assert not run.exists()
            return
        if code == 5:
            outcome: dict[str, Any] = json.loads((newest_attempt(run) / "outcome.json").read_bytes())
            assert (outcome["verdict"], outcome["exit_code"]) == ("thermal", 5)
            machine.say("temperatures 70")
            found, _, err = machine.run("resume", "--attempt", run, "--quiet")
            assert found == 0, err
        assert end_of(run) == self._end


@contextmanager
def opened(folder: Path, seed: int) -> Iterator[Temperatures]:
    """Train the run that no sensor watches."""
    yield Temperatures(folder, seed)


LAYER = Layer("L10", "temperatures of a GPU: pauses, ends, sensors that are lost or say nonsense", (304, 3044), opened)
