"""files.py under every failing system call: the old file or the new one whole, no temporary, StorageError."""

import errno
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pretrain import files, progress
from pretrain.errors import BusyError, DisplacedError, IntegrityError, StorageError

OLD, NEW = b"old content\n" * 50, bytes(range(256)) * 37
ERRORS = [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE]
CALLS = (
    "open",
    "read",
    "read_into",
    "write",
    "fsync",
    "truncate",
    "close",
    "replace",
    "unlink",
    "mkdir",
    "rmdir",
    "flock",
)


class Faulty(files.System):
    """The real system, whose call number `at` fails: that one only, or every one `from_then_on`.

    short: every write takes at most this many bytes.
    """

    def __init__(self, at: int = 0, error: int = 0, from_then_on: bool = False, short: int = 0) -> None:
        self.at, self.error, self.from_then_on, self.short = at, error, from_then_on, short
        self.calls: list[str] = []
        self.unlink_failed = False

    def __getattribute__(self, name: str) -> Any:
        attribute = super().__getattribute__(name)
        return (lambda *arguments: self._call(name, attribute, *arguments)) if name in CALLS else attribute

    def _call(self, name: str, real: Callable[..., Any], *arguments: Any) -> Any:
        self.calls.append(name)
        count = len(self.calls)
        if name == "write" and self.short:
            arguments = (arguments[0], arguments[1][: self.short])
        fails = self.error and (count == self.at or (self.from_then_on and count > self.at))
        if fails and name == "close":
            real(*arguments)  # Linux gives the descriptor back even when close reports an error
        if fails:
            self.unlink_failed |= name in ("unlink", "rmdir")
            raise OSError(self.error, os.strerror(self.error))
        # Only a power cut tells whether an fsync was one, and real ones take most of the time of this file.
        return None if name == "fsync" else real(*arguments)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def faults(
    monkeypatch: pytest.MonkeyPatch, prepare: Callable[[], Callable[[], Any]], short: int = 0
) -> Iterator[tuple[Faulty, BaseException | None]]:
    """Run what `prepare` returns with call 1, 2, 3 ... failing, until none fails; yields after each."""
    for error in ERRORS:
        for from_then_on in (False, True):
            for at in range(1, 1000):
                with monkeypatch.context() as patch:
                    patch.setattr(files, "system", Faulty())
                    action = prepare()
                faulty = Faulty(at, error, from_then_on, short)
                before = open_descriptors()
                raised: BaseException | None = None
                with monkeypatch.context() as patch:
                    patch.setattr(files, "system", faulty)
                    try:
                        action()
                    except StorageError as caught:
                        raised = caught
                assert open_descriptors() <= before, f"a descriptor leaked at {faulty.calls}"
                yield faulty, raised
                if len(faulty.calls) < at:
                    assert raised is None
                    break
            else:
                pytest.fail("there is no end of system calls")


def names(folder: Path) -> list[str]:
    return [name for name, _ in files.walk(folder)]


@pytest.mark.parametrize("short", [0, 1000])
def test_publish_leaves_the_old_file_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: int
) -> None:
    target = tmp_path / "manifest.json"

    def prepare() -> Callable[[], Any]:
        for name in names(tmp_path):
            (tmp_path / name).unlink()
        target.write_bytes(OLD)
        return lambda: files.publish(target, [NEW[:100], memoryview(NEW)[100:]])

    runs = 0
    for faulty, raised in faults(monkeypatch, prepare, short):
        runs += 1
        content = target.read_bytes()
        failed = len(faulty.calls) >= faulty.at
        assert content in (OLD, NEW)
        assert (raised is not None) == failed
        assert (content == NEW) == ("replace" in faulty.calls and not (failed and before_rename(faulty)))
        if raised is not None:
            assert str(target) in str(raised) or str(tmp_path) in str(raised)
            assert os.strerror(faulty.error) in str(raised)
        if not faulty.unlink_failed:
            assert names(tmp_path) == ["manifest.json"]
    assert runs > 90


def before_rename(faulty: Faulty) -> bool:
    return faulty.at <= faulty.calls.index("replace") + 1


