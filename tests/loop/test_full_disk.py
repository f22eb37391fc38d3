"""A full disk is waited for where the config says so, changes no byte, and ends the run with 6 when it stays full."""

import errno
import gc
import json
import os
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pretrain import progress, syscalls
from pretrain.attempt import AttemptResult, Words, begin, run, start_attempt
from pretrain.errors import IntegrityError, StorageError
from pretrain.evidence import checkpoint, events
from pretrain.loop import steps, storage
from pretrain.loop.storage import DiskWait
from pretrain.machine.signals import StopRequest
from pretrain.telemetry.sink import Note
from pretrain.telemetry.time_spent import TimeSpent
from tests.loop.probes import Unsynced, newest_attempt
from tests.tiny import Recorder, go_on, tiny, train

FULL = "x: writing failed: No space left on device; free space on this disk, then resume"


class Clock:
    """A clock that only a sleep moves; `at` is called with the time after each."""

    def __init__(self, at: Callable[[float], None] = lambda now: None) -> None:
        self.now, self.at = 0.0, at

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.at(self.now)


class Writer:
    """Takes events as a writer does, unless its own disk is full."""

    def __init__(self, fails: int = 0) -> None:
        self.folder, self.closed, self.fails = Path("x"), False, fails
        self.events: list[tuple[str, dict[str, Any]]] = []

    def event(self, name: str, step: int, **fields: Any) -> None:
        self.fails -= 1
        if self.fails >= 0:
            raise StorageError(FULL, is_full=True)
        self.events.append((name, fields))


