"""One process holds a lock, until it lets go or dies, and knows when its file is another one."""

import fcntl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pretrain import syscalls
from pretrain.errors import BusyError, DisplacedError, StorageError
from pretrain.lock import Lock
from tests.evidence.faulty import faults


def test_the_lock_is_held_by_one_and_freed_by_death(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    busy = pytest.raises(BusyError, match="runs/a: another process writes this run")
    with Lock.acquire(path, "runs/a"), busy:
        Lock.acquire(path, "runs/a")
    Lock.acquire(path, "runs/a").release()
    hold = (
        f"import fcntl, os; fcntl.flock(os.open({str(path)!r}, os.O_RDWR), fcntl.LOCK_EX)\n"
        "print(1, flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", hold], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(BusyError):
            Lock.acquire(path, "runs/a")
        process.kill()
    Lock.acquire(path, "runs/a").release()


def test_a_lock_file_that_was_replaced_meanwhile_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.lock"

    class Replacing(syscalls.System):
        times = 0

        def flock(self, fd: int, operation: int) -> None:
            fcntl.flock(fd, operation)
            self.times += 1
            if self.times == 1:
                path.unlink()

    monkeypatch.setattr(syscalls, "system", Replacing())
    with Lock.acquire(path, "runs/a"), pytest.raises(BusyError):
        Lock.acquire(path, "runs/a")


def test_locking_reports_a_system_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare() -> Callable[[], Any]:
        return lambda: Lock.acquire(tmp_path / "run.lock", "runs/a").release()

    for faulty, raised in faults(monkeypatch, prepare):
        assert (raised is not None) == (len(faulty.calls) >= faulty.at)


def test_what_is_in_the_place_of_the_lock_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.lock").mkdir()
    (tmp_path / "b.lock").symlink_to(tmp_path / "elsewhere")
    for name, found in ("a.lock", "a folder"), ("b.lock", "a link"):
        with pytest.raises(
            StorageError, match=f"{name}: opening the lock failed: .*; {found} is in its place: move it"
        ):
            Lock.acquire(tmp_path / name, "runs/a")
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_is_nobodys_once_its_file_is_another_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with Lock.acquire(folder / "run.lock", "run") as lock:
        lock.check()
        (folder / "run.lock").unlink()
        with pytest.raises(DisplacedError, match=r"run\.lock: not the lock that this process took"):
            lock.check()
        with Lock.acquire(folder / "run.lock", "run") as other:
            other.check()
            with pytest.raises(DisplacedError):
                lock.check()
            folder.rename(tmp_path / "away")
            folder.write_bytes(b"")
            with pytest.raises(DisplacedError):
                other.check()