def test_publish_folder_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    final = tmp_path / "0001"

    def fill(folder: Path) -> None:
        files.publish(folder / "config.yaml", OLD)
        files.make_folder(folder / "incidents")
        files.publish(folder / "incidents" / "incident_0001.json", NEW)

    def prepare() -> Callable[[], Any]:
        files.remove_folder(final)
        files.remove_temporaries(tmp_path)
        return lambda: files.publish_folder(final, fill)

    whole = ["0001", "0001/config.yaml", "0001/incidents", "0001/incidents/incident_0001.json"]
    for faulty, raised in faults(monkeypatch, prepare):
        found = names(tmp_path)
        assert (raised is not None) == (len(faulty.calls) >= faulty.at)
        assert ".tmp-" not in str(raised), "the folder is named as it would have been"
        assert [name for name in found if not name.startswith(".tmp-")] in ([], whole)
        if not faulty.unlink_failed:
            assert found in ([], whole)
        if final.exists():
            assert (final / "config.yaml").read_bytes() == OLD
            assert (final / "incidents" / "incident_0001.json").read_bytes() == NEW


@pytest.mark.parametrize("short", [0, 3])
def test_an_append_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: int) -> None:
    stream = tmp_path / "metrics.jsonl"
    rows = [b"row %d\n" % index for index in range(3)]

    def prepare() -> Callable[[], Any]:
        stream.unlink(missing_ok=True)

        def action() -> None:
            with files.Appender(stream) as appender:
                for row in rows:
                    appender.append(row)
                    appender.sync()

        return action

    whole = [b"".join(rows[:count]) for count in range(4)]
    for faulty, raised in faults(monkeypatch, prepare, short):
        content = stream.read_bytes() if stream.exists() else b""
        assert (raised is not None) == (len(faulty.calls) >= faulty.at)
        if not (faulty.from_then_on and short):  # there the cut back fails as well, and a torn row stays
            assert content in whole


@pytest.mark.parametrize("error", [*ERRORS, errno.EFBIG, errno.ENFILE])
def test_what_space_would_mend_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    """A quota and a full disk; not a limit, a fault, or an fsync of names or of a stream, which is never repeated."""
    is_full = error in (errno.ENOSPC, errno.EDQUOT)

    def refused(at: int, action: Callable[[], object]) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(files, "system", Faulty(at, error))
            with pytest.raises(StorageError) as raised:
                action()
        return raised.value.is_full

    publish = partial(files.publish, tmp_path / "file", NEW)
    with monkeypatch.context() as patch:
        patch.setattr(files, "system", counting := Faulty())
        publish()
    for at, name in enumerate(counting.calls, start=1):
        is_of_names = at > counting.calls.index("replace") + 1
        assert refused(at, publish) == (is_full and not is_of_names), (at, name)
    with files.Appender(tmp_path / "stream") as stream:
        assert refused(1, lambda: stream.append(b"one\n")) == is_full
        assert not refused(1, stream.sync)
        assert not refused(9, stream.sync)


def test_a_limit_and_inodes_are_told_apart_from_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def text(error: int) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(files, "system", Faulty(1, error))
            with pytest.raises(StorageError) as raised:
                files.publish(tmp_path / "file", NEW)
        return str(raised.value)

    assert text(errno.EFBIG).endswith("a file may not become that large: raise the limit (ulimit -f), then resume")
    assert text(errno.ENOSPC).endswith("free space on this disk, then resume")
    values = list(os.statvfs(tmp_path))
    values[5:8] = [1000, 0, 0]
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(values))
    assert text(errno.ENOSPC).endswith("the file system has no inodes left (df -i): remove files, then resume")
    values[5:8] = [0, 0, 0]  # it makes them as it needs them
    assert text(errno.ENOSPC).endswith("free space on this disk, then resume")


def test_a_failed_append_that_was_cut_back_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with files.Appender(tmp_path / "stream") as stream:
        stream.append(b"one\n")
        with monkeypatch.context() as patch:
            patch.setattr(files, "system", Faulty(2, errno.ENOSPC, short=2))
            with pytest.raises(StorageError, match=r"stream: appending failed: No space left .*free space"):
                stream.append(b"two\n")
        assert (stream.length, (tmp_path / "stream").read_bytes()) == (4, b"one\n")
        stream.append(b"two\n")
        stream.sync()
    assert (tmp_path / "stream").read_bytes() == b"one\ntwo\n"


def test_a_failed_fsync_condemns_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with files.Appender(tmp_path / "stream") as stream:
        stream.append(b"one\n")
        with monkeypatch.context() as patch:
            patch.setattr(files, "system", Faulty(1, errno.EIO))
            with pytest.raises(StorageError, match="Input/output error"):
                stream.sync()
        for use in (stream.sync, lambda: stream.append(b"two\n")):
            with pytest.raises(StorageError, match="refused, because an fsync failed"):
                use()
    assert (tmp_path / "stream").read_bytes() == b"one\n"


