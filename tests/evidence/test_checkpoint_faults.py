"""A disk that fails at any call leaves no checkpoint that claims to be one, and the next save works."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain import syscalls
from pretrain.errors import IntegrityError, StorageError
from pretrain.evidence import checkpoint
from tests.evidence.checkpoint_samples import contents, save, small_state

CALLS = ("open", "write", "fsync", "truncate", "close", "replace", "unlink", "mkdir", "rmdir")


class FailingSystem(syscalls.System):
    """Fails the calls from number `first` on, `times` of them; `calls` counts and `log` names them all."""

    def __init__(self, first: int, times: int, number: int) -> None:
        self.first, self.times, self.number = first, times, number
        self.log: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        method = super().__getattribute__(name)
        if name not in CALLS:
            return method

        def call(*arguments: Any) -> Any:
            self.log.append(name)
            if self.first <= len(self.log) < self.first + self.times:
                if name == "close":
                    method(*arguments)
                raise OSError(self.number, os.strerror(self.number))
            return method(*arguments)

        return call


@contextlib.contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, first: int, times: int, number: int) -> Iterator[FailingSystem]:
    system = FailingSystem(first, times, number)
    with monkeypatch.context() as patch:
        patch.setattr(syscalls, "system", system)
        yield system


def number_of_calls(monkeypatch: pytest.MonkeyPatch, folder: Path) -> int:
    with failing(monkeypatch, 0, 0, 0) as system:
        save(folder)
    return len(system.log)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_one_failing_call_leaves_nothing_and_the_next_save_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    calls = number_of_calls(monkeypatch, tmp_path / "sound")
    assert calls >= 16
    sound = contents(tmp_path / "sound")
    descriptors = os.listdir("/proc/self/fd")
    for first in range(1, calls + 1):
        folder = tmp_path / f"c{first}"
        with failing(monkeypatch, first, 1, number) as system, pytest.raises(StorageError, match=str(tmp_path)):
            save(folder)
        assert not folder.exists(), system.log
        save(folder)
        assert contents(folder) == sound
    assert os.listdir("/proc/self/fd") == descriptors


def test_a_disk_that_stays_broken_never_leaves_a_record_that_does_not_verify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = number_of_calls(monkeypatch, tmp_path / "sound")
    for first in range(1, calls + 1):
        folder = tmp_path / f"c{first}"
        with failing(monkeypatch, first, 10_000, errno.EIO), pytest.raises(StorageError):
            save(folder)
        if (folder / "checkpoint.json").exists():
            checkpoint.verify_checkpoint(folder)
            checkpoint.remove_checkpoint(folder)
        save(folder)
        checkpoint.verify_checkpoint(folder)


def test_the_record_is_written_last_and_everything_before_it_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with failing(monkeypatch, 0, 0, 0) as system:
        save(tmp_path / "c")
    shard, record = [position for position, name in enumerate(system.log) if name == "replace"]
    assert system.log[:shard].count("fsync") == 2  # the folder's name, and the file
    assert system.log[shard:record].count("fsync") == 2  # the shard's name, and the record
    assert system.log[record:].count("fsync") == 1  # the record's name


def test_a_failing_removal_never_leaves_a_record_without_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "c")
    with failing(monkeypatch, 0, 0, 0) as system:
        checkpoint.remove_checkpoint(tmp_path / "c")
    assert system.log.index("fsync") < [i for i, name in enumerate(system.log) if name == "unlink"][1]
    for first in range(1, len(system.log) + 1):
        folder = tmp_path / f"c{first}"
        save(folder)
        with failing(monkeypatch, first, 10_000, errno.EIO), pytest.raises(StorageError):
            checkpoint.remove_checkpoint(folder)
        if (folder / "checkpoint.json").exists():
            checkpoint.verify_checkpoint(folder)
        checkpoint.remove_checkpoint(folder)
        assert not folder.exists()


def test_an_interrupt_while_writing_comes_through_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupting(syscalls.System):
        def write(self, fd: int, data: memoryview) -> int:
            raise KeyboardInterrupt

    monkeypatch.setattr(syscalls, "system", Interrupting())
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "c", {"t": torch.zeros(1 << 20)})
    assert list(tmp_path.iterdir()) == []


def test_an_unreadable_file_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "c")

    class Denying(syscalls.System):
        def open(self, path: Path, flags: int, mode: int = 0o644) -> int:
            if path.name.startswith("shard_"):
                raise PermissionError(errno.EACCES, "Permission denied")
            return super().open(path, flags, mode)

    monkeypatch.setattr(syscalls, "system", Denying())
    with pytest.raises(IntegrityError, match=r"shard_00000\.safetensors"):
        checkpoint.load_checkpoint(tmp_path / "c", small_state())