class Waiting:
    """A DiskWait of 100 s with a clock of its own, and a piece of work that succeeds from a time on."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, good_from: float = 0.0, seconds: float = 100.0, fails: int = 0
    ) -> None:
        self.recorder, self.stop, self.writer = Recorder(), StopRequest(), Writer(fails)
        self.clock, self.tries, self.good_from = Clock(), list[float](), good_from
        self.free = 10**9
        monkeypatch.setattr(storage, "free_bytes", lambda _: self.free)
        self.parts = SimpleNamespace(
            config=SimpleNamespace(checkpoint=SimpleNamespace(storage_wait_seconds=seconds)),
            stop=self.stop,
            spent=TimeSpent(self.clock),
            sinks=[self.recorder],
            state=SimpleNamespace(step=7),
            writer=self.writer,
        )
        self.wait = DiskWait(self.parts, clock=self.clock, sleep=self.clock.sleep)  # type: ignore[arg-type]

    def work(self) -> str:
        self.tries.append(round(self.clock.now, 6))
        if self.clock.now < self.good_from:
            raise StorageError(FULL, is_full=True)
        return "done"

    @property
    def shown(self) -> list[tuple[str, str]]:
        return [(event.kind, event.text) for event in self.recorder.events if isinstance(event, Note)]


def test_what_succeeds_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(monkeypatch)
    assert waiting.wait(waiting.work) == "done"
    assert (waiting.tries, waiting.shown, waiting.writer.events) == ([0.0], [], [])


def test_it_is_tried_again_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(monkeypatch, good_from=20.0)
    assert waiting.wait(waiting.work) == "done"
    assert waiting.tries == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0]
    what = "x: writing failed: No space left on device"
    assert waiting.shown == [
        ("warning", f"{what}; waiting for space, 100 s at most (checkpoint.storage_wait_seconds)"),
        ("unpaused", "there is space again, after 31 s"),
    ]
    assert waiting.writer.events == [("paused", {"reason": what}), ("unpaused", {"seconds": 31.0})]
    assert waiting.parts.spent.seconds()["paused"] == pytest.approx(31.0)


def test_every_nap_of_a_wait_is_progress_to_the_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(monkeypatch, good_from=20.0)
    counts: list[int] = []
    waiting.clock.at = lambda now: counts.append(progress.count())
    waiting.wait(waiting.work)
    assert len(counts) > 100
    assert len(set(counts)) == len(counts)


def test_a_save_is_not_tried_where_the_disk_says_that_it_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(monkeypatch, good_from=1.0)
    waiting.free = 999
    waiting.clock.at = lambda now: setattr(waiting, "free", 1000 if now >= 40 else 999)
    assert waiting.wait(waiting.work, 1000) == "done"
    assert waiting.tries == [0.0, 40.0]


def test_at_the_end_it_is_tried_whatever_the_disk_says(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(monkeypatch, good_from=100.0)
    waiting.free = 0
    assert waiting.wait(waiting.work, 1000) == "done"
    assert waiting.tries == [0.0, 100.0]


def test_the_seconds_are_over_once_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(monkeypatch, good_from=1e9)
    with pytest.raises(StorageError) as raised:
        waiting.wait(waiting.work)
    assert str(raised.value) == (
        "x: writing failed: No space left on device, and after 100 s of waiting there is no space "
        "(checkpoint.storage_wait_seconds); free space on this disk, then resume"
    )
    assert waiting.tries == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 100.0]
    with pytest.raises(StorageError):
        waiting.wait(waiting.work)
    assert waiting.clock.now == pytest.approx(100.0)  # No second wait.
    assert len(waiting.shown) == 1


@pytest.mark.parametrize("when", [0.05, 2.0, 60.0])
def test_a_signal_ends_the_wait_at_once(monkeypatch: pytest.MonkeyPatch, when: float) -> None:
    waiting = Waiting(monkeypatch, good_from=1e9)
    waiting.clock.at = lambda now: setattr(waiting.stop, "name", "SIGTERM" if now >= when else None)
    with pytest.raises(StorageError, match="stopped by SIGTERM while it waited for space"):
        waiting.wait(waiting.work)
    assert waiting.clock.now <= when + 0.11
    assert len(waiting.tries) == {0.05: 1, 2.0: 2, 60.0: 6}[when]


def test_after_a_signal_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(monkeypatch, good_from=1.0)
    waiting.stop.name = "SIGINT"
    with pytest.raises(StorageError):
        waiting.wait(waiting.work)
    assert (waiting.tries, waiting.shown) == ([0.0], [])


@pytest.mark.parametrize(
    "fault", [StorageError("the disk is broken"), IntegrityError("changed"), StorageError(FULL, is_full=False)]
)
def test_what_space_would_not_mend_is_raised(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    waiting = Waiting(monkeypatch)

    def breaks() -> None:
        raise fault

    with pytest.raises(type(fault)):
        waiting.wait(breaks)
    later = iter([StorageError(FULL, is_full=True), fault])

    def breaks_later() -> None:
        raise next(later)

    with pytest.raises(type(fault)) as raised:
        waiting.wait(breaks_later)
    assert raised.value is fault
    assert waiting.clock.now == pytest.approx(1.0)


def test_events_on_the_full_disk_itself_are_told_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(monkeypatch, good_from=1.0, fails=1)
    assert waiting.wait(waiting.work) == "done"
    assert [name for name, _ in waiting.writer.events] == ["paused", "unpaused"]
    waiting = Waiting(monkeypatch, good_from=1.0, fails=10)  # and not at all where there is no room for them
    assert waiting.wait(waiting.work) == "done"


def test_a_wait_holds_on_to_nothing_of_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, held = Waiting(monkeypatch, good_from=3.0), list[Any]()

    def work() -> str:
        copy = torch.zeros(1000)
        held.append(weakref.ref(copy))
        return waiting.work()

    seen: list[int] = []

    def at(_: float) -> None:
        if not seen:
            gc.collect()
        seen.append(sum(one() is not None for one in held))

    waiting.clock.at = at
    assert waiting.wait(work) == "done"
    assert set(seen) == {0}


# --- whole runs ----------------------------------------------------------------------------------------


class Full(Unsynced):
    """A disk that takes no more of the files whose name holds one of these words, from the nth file or row on."""

    def __init__(self, *words: str, first: int = 1, error: int = errno.ENOSPC) -> None:
        self.words, self.first, self.error, self.is_full = words, first, error, True
        self._streams: dict[int, bool] = {}
        self.count = 0

    def open(self, path: Path, flags: int, mode: int = 0o644) -> int:
        fd = super().open(path, flags, mode)
        self._streams.pop(fd, None)
        if flags & os.O_WRONLY and any(word in path.name for word in self.words):
            self._streams[fd] = bool(flags & os.O_APPEND)
            self.count += not self._streams[fd]
        return fd

    def write(self, fd: int, data: memoryview) -> int:
        self.count += self._streams.get(fd, False)
        if fd in self._streams and self.is_full and self.count >= self.first:
            raise OSError(self.error, os.strerror(self.error))
        return super().write(fd, data)


def run_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: Unsynced, *overrides: str, frees_at: float = 1e9
) -> tuple[AttemptResult, list[tuple[str, str]]]:
    """Run a tiny config on a full disk that has space from a moment on; the clock of the wait moves by itself."""
    clock = Clock(lambda now: setattr(system, "is_full", now < frees_at))
    recorder = Recorder()
    with monkeypatch.context() as patch:
        patch.setattr(syscalls, "system", system)
        patch.setattr(run, "DiskWait", partial(DiskWait, clock=clock, sleep=clock.sleep))
        result = start_attempt(tiny(tmp_path, "text", *overrides), StopRequest(), [recorder])
    return result, [(event.kind, event.text) for event in recorder.events if isinstance(event, Note)]


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    """The SHA-256 of the last record, and the rows, of the run that nothing happened to."""
    folder = tmp_path_factory.mktemp("untouched")
    result = train(tiny(folder))
    assert result.checkpoint is not None
    return result.checkpoint.record_sha256, (folder / "run/attempts/0001/metrics.jsonl").read_bytes()


def end(result: AttemptResult, folder: Path) -> tuple[str, bytes]:
    assert result.verdict == "done"
    assert result.checkpoint is not None
    return result.checkpoint.record_sha256, (newest_attempt(folder / "run") / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("words", "first", "error"),
    [
        (("shard_",), 1, errno.ENOSPC),  # of step 0
        (("shard_",), 3, errno.EDQUOT),
        (("checkpoint.json",), 2, errno.ENOSPC),
        (("metrics.jsonl",), 5, errno.EDQUOT),
        (("manifest.json",), 1, errno.ENOSPC),
        (("events.jsonl", "shard_"), 5, errno.ENOSPC),
    ],
)
def test_a_wait_changes_no_byte(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    untouched: tuple[str, bytes],
    words: tuple[str, ...],
    first: int,
    error: int,
) -> None:
    system = Full(*words, first=first, error=error)
    result, notes = run_on(tmp_path, monkeypatch, system, "checkpoint.storage_wait_seconds=60", frees_at=30.0)
    assert end(result, tmp_path) == untouched
    waits = [text for kind, text in notes if kind == "warning"]
    assert len(waits) == 1
    assert "waiting for space, 60 s at most (checkpoint.storage_wait_seconds)" in waits[0]
    assert [kind for kind, _ in notes].count("unpaused") == 1
    told = [row["event"] for row in events.read(newest_attempt(tmp_path / "run"))]
    # The manifest binds the events, which are closed by then.
    assert told.count("paused") == told.count("unpaused") == (words != ("manifest.json",))
    assert not list((tmp_path / "run").rglob(".tmp-*"))


class FullOnce(Unsynced):
    """A disk that needs space to remove a file, and has none the first two times."""

    def __init__(self) -> None:
        self.is_full, self.refused = True, 0

    def unlink(self, path: Path) -> None:
        if path.name == "checkpoint.json" and self.refused < 2:
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().unlink(path)


def test_a_checkpoint_that_cannot_be_removed_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("checkpoint.storage_wait_seconds=60", "checkpoint.num_best_checkpoints=0")
    result, notes = run_on(tmp_path, monkeypatch, FullOnce(), *words)
    assert result.verdict == "done"
    assert [kind for kind, _ in notes].count("unpaused") == 1
    assert [step for step, _ in checkpoint.list_checkpoints(newest_attempt(tmp_path / "run"))] == [8, 12]


def test_the_file_of_an_incident_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETRAIN_ALLOW_FAULTS", "1")
    ends = []
    for name, system in (("whole", Unsynced()), ("full", Full("incident_"))):
        folder = tmp_path / name
        folder.mkdir()
        words = ("checkpoint.storage_wait_seconds=60", "faults.inject=[nan_grad@2]")
        result, notes = run_on(folder, monkeypatch, system, *words, frees_at=5.0)
        assert [kind for kind, _ in notes].count("unpaused") == (name == "full")
        path = newest_attempt(folder / "run") / "incidents" / "incident_0001.json"
        record = json.loads(path.read_text())
        ends.append((end(result, folder), record["cause"], record["trigger"], record["history"]))
    assert ends[0] == ends[1]


@pytest.mark.parametrize(("words", "first"), [("metrics.jsonl", 5), ("shard_", 3)])
def test_a_wait_is_in_the_seconds_of_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, first: int
) -> None:
    system = Full(words, first=first)
    clock = Clock(lambda now: setattr(system, "is_full", now < 30))  # the one clock, which nothing moves but the wait
    recorder = Recorder()
    monkeypatch.setattr(syscalls, "system", system)
    monkeypatch.setattr(run, "DiskWait", partial(DiskWait, clock=clock, sleep=clock.sleep))
    monkeypatch.setattr(begin, "TimeSpent", partial(TimeSpent, clock))
    monkeypatch.setattr(steps, "Throughput", partial(steps.Throughput, clock=clock))
    start_attempt(tiny(tmp_path, "text", "checkpoint.storage_wait_seconds=60"), StopRequest(), [recorder])
    assert clock.now > 30
    phases = ("data_seconds", "compute_seconds", "optimizer_seconds", "evidence_seconds", "seconds_left")
    assert {getattr(row, name) or 0.0 for row in recorder.rows for name in phases} == {0.0}
    spent = [*events.read(newest_attempt(tmp_path / "run"))][-1]["seconds"]
    assert {kind for kind, seconds in spent.items() if seconds} == {"paused"}


@pytest.mark.parametrize("seconds", [0, 60])
def test_a_disk_that_stays_full_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untouched: tuple[str, bytes], seconds: int
) -> None:
    system = Full("shard_", first=3)
    result, notes = run_on(tmp_path, monkeypatch, system, f"checkpoint.storage_wait_seconds={seconds}")
    assert (result.verdict, result.exit_code) == ("storage", 6)
    attempt = newest_attempt(tmp_path / "run")
    record = json.loads((attempt / "outcome.json").read_text())
    saved = checkpoint.list_checkpoints(attempt)
    assert record["checkpoint"]["step"] == saved[-1][0]
    for _, folder in saved:
        checkpoint.verify_checkpoint(folder)
    assert ("after 60 s of waiting" in record["reason"]) == bool(seconds)
    assert len([text for kind, text in notes if "waiting for space" in text]) == bool(seconds)
    assert not list((tmp_path / "run").rglob(".tmp-*"))
    assert end(go_on(tmp_path / "run"), tmp_path) == untouched


def test_an_outcome_that_has_no_room_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untouched: tuple[str, bytes]
) -> None:
    result, notes = run_on(tmp_path, monkeypatch, Full("shard_", "outcome.json", first=3))
    assert result.exit_code == 6
    attempt = newest_attempt(tmp_path / "run")
    assert not (attempt / "outcome.json").exists()
    (text,) = [text for kind, text in notes if kind == "warning"]
    assert text.startswith("the end of this attempt could not be put on record, which a resume does without: ")
    assert [row["event"] for row in events.read(attempt)][-1] == "end"
    assert end(go_on(tmp_path / "run"), tmp_path) == untouched


def test_an_outcome_is_there_where_only_events_have_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = run_on(tmp_path, monkeypatch, Full("events.jsonl", first=4))
    assert result.exit_code == 6
    assert (newest_attempt(tmp_path / "run") / "outcome.json").is_file()


@pytest.mark.parametrize("words", [("telemetry.csv",), ("trace.json",), ("memory.json",)])
def test_what_is_for_eyes_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untouched: tuple[str, bytes], words: tuple[str, ...]
) -> None:
    recorder = Recorder()
    asked = {"trace.json": Words(profile="2:3"), "memory.json": Words(memory_snapshot="3")}.get(words[0], Words())
    with monkeypatch.context() as patch:
        patch.setattr(syscalls, "system", Full(*words, first=3 if words[0] == "telemetry.csv" else 1))
        result = start_attempt(tiny(tmp_path), StopRequest(), [recorder], asked)
    assert end(result, tmp_path) == untouched
    texts = [event.text for event in recorder.events if isinstance(event, Note) and event.kind == "warning"]
    assert [words[0] in text for text in texts] == [True] * (2 if words[0] == "telemetry.csv" else 1)
    warned = [row["text"] for row in events.read(newest_attempt(tmp_path / "run")) if row["event"] == "warning"]
    assert warned == texts
