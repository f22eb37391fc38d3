"""The real command line, called in this process: what it printed where, and the code it left with."""

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretrain import cli


@dataclass(frozen=True)
class Answer:
    """What one command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object that stdout holds, which is one line and nothing else."""
        assert self.out.endswith("\n"), self
        assert self.out.count("\n") == 1, self
        value = json.loads(self.out)
        assert isinstance(value, dict), self
        return value


def pretrain(*words: object) -> Answer:
    """Run `pretrain WORDS` and return what it came to; what nobody expected is raised here as there."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.application([str(word) for word in words], prog_name="pretrain")
        except SystemExit as ended:
            return Answer(int(ended.code or 0), out.getvalue(), err.getvalue())
    raise AssertionError("a command always leaves by an exit code")


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Time of the last change and bytes of every file below a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def flip(path: Path, at: int = -9) -> None:
    """Change one bit of a file, by default in its ninth byte from the end."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
