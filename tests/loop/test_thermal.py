"""The thermal guard in a whole run, over sensors that say what a test wants: waiting, ending, moving to the CPU."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain.attempt import AttemptResult, start_attempt
from pretrain.config import RunConfig
from pretrain.errors import ConfigError
from pretrain.loop import LoopParts
from pretrain.machine.nvml import Reading
from pretrain.machine.signals import StopRequest
from tests.loop.lineages import end_of
from tests.loop.probes import last_record, newest_attempt
from tests.loop.states import States, whole
from tests.tiny import Recorder, go_on, tiny, train

ON = ("thermal.gpu_temp_guard=true", "telemetry.gpu_metrics_backend=nvml")
AT_ONCE = "thermal.gpu_temp_poll_interval_seconds=1e-9"  # a reading before every step, and no sleep
OFF = ("thermal.gpu_temp_guard=false", "telemetry.gpu_metrics_backend=none")


class FakeSensors:
    """Readings in their order, of which the last stays; `then` is called before each with its number."""

    readings: tuple[float | None, ...] = (70.0,)
    then: Callable[[int], None] | None = None
    asked = 0
    closed = 0

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def temperature_c(self) -> float | None:
        cls = FakeSensors
        number, cls.asked = cls.asked, cls.asked + 1
        if cls.then is not None:
            cls.then(number)
        return cls.readings[min(number, len(cls.readings) - 1)]

    def read(self) -> Reading:
        return Reading(None, None, None, None)

    def close(self) -> None:
        FakeSensors.closed += 1


@pytest.fixture(autouse=True)
def _sensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretrain.attempt.prepare.Sensors", FakeSensors)
    say(70.0)


def say(*readings: float | None, then: Callable[[int], None] | None = None) -> None:
    """The first reading is that of the start, the next those before the steps."""
    FakeSensors.readings, FakeSensors.then, FakeSensors.asked, FakeSensors.closed = readings, then, 0, 0


def guarded(folder: Path, *overrides: str, task: str = "text", run: str = "run") -> RunConfig:
    return tiny(folder, task, *ON, AT_ONCE, *overrides, run=run)


def untouched(folder: Path, task: str = "text") -> Any:
    assert train(tiny(folder, task, run="untouched")).verdict == "done"
    return end_of(folder / "untouched")


def events(attempt: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (attempt / "events.jsonl").read_text().splitlines()]


def told(attempt: Path, *names: str) -> list[tuple[Any, ...]]:
    rows = [row for row in events(attempt) if row["event"] in names]
    return [(row["event"], row["step"], row["temperature_c"]) for row in rows]


@pytest.mark.parametrize("task", ["text", "iq"])
def test_a_pause_changes_no_bit(tmp_path: Path, task: str) -> None:
    say(70.0, 86.0, 75.0, 74.9, 85.0, 80.0, 95.0, 80.0, 60.0)
    screen = Recorder()
    assert start_attempt(guarded(tmp_path, task=task), StopRequest(), [screen]).verdict == "done"
    attempt = tmp_path / "run/attempts/0001"
    assert told(attempt, "paused", "unpaused") == [
        *(("paused", 0, 86.0), ("unpaused", 0, 74.9), ("paused", 3, 95.0), ("unpaused", 3, 60.0)),
    ]
    assert all(row["seconds"] >= 0 for row in events(attempt) if row["event"] == "unpaused")
    notes = [event for event in screen.events if getattr(event, "kind", "") in ("paused", "unpaused")]
    assert [note.kind for note in notes] == ["paused", "unpaused"] * 2  # type: ignore[union-attr]
    assert "86 °C; step 1 waits until it is below 75 °C" in notes[0].text  # type: ignore[union-attr]
    assert end_of(tmp_path / "run") == untouched(tmp_path, task)


@pytest.mark.parametrize("step", [0, 3, 4])
@pytest.mark.parametrize("is_paused", [False, True])
def test_too_hot_saves_and_ends_with_5_and_a_resume_goes_on(tmp_path: Path, step: int, is_paused: bool) -> None:
    say(70.0, *[70.0] * step, *[90.0] * is_paused, 95.1)
    result = train(guarded(tmp_path))
    assert (result.verdict, result.exit_code, result.step) == ("thermal", 5, step)
    outcome = json.loads((tmp_path / "run/attempts/0001/outcome.json").read_bytes())
    assert outcome["checkpoint"]["step"] == step
    assert outcome["resume"] is not None
    assert "95.1 °C" in outcome["reason"]
    say(70.0)
    assert go_on(tmp_path / "run").verdict == "done"
    assert end_of(tmp_path / "run") == untouched(tmp_path)


@pytest.mark.parametrize("step", [0, 3, 4])
def test_a_signal_ends_a_pause(tmp_path: Path, step: int) -> None:
    stop = StopRequest()

    def signalled(number: int) -> None:
        stop.name = "SIGTERM" if number == step + 3 else stop.name

    say(70.0, *[70.0] * step, 90.0, then=signalled)
    result = start_attempt(guarded(tmp_path), stop, [Recorder()])
    assert (result.verdict, result.exit_code, result.step) == ("interrupted", 75, step)
    say(70.0)
    assert go_on(tmp_path / "run", *OFF).verdict == "done"
    assert end_of(tmp_path / "run") == untouched(tmp_path)


def test_a_guard_that_is_off_reads_nothing(tmp_path: Path) -> None:
    assert train(tiny(tmp_path, "text", "telemetry.gpu_metrics_backend=nvml")).verdict == "done"
    assert FakeSensors.asked == 0


@pytest.mark.parametrize("reading", [None, math.nan, 0.0, 255.0, math.inf])
@pytest.mark.parametrize("word", ["pause", "stop", "ignore"])
def test_s47_what_cannot_be_read_at_the_start_is_refused(tmp_path: Path, reading: float | None, word: str) -> None:
    say(reading)
    with pytest.raises(ConfigError, match=r"thermal\.gpu_temp_guard: the temperature of the GPU cannot be read"):
        train(guarded(tmp_path, f"thermal.on_unreadable={word}"))
    assert not (tmp_path / "run").exists()
    assert FakeSensors.closed == 1


def test_s47_a_machine_without_sensors_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretrain.attempt.prepare.Sensors", no_sensors)
    with pytest.raises(ConfigError, match="there is no NVML here"):
        train(guarded(tmp_path))
    assert not (tmp_path / "run").exists()


def no_sensors(*_: object, **__: object) -> FakeSensors:
    raise ConfigError("telemetry.gpu_metrics_backend: there is no NVML here")


@pytest.mark.parametrize("lost", [None, 255.0, math.nan])
@pytest.mark.parametrize(
    ("word", "verdict", "expected"),
    [
        ("pause", "done", [("paused", 2), ("unpaused", 2)]),
        ("stop", "thermal", []),
        ("ignore", "done", []),
    ],
)
def test_s47_a_sensor_that_is_lost_in_mid_run(
    tmp_path: Path, lost: float | None, word: str, verdict: str, expected: list[tuple[str, int]]
) -> None:
    say(70.0, 70.0, 70.0, lost, lost, 80.0, 70.0)
    assert train(guarded(tmp_path, f"thermal.on_unreadable={word}")).verdict == verdict
    attempt = tmp_path / "run/attempts/0001"
    if verdict == "thermal":
        reason = json.loads((attempt / "outcome.json").read_bytes())["reason"]
        assert "at step 2, and thermal.on_unreadable is stop" in reason
    found = told(attempt, "paused", "unpaused")
    assert [(name, step) for name, step, _ in found] == expected


# --- drills --------------------------------------------------------------------------------------------


def drill(folder: Path, fault: str) -> RunConfig:
    return tiny(folder, "text", *ON, "thermal.gpu_temp_poll_interval_seconds=0.05", f"faults.inject=[{fault}]")


def test_a_drill_needs_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretrain.attempt.prepare.Sensors", no_sensors)
    config = drill(tmp_path, "temperature@5x95")
    with pytest.raises(ConfigError, match="PRETRAIN_ALLOW_FAULTS=1"):
        train(config)
    monkeypatch.setenv("PRETRAIN_ALLOW_FAULTS", "1")
    screen = Recorder()
    assert start_attempt(config, StopRequest(), [screen]).verdict == "done"
    assert any("this drill goes without the sensors" in getattr(event, "text", "") for event in screen.events)
    attempt = newest_attempt(tmp_path / "run")
    assert told(attempt, "paused", "unpaused") == [("paused", 5, 95.0), ("unpaused", 5, 74.0)]
    assert json.loads((attempt / "manifest.json").read_bytes())["faults"] == ["temperature@5x95"]
    assert last_record(tmp_path / "run").scalars["ledger"]["faults_fired"] == []


def test_a_drill_of_the_end_fires_in_the_first_attempt_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretrain.attempt.prepare.Sensors", no_sensors)
    monkeypatch.setenv("PRETRAIN_ALLOW_FAULTS", "1")
    result = train(drill(tmp_path, "temperature@6x200"))  # no temperature of a GPU, and on_unreadable is stop
    assert (result.verdict, result.step) == ("thermal", 6)
    assert go_on(tmp_path / "run").verdict == "done"


# --- moving to the CPU ---------------------------------------------------------------------------------


def manifest_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((newest_attempt(run) / "manifest.json").read_bytes())
    return found


def test_a_run_that_moves_says_so_in_every_attempt_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretrain.loop.thermal._is_elsewhere", lambda device: True)
    states = States(monkeypatch)
    say(70.0, 70.0, 70.0, 99.0, 70.0, 99.0)
    stop = StopRequest()
    result = start_attempt(
        guarded(tmp_path, "thermal.switch_on_thermal=true"), stop, [states, Recorder(stop, stop_after=6)]
    )
    assert (result.verdict, result.step) == ("interrupted", 6)
    assert FakeSensors.asked == 4  # after the move nobody asks any more
    assert states.parts.thermometer is None
    (moved,) = [row for row in events(tmp_path / "run/attempts/0001") if row["event"] == "device"]
    assert (moved["step"], moved["device"], moved["temperature_c"]) == (2, "cpu", 99.0)
    assert "from step 2 of attempt 0001 on the CPU computed" in moved["reason"]
    with pytest.raises(ConfigError, match="--require-bit-exact: from step 2 of attempt 0001"):
        go_on(tmp_path / "run", *OFF, "thermal.switch_on_thermal=false", require_bit_exact=True)
    for steps in (3, None):
        go_on(tmp_path / "run", *OFF, "thermal.switch_on_thermal=false", stop_after=steps)
    found = manifest_of(tmp_path / "run")
    assert (found["attempt"], found["bit_exact"], found["reasons"]) == (3, False, [moved["reason"]])
    # The CPU goes on with what the CPU had: here, and only here, moving is nothing at all.
    assert end_of(tmp_path / "run") == untouched(tmp_path)


def test_what_was_saved_before_a_move_is_as_exact_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretrain.loop.thermal._is_elsewhere", lambda device: True)

    class Killed(BaseException):
        pass

    class Kills(Recorder):
        def emit(self, event: Any) -> None:
            super().emit(event)
            if len(self.rows) == 7:
                raise Killed

    say(70.0, *[70.0] * 5, 99.0)
    with pytest.raises(Killed):
        start_attempt(guarded(tmp_path, "thermal.switch_on_thermal=true"), StopRequest(), [Kills()])
    assert "device" in [row["event"] for row in events(tmp_path / "run/attempts/0001")]
    assert go_on(tmp_path / "run", *OFF, "thermal.switch_on_thermal=false").verdict == "done"
    assert manifest_of(tmp_path / "run")["bit_exact"] is True  # it went on from step 4, and the move was at step 5


def test_a_run_on_the_cpu_has_no_cooler_place(tmp_path: Path) -> None:
    say(70.0, 99.0)
    assert train(guarded(tmp_path, "thermal.switch_on_thermal=true")).verdict == "thermal"


def test_moving_keeps_all_of_the_state_and_parks_the_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = torch.arange(16, dtype=torch.uint8)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: left)

    def move(parts: LoopParts) -> None:
        state = parts.state
        before, names = whole(state), {*state.tensors(), "rng.cuda.0"}
        parameters = [id(parameter) for parameter in state.model.parameters()]
        state.device = torch.device("cuda", 0)  # by name alone: the tensors lie on the CPU
        assert set(state.tensors()) == names
        state.move_to(torch.device("cpu"))
        assert set(state.tensors()) == names
        assert torch.equal(state.tensors()["rng.cuda.0"], left)
        assert state.device.type == "cpu"
        assert [id(parameter) for parameter in state.model.parameters()] == parameters
        state.parked = {}
        assert whole(state) == before

    States(monkeypatch, begin=move)
    assert train(tiny(tmp_path)).verdict == "done"
    monkeypatch.undo()
    assert end_of(tmp_path / "run") == untouched(tmp_path)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("task", ["text", "iq"])
def test_a_gpu_that_is_too_hot_is_left_and_a_resume_comes_back_to_it(
    tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = States(monkeypatch)
    say(70.0, *[70.0] * 5, 99.0)
    stop = StopRequest()
    config = guarded(tmp_path, "training.device=cuda", "thermal.switch_on_thermal=true", task=task)
    result: AttemptResult = start_attempt(config, stop, [states, Recorder(stop, stop_after=9)])
    assert (result.verdict, result.step) == ("interrupted", 9)
    assert {tensor.device.type for tensor in states.parts.state.tensors().values()} == {"cpu"}
    say(70.0)
    assert go_on(tmp_path / "run").verdict == "done"
    environment = json.loads((newest_attempt(tmp_path / "run") / "environment.json").read_bytes())
    assert environment["device"] == torch.cuda.get_device_name()
    found = manifest_of(tmp_path / "run")
    assert found["bit_exact"] is False
    assert "cuda:0" in found["reasons"][0]