def test_an_append_that_cannot_be_taken_back_condemns_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with files.Appender(tmp_path / "stream") as stream:
        with monkeypatch.context() as patch:
            patch.setattr(files, "system", Faulty(2, errno.ENOSPC, from_then_on=True, short=2))
            with pytest.raises(StorageError):
                stream.append(b"one\n")
        with pytest.raises(StorageError, match="could not be taken back"):
            stream.append(b"two\n")


def test_appender_keeps_a_prefix_and_refuses_what_is_not_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "stream"
    path.write_bytes(b"one\ntwo\nthr")
    with files.Appender(path, keep=8) as stream:
        stream.append(b"three\n")
    assert path.read_bytes() == b"one\ntwo\nthree\n"
    with files.Appender(path) as stream:
        stream.append(b"four\n")
    assert path.read_bytes().endswith(b"three\nfour\n")
    with pytest.raises(StorageError, match="closed"):
        stream.append(b"five\n")
    with pytest.raises(IntegrityError, match=r"expected 1000 bytes or more, found 19"):
        files.Appender(path, keep=1000)
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "fifo")
    before = open_descriptors()
    for name in ("link", "fifo"):
        with pytest.raises(StorageError):
            files.Appender(tmp_path / name)
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(IntegrityError, match="regular file"):
        files.Appender(tmp_path / "fifo")
    os.close(reader)
    assert open_descriptors() <= before


def test_publish_returns_size_and_hash_and_obeys_the_umask(tmp_path: Path) -> None:
    content = NEW * 500  # more than one block
    published = files.publish(tmp_path / "a", (chunk for chunk in (content, b"", memoryview(b"tail"))))
    assert published == files.Published(len(content) + 4, hashlib.sha256(content + b"tail").hexdigest())
    assert files.hash_file(tmp_path / "a") == published
    old = os.umask(0o027)
    try:
        files.publish(tmp_path / "b", b"")
    finally:
        os.umask(old)
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o640


def test_nothing_is_renamed_before_it_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, folder = ["open", "write", "fsync", "close"], ["open", "fsync", "close"]

    def calls(action: Callable[[], Any]) -> list[str]:
        watching = Faulty()
        with monkeypatch.context() as patch:
            patch.setattr(files, "system", watching)
            action()
        return watching.calls

    assert calls(lambda: files.publish(tmp_path / "a", OLD)) == [*file, "replace", *folder]
    assert calls(lambda: files.publish(tmp_path / "a", OLD, durable_folder=False)) == [*file, "replace"]

    def fill(temporary: Path) -> None:
        files.publish(temporary / "a", OLD, durable_folder=False)

    assert calls(lambda: files.publish_folder(tmp_path / "b", fill)) == [
        *("mkdir", *file, "replace"),
        *folder,  # the names in it, before its own
        *("replace", *folder),
    ]
    assert calls(lambda: files.Appender(tmp_path / "c").sync()) == ["open", *folder, "fsync"]
    assert calls(lambda: files.make_folder(tmp_path / "d" / "e")) == ["mkdir", *folder, "mkdir", *folder]
    assert calls(lambda: files.remove_file(tmp_path / "a")) == ["unlink", *folder]
    assert calls(lambda: files.remove_folder(tmp_path / "b")) == ["unlink", "rmdir", *folder]


