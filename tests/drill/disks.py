"""Small file systems to fill, of a few kilobytes in memory or an ext4 in a file, for whoever may mount."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

TMPFS, EXT4, READ_ONLY = "disks in memory", "disks of ext4", "disks that become read-only"
_PLENTY = 64 << 20


class Disk:
    """A mounted file system. device: of ext4, None = it lies in memory."""

    def __init__(self, path: Path, device: str | None = None) -> None:
        self.path, self.device = path, device
        self._filler = path / "filler"

    def fill(self) -> None:
        """Take every block that is left, as another process would; what is in memory has no more than it holds then."""
        if self.device is None:
            found = os.statvfs(self.path)
            used = (found.f_blocks - found.f_bfree) * found.f_bsize
            _call("mount", "-o", f"remount,size={max(used, found.f_bsize)}", str(self.path))
        with self._filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            for size in (65536, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def free(self) -> None:
        """Give back what was taken, and let what is in memory grow to any size."""
        self._filler.unlink(missing_ok=True)
        if self.device is None:
            _call("mount", "-o", f"remount,size={_PLENTY},nr_inodes=10000", str(self.path))

    def fail(self) -> None:
        """Let the kernel find an error on ext4, upon which it makes it read-only, under open files too."""
        assert self.device is not None
        Path(_trigger(self.device)).write_text("drill")

    def mend(self) -> None:
        """Check it and mount it anew, as a person would."""
        assert self.device is not None
        _call("umount", str(self.path))
        checked = subprocess.run(["e2fsck", "-fy", f"/dev/{self.device}"], capture_output=True, check=False)
        assert checked.returncode in (0, 1), checked
        _call("mount", f"/dev/{self.device}", str(self.path))


@contextlib.contextmanager
def in_memory(path: Path, size: int = _PLENTY, inodes: int = 10000) -> Iterator[Disk]:
    """A tmpfs of `size` bytes and so many files, its own folder among them."""
    path.mkdir()
    _call("mount", "-t", "tmpfs", "-o", f"size={size},nr_inodes={inodes},mode=700", "drill", str(path))
    try:
        yield Disk(path)
    finally:
        _call("umount", "-l", str(path))


@contextlib.contextmanager
def ext4(path: Path) -> Iterator[Disk]:
    """An ext4 of 4 MB in a file, which becomes read-only at an error."""
    image = path.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(4 << 20)
    _call("mkfs.ext4", "-q", "-b", "1024", "-O", "^has_journal", "-m", "0", str(image))
    path.mkdir()
    device = _call("losetup", "--find", "--show", str(image)).strip()
    try:
        _call("mount", "-o", "errors=remount-ro", device, str(path))
        try:
            yield Disk(path, Path(device).name)
        finally:
            _call("umount", "-l", str(path))
    finally:
        _call("losetup", "--detach", device)


def not_here(folder: Path) -> dict[str, str]:
    """Return which of TMPFS, EXT4 and READ_ONLY, an ext4 that is made to fail, cannot be had here, and why."""
    found: dict[str, str] = {}
    for name, make in ((TMPFS, in_memory), (EXT4, ext4)):
        try:
            with make(folder / make.__name__) as disk:
                if disk.device is not None and not os.access(trigger := _trigger(disk.device), os.W_OK):
                    found[READ_ONLY] = f"{trigger} cannot be written to"
        except subprocess.CalledProcessError as error:
            found[name] = f"{error.cmd[0]}: {' '.join(error.stderr.split())}"
        except OSError as error:
            found[name] = str(error)
    if EXT4 in found:
        found[READ_ONLY] = found[EXT4]
    return found


def _trigger(device: str) -> str:
    return f"/sys/fs/ext4/{device}/trigger_fs_error"


def _call(*words: str) -> str:
    return subprocess.run(words, capture_output=True, check=True, text=True).stdout
