"""Source `text`: a file, a folder of documents or the builtin corpus, read as bytes."""

import difflib
import os
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from pretrain.data.byte_source import KEEP_OPEN, ByteSource, FileBytes, MemoryBytes, files_below
from pretrain.data.windows import Indices, Part, checked_span, checked_stride, count_windows, cut
from pretrain.errors import DataError
from pretrain.registry import limited

VOCABULARY = 256
SEPARATOR = b"\0"
BOUNDARY_TOKEN = SEPARATOR[0]
_LOOKED_AT = 1 << 20  # bytes of each file of a folder
_BUILTINS = ("builtin:pydoc",)


@dataclass(frozen=True)
class TextSettings:
    """Text as bytes, one token per byte; documents come in sorted order of their names, one NUL byte between.

    path: a file, a folder (every file below it is a document, but for hidden ones), or `builtin:pydoc` (Python's help
      topics).
    span: the part [begin, end) of the token stream that this domain takes, as fractions of its length.
    """

    path: str = "builtin:pydoc"
    span: tuple[float, float] = limited((0.0, 1.0), at_least=0, at_most=1)


def build_text(
    settings: TextSettings, *, sequence_length: int, stride: int | None, seed: int, name: str
) -> "TextWindows":
    """Open the text of the domain `name`; `seed` is not used. DataError names file and counts."""
    span = checked_span(name, settings.span)
    stride = checked_stride(name, stride, sequence_length)
    documents = _open_documents(settings.path, name)
    return TextWindows(settings.path, documents, span, sequence_length, stride, _warnings(settings.path, documents))


class TextWindows:
    """Windows of `sequence_length + 1` tokens, the i-th from token i * stride of the span."""

    def __init__(
        self,
        path: str,
        documents: list[ByteSource],
        span: tuple[float, float],
        sequence_length: int,
        stride: int,
        warnings: tuple[str, ...] = (),
    ) -> None:
        """Raises DataError when the span is shorter than one window."""
        self.kind: Literal["tokens", "complex"] = "tokens"
        self.vocabulary: int | None = VOCABULARY
        self.encoding, self.warnings = "bytes", warnings
        self.files = tuple(document.file for document in documents)
        hashes = tuple(file.sha256 for file in self.files)
        data = frozenset(file.sha256 for file in self.files if file.bytes)
        self.parts = (Part(hashes, data, ("tokens",), *span),)
        self._documents = documents
        self._starts = list(accumulate((file.bytes + len(SEPARATOR) for file in self.files), initial=0))
        tokens = self._starts.pop() - len(SEPARATOR)
        self._begin, end = cut(span, tokens)
        self._length, self._stride = sequence_length + 1, stride
        count = count_windows(end - self._begin, self._length, stride)
        if count.windows == 0:
            raise DataError(
                f"{path}: found {end - self._begin} tokens from token {self._begin} to {end} (span "
                f"[{span[0]}, {span[1]}] of {tokens}), expected at least {self._length}, which is "
                "data.sequence_length + 1; shorten data.sequence_length or widen the span"
            )
        self._windows, self.remainder = count.windows, count.remainder

    def __len__(self) -> int:
        return self._windows

    def read(self, indices: Indices) -> torch.Tensor:
        """Return int64 [n, sequence_length + 1] token ids; see `Windows.read`."""
        tokens = np.zeros((len(indices), self._length), dtype=np.uint8)
        for row, index in enumerate(indices.tolist()):
            self._fill(tokens[row], self._begin + index * self._stride)
        return torch.from_numpy(tokens).to(torch.int64)

    def _fill(self, row: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], begin: int) -> None:
        number = bisect_right(self._starts, begin) - 1
        filled = 0
        while filled < len(row):
            within = begin + filled - self._starts[number]
            count = min(self.files[number].bytes - within, len(row) - filled)
            if count > 0:
                self._documents[number].read_into(within, row[filled : filled + count])
            filled += count + len(SEPARATOR)  # the row is NUL already where a separator stands
            number += 1

    def labels(self, indices: Indices) -> tuple[str, ...]:
        """Return "" for every window: text has no signal class."""
        return ("",) * len(indices)

    def identify(self, index: int) -> tuple[str, int]:
        """Return the document and the byte that the window begins at (its size: the separator)."""
        begin = self._begin + index * self._stride
        number = bisect_right(self._starts, begin) - 1
        return self.files[number].path, begin - self._starts[number]

    def check_unchanged(self) -> None:
        """See `Windows.check_unchanged`."""
        for document in self._documents:
            document.check_unchanged()


def _open_documents(path: str, name: str) -> list[ByteSource]:
    if path.startswith("builtin:"):
        return [MemoryBytes(path, _builtin(path, name))]
    if os.path.isdir(path) and not os.path.islink(path):
        return _open_folder(Path(path))
    document = FileBytes(Path(path))
    if document.file.bytes == 0:
        raise DataError(f"{path}: is empty; expected text")
    return [document]


def _open_folder(folder: Path) -> list[ByteSource]:
    paths = files_below(folder)
    if not paths:
        raise DataError(f"{folder}: holds no files, hidden ones left aside; expected text")
    documents: list[ByteSource] = [FileBytes(path, keep_open=len(paths) <= KEEP_OPEN) for path in paths]
    if not any(document.file.bytes for document in documents):
        raise DataError(f"{folder}: found {len(paths)} files without a byte in them; expected text")
    return documents


def _warnings(path: str, documents: list[ByteSource]) -> tuple[str, ...]:
    """Tell of files in a folder that begin as binary ones do: text is any bytes, so that none of them is refused."""
    if not os.path.isdir(path):
        return ()
    binary = [document.file.path for document in documents if _holds_nul(document)]
    if not binary:
        return ()
    return (
        f"{path}: NUL bytes in {len(binary)} of {len(documents)} files, the first of them {binary[0]}: they are read "
        "as text; move away what is none",
    )


def _holds_nul(document: ByteSource) -> bool:
    start = np.empty(min(document.file.bytes, _LOOKED_AT), dtype=np.uint8)
    document.read_into(0, start)
    return not start.all()


def _builtin(path: str, name: str) -> bytes:
    if path not in _BUILTINS:
        near = difflib.get_close_matches(path, _BUILTINS, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise DataError(f"data domain {name}: {path} is no builtin text, expected {', '.join(_BUILTINS)}{hint}")
    from pydoc_data.topics import topics  # half a megabyte, wanted by this builtin alone

    return SEPARATOR.join(topics[key].encode() for key in sorted(topics))