def test_publish_removes_the_temporary_when_the_chunks_raise(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"begun"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.publish(tmp_path / "a", chunks())
    assert names(tmp_path) == []


def test_s31_publish_passes_over_a_temporary_that_a_dead_process_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_serial", iter(range(1, 9)))
    (tmp_path / f".tmp-{os.getpid()}-1-a").write_bytes(b"left")
    files.publish(tmp_path / "a", NEW)
    assert (tmp_path / "a").read_bytes() == NEW
    assert (tmp_path / f".tmp-{os.getpid()}-1-a").read_bytes() == b"left"


def test_publish_replaces_a_symlink_and_never_writes_through_it(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(OLD)
    (tmp_path / "a").symlink_to(tmp_path / "outside")
    files.publish(tmp_path / "a", NEW)
    assert (tmp_path / "outside").read_bytes() == OLD
    assert not (tmp_path / "a").is_symlink()


def test_publish_folder_refuses_an_existing_name(tmp_path: Path) -> None:
    (tmp_path / "0001").mkdir()  # an empty folder: rename(2) alone would replace it
    with pytest.raises(StorageError, match="exists already"):
        files.publish_folder(tmp_path / "0001", lambda folder: None)
    assert names(tmp_path) == ["0001"]


def test_removal_never_follows_a_link(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    (outside / "deep").mkdir(parents=True)
    (outside / "kept").write_bytes(OLD)
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "link").symlink_to(outside)
    (folder / "inner" / "file").write_bytes(NEW)
    (tmp_path / "alias").symlink_to(outside)
    files.remove_folder(folder)
    files.remove_folder(folder)
    files.remove_file(tmp_path / "gone")
    with pytest.raises(IntegrityError, match="symlink"):
        files.remove_folder(tmp_path / "alias")
    assert names(tmp_path) == ["alias", "outside", "outside/deep", "outside/kept"]


def test_a_removal_that_fails_says_so_and_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "step_00000100"

    def prepare() -> Callable[[], Any]:
        files.make_folder(folder / "inner")
        files.publish(folder / "inner" / "a", OLD)

        def action() -> None:
            files.remove_file(folder / "b")
            files.remove_folder(folder)

        return action

    for faulty, raised in faults(monkeypatch, prepare):
        assert (raised is not None) == (len(faulty.calls) >= faulty.at)
        assert folder.exists() <= (raised is not None)


def test_s31_remove_temporaries_takes_only_its_own(tmp_path: Path) -> None:
    own = [".tmp-12-1-manifest.json", "a/.tmp-7-22-step_00000100", "a/.tmp-7-22-step_00000100/.tmp-7-23-x"]
    other = [".tmp-x", "a/.tmp-12-manifest.json", "tmp-12-1-a", "a/model.safetensors"]
    for name in (own[0], own[2], *other):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "a" / ".tmp-1-1-link").symlink_to(tmp_path)
    assert files.remove_temporaries(tmp_path) == [own[0], "a/.tmp-1-1-link", own[1]]
    assert names(tmp_path) == sorted(["a", *other])


def test_the_lock_is_held_by_one_and_freed_by_death(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    busy = pytest.raises(BusyError, match="runs/a: another process writes this run")
    with files.Lock.acquire(path, "runs/a"), busy:
        files.Lock.acquire(path, "runs/a")
    files.Lock.acquire(path, "runs/a").release()
    hold = (
        f"import fcntl, os; fcntl.flock(os.open({str(path)!r}, os.O_RDWR), fcntl.LOCK_EX)\n"
        "print(1, flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", hold], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(BusyError):
            files.Lock.acquire(path, "runs/a")
        process.kill()
    files.Lock.acquire(path, "runs/a").release()


def test_a_lock_file_that_was_replaced_meanwhile_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.lock"

    class Replacing(files.System):
        times = 0

        def flock(self, fd: int, operation: int) -> None:
            fcntl.flock(fd, operation)
            self.times += 1
            if self.times == 1:
                path.unlink()

    monkeypatch.setattr(files, "system", Replacing())
    with files.Lock.acquire(path, "runs/a"), pytest.raises(BusyError):
        files.Lock.acquire(path, "runs/a")


def test_locking_reports_a_system_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare() -> Callable[[], Any]:
        return lambda: files.Lock.acquire(tmp_path / "run.lock", "runs/a").release()

    for faulty, raised in faults(monkeypatch, prepare):
        assert (raised is not None) == (len(faulty.calls) >= faulty.at)


def test_reading_refuses_links_fifos_folders_and_large_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(NEW)
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    assert files.read_regular(path, limit=len(NEW)) == NEW
    with pytest.raises(IntegrityError, match=f"file: expected at most 10 bytes, found {len(NEW)}"):
        files.read_regular(path, limit=10)
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
        for read in (files.hash_file, lambda p: files.read_regular(p, limit=10)):
            with pytest.raises(IntegrityError, match=found):
                read(tmp_path / name)
    assert open_descriptors() <= before


def test_open_verified_reads_what_it_verified(tmp_path: Path) -> None:
    path = tmp_path / "shard.safetensors"
    published = files.publish(path, NEW)
    verified = files.open_verified(path, published.bytes, published.sha256)
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
        files.open_verified(path, published.bytes, published.sha256)
    path.write_bytes(NEW[:-1] + b"!")
    with pytest.raises(IntegrityError, match=r"shard\.safetensors: expected SHA-256"):
        files.open_verified(path, published.bytes, published.sha256)
    assert open_descriptors() <= before


@pytest.mark.parametrize("threads_from", [0, 1 << 40])
def test_what_is_wrong_is_told_in_the_order_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads_from: int
) -> None:
    """Whatever the threads find first: the largest file is hashed first, and the answer is that of one thread."""
    monkeypatch.setattr(files, "THREADS_FROM", threads_from)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    seen: list[str] = []

    class Watching(files.System):
        def open(self, path: Path, flags: int, mode: int = 0o644) -> int:
            seen.append(path.name)
            return super().open(path, flags, mode)

    monkeypatch.setattr(files, "system", Watching())
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
    found = files.verify_all(expected)
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
    verified = files.open_verified(path, published.bytes, published.sha256)
    verified.check()
    for data in (NEW[:-1] + b"!", NEW)[: 1 + put_back]:
        with path.open("r+b") as writer:
            writer.write(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(IntegrityError, match=r"shard\.safetensors: it was changed while it was read"):
        verified.check()
    os.close(verified.fd)


def test_a_lock_is_nobodys_once_its_file_is_another_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with files.Lock.acquire(folder / "run.lock", "run") as lock:
        lock.check()
        (folder / "run.lock").unlink()
        with pytest.raises(DisplacedError, match=r"run\.lock: not the lock that this process took"):
            lock.check()
        with files.Lock.acquire(folder / "run.lock", "run") as other:
            other.check()
            with pytest.raises(DisplacedError):
                lock.check()
            folder.rename(tmp_path / "away")
            folder.write_bytes(b"")
            with pytest.raises(DisplacedError):
                other.check()


def test_a_signal_does_not_wait_for_the_end_of_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "THREADS_FROM", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    endless = threading.Event()

    class Endless(files.System):
        def read_into(self, fd: int, buffer: memoryview) -> int:
            if not endless.is_set():
                endless.set()
                os.kill(os.getpid(), signal.SIGINT)
            return len(buffer)

    monkeypatch.setattr(files, "system", Endless())
    expected = []
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(NEW)
        expected.append((tmp_path / name, len(NEW), "0" * 64))
    with pytest.raises(KeyboardInterrupt):
        files.verify_all(expected)


def test_what_nobody_expects_in_a_thread_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "THREADS_FROM", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})

    class Failing(files.System):
        def read_into(self, fd: int, buffer: memoryview) -> int:
            raise MemoryError

    (tmp_path / "a").write_bytes(NEW)
    monkeypatch.setattr(files, "system", Failing())
    with pytest.raises(MemoryError):
        files.verify_all([(tmp_path / "a", len(NEW), "0" * 64)] * 2)


