"""Attempts are born whole, found by number and named by a path; events and outcomes beside them."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from pretrain import files, reading, syscalls
from pretrain.errors import ConfigError, IntegrityError, StorageError
from pretrain.evidence import canonical, metrics, namespace, outcome
from pretrain.evidence.events import EventLog
from pretrain.evidence.metrics import Cursor
from pretrain.evidence.namespace import Parent
from tests.evidence import attempts
from tests.evidence.faulty import Faulty, faults

PARENT = Parent(1, "checkpoint", "ef" * 32)


def test_an_attempt_is_born_whole(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "tiny"
    folder = attempts.begin_attempt(run, 1, prefix=[b'{"event":', b'"begin"}\n'])
    assert folder == run / "attempts" / "0001"
    assert [name for name, _ in reading.walk(run)] == [
        "attempts",
        "attempts/0001",
        "attempts/0001/config.yaml",
        "attempts/0001/environment.json",
        "attempts/0001/metrics.jsonl",
    ]
    assert (folder / "config.yaml").read_bytes() == attempts.CONFIG
    assert (folder / "metrics.jsonl").read_bytes() == b'{"event":"begin"}\n'
    assert namespace.read_environment(folder) == attempts.environment(1)
    with pytest.raises(StorageError, match="0001: exists already"):
        attempts.begin_attempt(run, 1)


def test_an_attempt_whose_prefix_does_not_verify_is_not_born(tmp_path: Path) -> None:
    parent = attempts.begin_attempt(tmp_path, 1)
    wrong = Cursor(1, 10, "00" * 32)
    with pytest.raises(IntegrityError):
        attempts.begin_attempt(tmp_path, 2, PARENT, metrics.verify_prefix(parent / "metrics.jsonl", wrong))
    assert namespace.list_attempts(tmp_path) == [1]
    assert not [name for name, _ in reading.walk(tmp_path) if ".tmp-" in name]


def test_what_a_killed_creation_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    own, attempts_folder = f".tmp-{os.getpid()}-", tmp_path / "attempts"
    inside = attempts.begin_attempt(tmp_path, 1) / "checkpoints" / ".tmp-7-1-checkpoint.json"
    inside.parent.mkdir()
    inside.write_bytes(b"a temporary of an attempt that is never touched again")
    for serial in range(1000):  # a dead process of the same number left the very names that this one would take
        (attempts_folder / f"{own}{serial}-0002").mkdir()
    (attempts_folder / ".tmp-7-1-0002").mkdir()
    (attempts_folder / ".tmp-7-1-0002" / "config.yaml").write_bytes(b"half")
    (attempts_folder / ".tmp-7-2-0002").symlink_to(tmp_path / "attempts" / "0001")
    (attempts_folder / ".tmp-not-ours").mkdir()
    assert namespace.list_attempts(tmp_path) == [1]
    attempts.begin_attempt(tmp_path, 2)
    assert sorted(path.name for path in attempts_folder.iterdir()) == [".tmp-not-ours", "0001", "0002"]
    assert inside.exists()


def test_a_system_fault_leaves_a_whole_attempt_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"

    def prepare() -> Any:
        files.remove_folder(run)
        return lambda: attempts.begin_attempt(run, 1)

    visited = 0
    for faulty, raised in faults(monkeypatch, prepare):
        visited += 1
        assert (raised is not None) == (len(faulty.calls) >= faulty.at)
        if namespace.list_attempts(run):
            assert [name for name, _ in reading.walk(run / "attempts" / "0001")] == [
                "config.yaml",
                "environment.json",
                "metrics.jsonl",
            ]
        if run.exists() and not faulty.unlink_failed:
            assert not [name for name, _ in reading.walk(run) if ".tmp-" in name]
    assert visited > 300


def test_attempts_are_listed_by_number(tmp_path: Path) -> None:
    assert namespace.list_attempts(tmp_path) == []
    assert namespace.newest(tmp_path) is None
    for name in ("0002", "0010", "9999", "10000", "0000", "1", "00003", "12345678901", ".tmp-1-1-0004", "x"):
        (tmp_path / "attempts" / name).mkdir(parents=True)
    assert namespace.list_attempts(tmp_path) == [2, 10, 9999, 10000]
    assert namespace.newest(tmp_path) == 10000
    assert namespace.attempt_folder(tmp_path, 10000).name == "10000"
    (tmp_path / "attempts" / "0003").symlink_to(tmp_path / "attempts" / "0002")
    with pytest.raises(IntegrityError, match="0003: expected the folder of an attempt"):
        namespace.list_attempts(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "attempts").symlink_to(tmp_path / "attempts")
    with pytest.raises(IntegrityError, match="attempts: expected a folder"):
        namespace.list_attempts(tmp_path / "other")


def test_what_a_path_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = (tmp_path / "run").resolve()
    for number in (1, 2):
        (attempts.begin_attempt(run, number) / "manifest.json").write_bytes(b"")
    monkeypatch.chdir(run / "attempts" / "0001")
    for path, number in [
        (run, 2),
        (run / "attempts" / "0001", 1),
        (run / "attempts" / "0001" / "manifest.json", 1),
        (Path("."), 1),
        (Path("../.."), 2),
        (Path("manifest.json"), 1),
    ]:
        assert namespace.resolve(path) == (run, number)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(run)
    for path, named in [
        (Path("run"), Path("run")),
        (Path("run/attempts/0002/manifest.json"), Path("run")),
        (Path("./run/"), Path("run")),
        (Path("link"), run),
        (Path("run/../run"), run),
    ]:
        assert namespace.resolve(path) == (named, 2)
    for path in (tmp_path / "gone", tmp_path, run / "attempts", run / "attempts" / "0001" / "config.yaml"):
        with pytest.raises(ConfigError, match="expected an attempt"):
            namespace.resolve(path)


@pytest.mark.parametrize(
    "change",
    [
        {"attempt": 0},
        {"attempt": True},
        {"schema": 2},
        {"threads": 0},
        {"device": None},
        {"versions": []},
        {"data": {}},
        {"data": [{"domain": "a"}]},
        {"parent": {"attempt": 1}},
        {"parent": {"attempt": 2, "kind": "checkpoint", "record_sha256": "ef" * 32}},
        {"parent": {"attempt": 3, "kind": "checkpoint", "record_sha256": "ef" * 32}},
        {"parent": {"attempt": 1, "kind": "config", "record_sha256": "ef" * 32}},
        {"tokenizer_sha256": "EF" * 32},
        {"host": "here"},
    ],
)
def test_an_environment_record_is_strict(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "environment.json"
    path.write_bytes(canonical.encode(attempts.environment(2, PARENT)))
    assert Parent.parse(namespace.read_environment(tmp_path)["parent"], "x") == PARENT
    path.write_bytes(canonical.encode(attempts.environment(2, PARENT) | change))
    with pytest.raises(IntegrityError, match=r"environment\.json"):
        namespace.read_environment(tmp_path)


def test_an_attempt_under_the_number_of_another_is_refused(tmp_path: Path) -> None:
    attempts.begin_attempt(tmp_path, 2).rename(tmp_path / "attempts/0003")
    with pytest.raises(IntegrityError, match=r"environment\.json: it is of attempt 2; give the folder its own number"):
        namespace.read_environment(tmp_path / "attempts/0003")
    (tmp_path / "attempts/0003").rename(tmp_path / "a copy")
    assert namespace.read_environment(tmp_path / "a copy")["attempt"] == 2


def test_no_attempt_gets_a_number_that_no_name_holds(tmp_path: Path) -> None:
    assert namespace.number_of(attempts.begin_attempt(tmp_path, 999_999_999)) == 999_999_999
    with pytest.raises(ConfigError, match="attempt 999999999 is the last that a run can have"):
        attempts.begin_attempt(tmp_path, 1_000_000_000)
    assert namespace.list_attempts(tmp_path) == [999_999_999]


def test_events_carry_the_clock_and_fields_of_their_own(tmp_path: Path) -> None:
    times = iter([1.5, 2.5])
    log = EventLog(tmp_path / "events.jsonl", clock=lambda: next(times))
    log.write("start", 0)
    log.write("pruned", 4, steps=[1, 2])
    log.close()
    log = EventLog(tmp_path / "events.jsonl", clock=lambda: 3.5)
    log.write("end", 4)
    log.close()
    assert (tmp_path / "events.jsonl").read_text() == (
        '{"event":"start","step":0,"time":1.5}\n'
        '{"event":"pruned","step":4,"steps":[1,2],"time":2.5}\n'
        '{"event":"end","step":4,"time":3.5}\n'
    )


def test_an_event_log_that_cannot_be_made_durable_gives_its_descriptor_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(syscalls, "system", Faulty(1, errno.EIO))
        with pytest.raises(StorageError, match=r"events\.jsonl: fsync failed"):
            log.close()
    with pytest.raises(StorageError, match="closed"):
        log.write("end", 1)


def test_an_outcome_says_why_and_how_to_go_on(tmp_path: Path) -> None:
    record = outcome.outcome_record(
        verdict="interrupted",
        exit_code=75,
        signal="SIGTERM",
        reason="stopped",
        advice="resume it",
        step=7,
        batch=8,
        checkpoint=(7, "ab" * 32),
        resume="pretrain resume --attempt runs/tiny",
    )
    outcome.publish_outcome(tmp_path, record)
    assert json.loads((tmp_path / "outcome.json").read_bytes()) == {
        "schema": 1,
        "verdict": "interrupted",
        "exit_code": 75,
        "signal": "SIGTERM",
        "reason": "stopped",
        "advice": "resume it",
        "step": 7,
        "batch": 8,
        "checkpoint": {"step": 7, "record_sha256": "ab" * 32},
        "incident": None,
        "resume": "pretrain resume --attempt runs/tiny",
    }
    with pytest.raises(ValueError, match="'done' is none of"):
        outcome.outcome_record(verdict="done", exit_code=0, reason="", advice="", step=0, batch=0)
