"""What a file system says of itself: its space, its inodes, its kind."""

import os
from pathlib import Path

import pytest

from pretrain.machine import disk

MOUNTS = r"""22 1 253:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /data rw,relatime shared:2 - nfs4 server:/export rw,vers=4.2
31 22 0:41 / /data/local rw - xfs /dev/sdb1 rw
32 22 0:42 / /mnt/with\040space rw - fuse.sshfs host: rw
33 22 0:43 / /twice rw - ext4 /dev/sdc rw
34 33 0:44 / /twice rw - tmpfs tmpfs rw
35 22 0:45 /part /mnt/tagged rw master:1 propagate_from:2 - cifs //server/share rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/run", "ext4"),
        ("/data", "nfs4"),
        ("/data/runs/first", "nfs4"),
        ("/database/runs", "ext4"),
        ("/data/local/runs", "xfs"),
        ("/mnt/with space/runs", "fuse.sshfs"),
        ("/twice/runs", "tmpfs"),
        ("/mnt/tagged/runs", "cifs"),
    ],
)
def test_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, kind: str) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS)
    monkeypatch.setattr(disk, "_MOUNTS", table)
    assert disk.kind_of(Path(path)) == kind


@pytest.mark.parametrize(
    ("kind", "remote"),
    [
        *((kind, False) for kind in ("ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "f2fs", None)),
        *((kind, True) for kind in ("nfs", "nfs4", "cifs", "fuse", "fuse.sshfs", "fuseblk", "9p", "lustre", "ceph")),
    ],
)
def test_is_remote(kind: str | None, remote: bool) -> None:
    assert disk.is_remote(kind) is remote


def test_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert disk.kind_of(tmp_path) is not None
    assert disk.kind_of(Path("/proc/self/status")) == "proc"
    monkeypatch.setattr(disk, "_MOUNTS", tmp_path / "none")
    assert disk.kind_of(tmp_path) is None


def test_what_is_free_where_a_folder_will_be(tmp_path: Path) -> None:
    free = disk.free_space(tmp_path / "not" / "made" / "yet")
    found = os.statvfs(tmp_path)
    assert free.bytes == pytest.approx(found.f_bavail * found.f_frsize, rel=0.1)
    assert disk.free_bytes(tmp_path / "none") is None
    assert disk.free_bytes(tmp_path) == pytest.approx(free.bytes, rel=0.1)


@pytest.mark.parametrize(("total", "left", "files"), [(0, 0, None), (1000, 7, 7), (1000, 0, 0)])
def test_inodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total: int, left: int, files: int | None) -> None:
    values = list(os.statvfs(tmp_path))
    values[5:8] = [total, left, left]
    monkeypatch.setattr(disk.os, "statvfs", lambda _: os.statvfs_result(values))
    assert disk.free_space(tmp_path).files == files


def test_a_file_system_that_does_not_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(disk.os, "statvfs", refuse)
    assert disk.free_space(tmp_path) == disk.Space(None, None)
    assert disk.free_bytes(tmp_path) is None
