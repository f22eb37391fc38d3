"""files.py under every failing system call: the old file or the new one whole, no temporary, StorageError."""

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pretrain import files, reading, syscalls
from pretrain.errors import IntegrityError, StorageError
from tests.evidence.faulty import ERRORS, Faulty, faults, names, open_descriptors

OLD, NEW = b"old content\n" * 50, bytes(range(256)) * 37


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
            patch.setattr(syscalls, "system", Faulty(at, error))
            with pytest.raises(StorageError) as raised:
                action()
        return raised.value.is_full

    publish = partial(files.publish, tmp_path / "file", NEW)
    with monkeypatch.context() as patch:
        patch.setattr(syscalls, "system", counting := Faulty())
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
            patch.setattr(syscalls, "system", Faulty(1, error))
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
            patch.setattr(syscalls, "system", Faulty(2, errno.ENOSPC, short=2))
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
            patch.setattr(syscalls, "system", Faulty(1, errno.EIO))
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
            patch.setattr(syscalls, "system", Faulty(2, errno.ENOSPC, from_then_on=True, short=2))
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
    assert published == reading.Published(len(content) + 4, hashlib.sha256(content + b"tail").hexdigest())
    assert reading.hash_file(tmp_path / "a") == published
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
            patch.setattr(syscalls, "system", watching)
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
