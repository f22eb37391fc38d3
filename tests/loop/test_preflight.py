"""At its start a run says what it will need of its disk, warns or refuses, and is right about it."""

from pathlib import Path
from typing import Any

import pytest

from pretrain import syscalls
from pretrain.attempt import preflight, prepare, start_attempt
from pretrain.errors import StorageError
from pretrain.evidence import checkpoint, events, namespace
from pretrain.machine.disk import Space
from pretrain.machine.signals import StopRequest
from pretrain.telemetry.sink import Note
from tests.cli.calling import contents, pretrain
from tests.loop.probes import Unsynced, newest_attempt
from tests.tiny import Recorder, go_on, tiny, train, write_config


class Largest(Unsynced):
    """Remembers the most that the run's folder held at any change of a name."""

    def __init__(self, run: Path) -> None:
        self.run, self.bytes, self.files = run, 0, 0

    def replace(self, source: Path, target: Path) -> None:
        super().replace(source, target)
        found = [path.lstat() for path in self.run.rglob("*")]
        self.bytes = max(self.bytes, sum(one.st_blocks * 512 for one in found))
        self.files = max(self.files, len(found))


def preflight_of(run: Path) -> dict[str, Any]:
    (row,) = [row for row in events.read(newest_attempt(run)) if row["event"] == "preflight"]
    return row


def warned(recorder: Recorder) -> list[str]:
    return [event.text for event in recorder.events if isinstance(event, Note) and event.kind == "warning"]


@pytest.mark.parametrize(
    ("task", "overrides"),
    [
        ("text", ()),
        ("iq", ("checkpoint.max_rolling_checkpoints=5", "checkpoint.keep_every_n_steps=4")),
        (
            "text",
            (
                *(
                    "training.max_steps=40",
                    "telemetry.enable_block_grad_norms=true",
                    "validation.validate_every_n_steps=1",
                ),
                *("telemetry.telemetry_log_interval=1", "monitors.blocks.every_n_steps=1"),
                *("monitors.activations.every_n_steps=1", "monitors.attention.every_n_steps=1"),
                *("monitors.mixture.every_n_steps=1", "checkpoint.checkpoint_every_n_steps=1"),
            ),
        ),
    ],
)
def test_a_run_takes_no_more_than_was_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, overrides: tuple[str, ...]
) -> None:
    seen = Largest(tmp_path / "run")
    monkeypatch.setattr(syscalls, "system", seen)
    assert train(tiny(tmp_path, task, *overrides)).verdict == "done"
    told = preflight_of(tmp_path / "run")
    # tiny runs are mostly what every run has besides: of these a third at least is used
    assert seen.bytes <= told["needed_bytes"] <= 3 * seen.bytes
    assert seen.files <= told["needed_files"] <= 3 * seen.files


def test_the_event_says_what_was_found(tmp_path: Path) -> None:
    recorder = Recorder()
    start_attempt(tiny(tmp_path), StopRequest(), [recorder])
    told = preflight_of(tmp_path / "run")
    assert set(told) == {
        *("time", "event", "step", "needed_bytes", "free_bytes", "needed_files", "free_files", "file_system"),
    }
    assert told["free_bytes"] > told["needed_bytes"]
    assert isinstance(told["file_system"], str)
    assert warned(recorder) == []


@pytest.mark.parametrize(
    ("free", "words"),
    [
        (Space(1000, 10**6), "bytes are needed and 1,000 bytes are free"),
        (Space(10**9, 5), "files are needed and 5 inodes are free"),
        (Space(1000, 5), "bytes are free, and about"),
        (Space(1000, None), "1,000 bytes are free"),
    ],
)
def test_too_little_is_warned_of_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: Space, words: str
) -> None:
    monkeypatch.setattr(preflight, "free_space", lambda _: free)
    with pytest.raises(StorageError) as raised:
        train(tiny(tmp_path, "text", "checkpoint.on_low_disk=refuse"))
    assert words in str(raised.value)
    assert "set checkpoint.on_low_disk=warn" in str(raised.value)
    assert not (tmp_path / "run").exists()
    recorder = Recorder()
    assert start_attempt(tiny(tmp_path), StopRequest(), [recorder]).verdict == "done"
    (text,) = warned(recorder)
    assert words in text
    assert [row["text"] for row in events.read(newest_attempt(tmp_path / "run")) if row["event"] == "warning"] == [text]


