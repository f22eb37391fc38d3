"""Where a point of the hostile layer is made, and what may lie in the place of a file."""

import json
import os
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pretrain.evidence import canonical, namespace
from tests.drill.hostile_content import ARCHIVES, BOMBS, HEADS, PICKLES, Maker

FILES: Mapping[str, Maker] = {**PICKLES, **BOMBS, **HEADS, **ARCHIVES}
Commands = list[list[object]]
LINKS = ("link", "link-to-zero", "link-to-itself", "pipe", "socket", "folder", "sparse")


@dataclass(frozen=True)
class Place:
    """Where a point is made. runs: the trained runs. config: they were trained from. canary: shows that code ran."""

    runs: Path
    config: Path
    work: Path
    outside: Path
    canary: Path

    def copy(self) -> Path:
        """Return the attempt of a copy of the run that was stopped."""
        return shutil.copytree(self.runs / "stopped", self.work / "run") / "attempts/0001"

    def data(self, name: str) -> bytes:
        """Return the bytes of that name."""
        return FILES[name](self.canary)

    def begin(self, path: Path, *words: str) -> Commands:
        """Return what meets a checkpoint that new weights are to come from."""
        given = ["--config", self.config, f"run.dir={self.work / 'new'}", f"init.from_checkpoint={path}", *words]
        return [["train", *given], ["plan", *given]]


def forge(folder: Path, /, **fields: object) -> None:
    """Write other fields into the environment of an attempt, and its digests over them and the config."""
    record = json.loads((folder / "environment.json").read_bytes()) | fields
    config = (folder / "config.yaml").read_bytes()
    (folder / "environment.json").write_bytes(canonical.encode(namespace.bound(record, config)))


def make(kind: str, path: Path, outside: Path) -> None:
    """Put something else than a file in the place of one, which may be there."""
    path.unlink(missing_ok=True)
    match kind:
        case "link":
            path.symlink_to(outside / "secret")
        case "link-to-zero":
            path.symlink_to("/dev/zero")
        case "link-to-itself":
            path.symlink_to(path.name)
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as bound:
                here = os.getcwd()
                os.chdir(path.parent)  # the whole path may be longer than a socket's may be
                bound.bind(path.name)
                os.chdir(here)
        case "folder":
            path.mkdir()
        case "sparse" | "gigabyte":
            path.touch()
            os.truncate(path, 1 << 40 if kind == "sparse" else (1 << 30) - 1)
        case _:
            raise AssertionError(kind)