def test_a_reading_fault_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(NEW)
    for faulty, raised in faults(monkeypatch, lambda: lambda: files.hash_file(path)):
        assert (raised is not None) == (len(faulty.calls) >= faulty.at)
        assert raised is None or str(path) in str(raised)


def test_walk_is_sorted_and_tells_the_kinds_apart(tmp_path: Path) -> None:
    for folder in ("b", "b/c", "a"):
        (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / "b" / "z").write_bytes(b"")
    (tmp_path / "b-").symlink_to(tmp_path / "b")
    os.mkfifo(tmp_path / "b" / "c" / "pipe")
    assert files.walk(tmp_path) == [
        ("a", "folder"),
        ("b", "folder"),
        ("b-", "link"),
        ("b/c", "folder"),
        ("b/c/pipe", "other"),
        ("b/z", "file"),
    ]
    with pytest.raises(IntegrityError, match="nothing: missing"):
        files.walk(tmp_path / "nothing")


def test_a_folder_that_a_writer_removes_while_it_is_walked_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pruned" / "inside").mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    real = files._list

    def listed(folder: Path) -> list[tuple[str, files.Kind]]:
        found = real(folder)
        shutil.rmtree(tmp_path / "pruned", ignore_errors=True)
        return found

    monkeypatch.setattr(files, "_list", listed)
    assert files.walk(tmp_path) == [("kept", "folder")]
    with pytest.raises(IntegrityError, match="missing"):
        files.walk(tmp_path / "nowhere")


@pytest.mark.parametrize("read", [files.hash_file, lambda path: files.verify_all([(path, 5 * files.BLOCK, "0" * 64)])])
def test_every_block_that_is_hashed_is_progress_to_the_watchdog(read: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(bytes(5 * files.BLOCK))
    before = progress.count()
    read(tmp_path / "large")
    assert progress.count() - before >= 5