def test_a_model_that_no_memory_holds_is_refused_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build_run(*_: object) -> None:
        raise AssertionError("the model is made")

    monkeypatch.setattr(prepare, "build_run", build_run)
    monkeypatch.setattr(preflight, "free_space", lambda _: Space(10**12, None))
    with pytest.raises(StorageError, match=r"GB are needed and 1000\.0 GB are free; nothing was written"):
        train(tiny(tmp_path, "text", "checkpoint.on_low_disk=refuse", "model.width=131072", "model.layers=16"))
    assert not (tmp_path / "run").exists()


def test_what_is_refused_where_there_is_too_little_has_the_same_bits_where_there_is_enough(tmp_path: Path) -> None:
    hashes = set()
    for word in ("warn", "refuse"):
        config = tiny(tmp_path, "text", f"checkpoint.on_low_disk={word}", "model.dropout=0.1", run=word)
        assert train(config).verdict == "done"
        _, place = checkpoint.list_checkpoints(newest_attempt(tmp_path / word))[-1]
        hashes.add(checkpoint.read_record(place).content_sha256)
    assert len(hashes) == 1


def test_what_a_file_system_does_not_say_is_no_shortage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "free_space", lambda _: Space())
    assert train(tiny(tmp_path, "text", "checkpoint.on_low_disk=refuse")).verdict == "done"
    told = preflight_of(tmp_path / "run")
    assert (told["free_bytes"], told["free_files"]) == (None, None)


def test_a_refused_resume_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert train(tiny(tmp_path), stop_after=6).verdict == "interrupted"
    monkeypatch.setattr(preflight, "free_space", lambda _: Space(1000, None))
    before = contents(tmp_path / "run")
    with pytest.raises(StorageError):
        go_on(tmp_path / "run", "checkpoint.on_low_disk=refuse")
    assert contents(tmp_path / "run") == before
    assert namespace.list_attempts(tmp_path / "run") == [1]
    assert go_on(tmp_path / "run").verdict == "done"  # a warning, as the config of the parent has it


def test_a_child_needs_less(tmp_path: Path) -> None:
    assert train(tiny(tmp_path), stop_after=10).verdict == "interrupted"
    first = preflight_of(tmp_path / "run")
    assert go_on(tmp_path / "run").verdict == "done"
    assert preflight_of(tmp_path / "run")["needed_files"] < first["needed_files"]


def test_on_the_command_line_it_is_one_message_and_exit_code_6(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "free_space", lambda _: Space(1000, None))
    answer = pretrain("train", "--config", write_config(tmp_path), "checkpoint.on_low_disk=refuse", "--json")
    assert answer.code == answer.json["exit_code"] == 6
    assert answer.json["verdict"] == "storage"
    assert answer.err.count("\n") == 1


def test_a_file_system_of_another_machine_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "kind_of", lambda _: "nfs4")
    recorder = Recorder()
    start_attempt(tiny(tmp_path), StopRequest(), [recorder])
    (text,) = warned(recorder)
    assert f"run.dir: {tmp_path / 'run'} is on a file system of the kind nfs4: " in text
    assert preflight_of(tmp_path / "run")["file_system"] == "nfs4"


def test_a_csv_elsewhere_takes_nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = []
    for name, device in (("here", 1), ("there", 2)):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.setattr(preflight, "_device", {folder: device, folder / "run": 1}.__getitem__)
        train(tiny(folder, "text", f"telemetry.csv_log_path={folder / 'steps.csv'}"))
        needed.append(preflight_of(folder / "run")["needed_bytes"])
    assert needed[0] > needed[1]
