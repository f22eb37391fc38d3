"""What a command prints: all of it or the exit code that says so, whatever the streams are."""

import contextlib
import io
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

from pretrain.errors import StorageError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def give(text: str, code: int = 0, *, is_all: bool = True) -> int:
    """Print an answer and return the exit code of the work, or 6 where the answer was all of it and is lost."""
    fault = written(sys.stdout, text)
    if fault is None:
        return code
    tell(f"stdout: the answer cannot be written: {fault}")
    return StorageError.exit_code if is_all and code == 0 else code


def tell(text: str) -> None:
    """Say something on stderr, if there is one."""
    written(sys.stderr, f"pretrain: {text}\n")


def written(stream: TextIO | None, text: str) -> str | None:
    """Write all of `text` now; returns why that cannot be, and then the stream is closed, so that no exit retries."""
    if stream is None:
        return "it is closed"
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError, ValueError):
            stream.close()
        return (error.strerror if isinstance(error, OSError) else None) or str(error)
    return None


def json_text(answer: Mapping[str, Any]) -> str:
    """One JSON object in the spelling of every record, or in ASCII where stdout cannot hold that."""
    from pretrain.evidence import canonical

    text = canonical.encode(_unicode(answer)).decode()
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        import json

        return "".join(letter if letter.isascii() else json.dumps(letter)[1:-1] for letter in text)
    return text


def _unicode(value: Any) -> Any:
    """The same value, its texts with the bytes escaped that are no UTF-8, as a path may have them."""
    from pretrain.evidence import canonical

    if isinstance(value, str):
        return canonical.unicode(value)
    if isinstance(value, Mapping):
        return {_unicode(key): _unicode(item) for key, item in value.items()}
    return [_unicode(item) for item in value] if isinstance(value, list | tuple) else value


class _Forgiving(io.FileIO):
    """A descriptor that takes whatever is written: what the reader, the disk or the terminal refuses is lost."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data) or memoryview(data).nbytes
        except OSError:
            return memoryview(data).nbytes


def prepare_streams() -> None:
    """See that no output raises for what it holds, and none that goes to stderr for any reason."""
    with contextlib.suppress(OSError):
        # A file that is opened later must not get the number of a stream that was closed, and a library's words.
        while (descriptor := os.open(os.devnull, os.O_RDONLY)) <= 2:
            pass
        os.close(descriptor)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        raw = io.BufferedWriter(_Forgiving(sys.stderr.fileno(), "w", closefd=False))
        sys.stderr = io.TextIOWrapper(raw, sys.stderr.encoding, "backslashreplace", line_buffering=True)
