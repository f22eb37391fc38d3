"""Savers that are broken on purpose, in a process of their own: what looks for lost checkpoints must find theirs."""

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pretrain import files, reading
from pretrain.evidence.checkpoint_record import RECORD_NAME, is_shard_name
from tests.loop.systems import Recording


def _no_file_fsync(system: Recording) -> None:
    system.left_out = frozenset({"fsync"})


def _no_folder_fsync(system: Recording) -> None:
    system.left_out = frozenset({"fsync_folder"})


def _no_stream_fsync(_: Recording) -> None:
    files.Appender.sync = lambda self: None  # type: ignore[method-assign]


def _record_before_data(_: Recording) -> None:
    """Hold the shard files back until the record that binds them is there."""
    publish = files.publish
    held: list[tuple[Path, bytes]] = []

    def publish_late(path: Path, chunks: bytes | Iterable[bytes | memoryview], **how: Any) -> reading.Published:
        if is_shard_name(path.name):
            data = b"".join(bytes(chunk) for chunk in ((chunks,) if isinstance(chunks, bytes) else chunks))
            held.append((path, data))
            return reading.Published(len(data), hashlib.sha256(data).hexdigest())
        published = publish(path, chunks, **how)
        while path.name == RECORD_NAME and held:
            publish(*held.pop())
        return published

    files.publish = publish_late  # type: ignore[assignment]


def _prune_before_publish(_: Recording) -> None:
    from pretrain.evidence.writer import AttemptWriter

    save = AttemptWriter.save

    def prune_and_save(self: AttemptWriter, *arguments: Any, **named: Any) -> Any:
        self.prune(tuple(self.saved))
        return save(self, *arguments, **named)

    AttemptWriter.save = prune_and_save  # type: ignore[method-assign]


def _written_in_place(system: Recording) -> None:
    """Write every file under its own name, where a reader can see the half of it."""

    def publish(path: Path, chunks: bytes | Iterable[bytes | memoryview], **_: Any) -> reading.Published:
        fd = system.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        published = files._write_hashed(fd, path, chunks)
        system.fsync(fd)
        system.close(fd)
        files.fsync_folder(path.parent)
        return published

    files.publish = publish  # type: ignore[assignment]


SAVERS: dict[str, Callable[[Recording], None]] = {
    "no file fsync": _no_file_fsync,
    "no folder fsync": _no_folder_fsync,
    "no stream fsync": _no_stream_fsync,
    "record before data": _record_before_data,
    "prune before publish": _prune_before_publish,
    "written in place": _written_in_place,
}


def break_saver(system: Recording, how: str) -> Recording:
    """Break the saver of this process in one of these ways, "" = in none; returns the system to put in place."""
    if how:
        SAVERS[how](system)
    return system
