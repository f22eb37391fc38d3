"""Reading back: what is no regular file, not what was expected, or changed meanwhile, is refused and named."""

import hashlib
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pretrain import files, progress, reading, syscalls
from pretrain.errors import IntegrityError
from tests.evidence.faulty import faults, open_descriptors

OLD, NEW = b"old content\n" * 50, bytes(range(256)) * 37


def test_reading_refuses_links_fifos_folders_and_large_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(NEW)
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    assert reading.read_regular(path, limit=len(NEW)) == NEW
    with pytest.raises(IntegrityError, match=f"file: expected at most 10 bytes, found {len(NEW)}"):
        reading.read_regular(path, limit=10)
    before = open_descriptors()
    for name, found in [
        ("link", "a symlink"),
        ("dangling", "a symlink"),
        ("folder", "something else"),
        ("fifo", "something else"),
        ("gone", "missing"),
        ("file/inside", "not a directory"),
        ("x" * 300, "file name too long"),
    ]:
        for read in (reading.hash_file, lambda p: reading.read_regular(p, limit=10)):
            with pytest.raises(IntegrityError, match=found):
                read(tmp_path / name)
    assert open_descriptors() <= before


def test_open_verified_reads_what_it_verified(tmp_path: Path) -> None:
    path = tmp_path / "shard.safetensors"
    published = files.publish(path, NEW)
    verified = reading.open_verified(path, published.bytes, published.sha256)
    path.rename(tmp_path / "away")
    path.write_bytes(OLD)
    assert os.read(verified.fd, len(NEW) + 1) == NEW
    os.link(tmp_path / "away", tmp_path / "linked")
    (tmp_path / "away").unlink()
    (tmp_path / "linked").unlink()
    verified.check()  # Another name, or none any more, is no other byte.
    os.close(verified.fd)
    before = open_descriptors()
    with pytest.raises(IntegrityError, match=f"shard.safetensors: expected {len(NEW)} bytes, found {len(OLD)}"):
        reading.open_verified(path, published.bytes, published.sha256)
    path.write_bytes(NEW[:-1] + b"!")
    with pytest.raises(IntegrityError, match=r"shard\.safetensors: expected SHA-256"):
        reading.open_verified(path, published.bytes, published.sha256)
    assert open_descriptors() <= before


@pytest.mark.parametrize("threads_from", [0, 1 << 40])
def test_what_is_wrong_is_told_in_the_order_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads_from: int
) -> None:
    """Whatever the threads find first: the largest file is hashed first, and the answer is that of one thread."""
    monkeypatch.setattr(reading, "THREADS_FROM", threads_from)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    seen: list[str] = []

    class Watching(syscalls.System):
        def open(self, path: Path, flags: int, mode: int = 0o644) -> int:
            seen.append(path.name)
            return super().open(path, flags, mode)

    monkeypatch.setattr(syscalls, "system", Watching())
    expected = []
    for number in range(20):
        path = tmp_path / f"{number:02}"
        content = NEW * (1 + number)
        path.write_bytes(content)
        expected.append((path, len(content), hashlib.sha256(content).hexdigest()))
    with (tmp_path / "03").open("r+b") as file:
        file.write(b"!")
    (tmp_path / "07").write_bytes(OLD)
    (tmp_path / "11").unlink()
    seen.clear()
    before = open_descriptors()
    found = reading.verify_all(expected)
    assert open_descriptors() <= before
    faults = [(number, str(fault)) for number, fault in enumerate(found) if fault is not None]
    assert [number for number, _ in faults] == [3, 7, 11]
    for (number, text), reason in zip(faults, ("expected SHA-256", "bytes, found", "missing"), strict=True):
        assert f"/{number:02}: " in text
        assert reason in text
    assert sorted(seen) == [f"{number:02}" for number in range(20)]
    assert seen[0] in ({"19", "18", "17", "16"} if threads_from == 0 else {"00"})
    assert not [thread for thread in threading.enumerate() if "Pool" in thread.name], "a thread is left"


@pytest.mark.parametrize("put_back", [False, True])
def test_a_file_that_is_written_to_while_it_is_read_is_not_what_was_verified(tmp_path: Path, put_back: bool) -> None:
    """Also where bytes and times are as they were by the time that anybody looks."""
    path = tmp_path / "shard.safetensors"
    published = files.publish(path, NEW)
    times = path.stat()
    verified = reading.open_verified(path, published.bytes, published.sha256)
    verified.check()
    for data in (NEW[:-1] + b"!", NEW)[: 1 + put_back]:
        with path.open("r+b") as writer:
            writer.write(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(IntegrityError, match=r"shard\.safetensors: it was changed while it was read"):
        verified.check()
    os.close(verified.fd)


def test_a_signal_does_not_wait_for_the_end_of_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "THREADS_FROM", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    endless = threading.Event()

    class Endless(syscalls.System):
        def read_into(self, fd: int, buffer: memoryview) -> int:
            if not endless.is_set():
                endless.set()
                os.kill(os.getpid(), signal.SIGINT)
            return len(buffer)

    monkeypatch.setattr(syscalls, "system", Endless())
    expected = []
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(NEW)
        expected.append((tmp_path / name, len(NEW), "0" * 64))
    with pytest.raises(KeyboardInterrupt):
        reading.verify_all(expected)


def test_what_nobody_expects_in_a_thread_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "THREADS_FROM", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})

    class Failing(syscalls.System):
        def read_into(self, fd: int, buffer: memoryview) -> int:
            raise MemoryError

    (tmp_path / "a").write_bytes(NEW)
    monkeypatch.setattr(syscalls, "system", Failing())
    with pytest.raises(MemoryError):
        reading.verify_all([(tmp_path / "a", len(NEW), "0" * 64)] * 2)


def test_a_reading_fault_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(NEW)
    for faulty, raised in faults(monkeypatch, lambda: lambda: reading.hash_file(path)):
        assert (raised is not None) == (len(faulty.calls) >= faulty.at)
        assert raised is None or str(path) in str(raised)


def test_walk_is_sorted_and_tells_the_kinds_apart(tmp_path: Path) -> None:
    for folder in ("b", "b/c", "a"):
        (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / "b" / "z").write_bytes(b"")
    (tmp_path / "b-").symlink_to(tmp_path / "b")
    os.mkfifo(tmp_path / "b" / "c" / "pipe")
    assert reading.walk(tmp_path) == [
        ("a", "folder"),
        ("b", "folder"),
        ("b-", "link"),
        ("b/c", "folder"),
        ("b/c/pipe", "other"),
        ("b/z", "file"),
    ]
    with pytest.raises(IntegrityError, match="nothing: missing"):
        reading.walk(tmp_path / "nothing")


def test_a_folder_that_a_writer_removes_while_it_is_walked_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pruned" / "inside").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    real = reading.list_folder

    def listed(folder: Path) -> list[tuple[str, reading.Kind]]:
        found = real(folder)
        shutil.rmtree(tmp_path / "pruned", ignore_errors=True)
        return found

    monkeypatch.setattr(reading, "list_folder", listed)
    assert reading.walk(tmp_path) == [("kept", "folder")]
    with pytest.raises(IntegrityError, match="missing"):
        reading.walk(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "read", [reading.hash_file, lambda path: reading.verify_all([(path, 5 * reading.BLOCK, "0" * 64)])]
)
def test_every_block_that_is_hashed_is_progress_to_the_watchdog(read: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(5 * reading.BLOCK))
    before = progress.count()
    read(tmp_path / "large")
    assert progress.count() - before >= 5
