"""What every source of data offers: windows that are counted exactly, read by index and traced to a byte."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pretrain.errors import DataError

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class SourceFile:
    """One file (or builtin) that windows depend on: its path as the config leads to it, size and SHA-256."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Part:
    """What one domain takes of its files, so that two domains can be asked whether they share data.

    files: the SHA-256 of every file, in order.
    data: the SHA-256 of the files that hold data themselves and are not empty.
    split: how `begin` and `end` cut the files; only parts with equal `files` and `split` can be compared by them.
    begin, end: the span [begin, end), as fractions or as numbers of windows.
    """

    files: tuple[str, ...]
    data: frozenset[str]
    split: tuple[str, ...]
    begin: float
    end: float

    def overlaps(self, other: "Part") -> bool:
        """Whether both may hold the same data: files in common that are cut in two ways count as shared."""
        if self.data.isdisjoint(other.data):
            return False
        if (self.files, self.split) != (other.files, other.split):
            return True
        return self.begin < other.end and other.begin < self.end


class Windows(Protocol):
    """A fixed sequence of windows of one length, in the order of the data; several threads may read it."""

    @property
    def kind(self) -> Literal["tokens", "complex"]:
        """What a window holds: token ids, or complex samples as recorded."""

    @property
    def vocabulary(self) -> int | None:
        """Number of token ids, every id below it; None for complex samples."""

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """Every file that the windows depend on."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """What each domain takes of its files, for one domain after the other."""

    @property
    def remainder(self) -> int:
        """Tokens or samples of the span that no window covers."""

    def __len__(self) -> int: ...

    def read(self, indices: Indices) -> torch.Tensor:
        """Return int64 [n, sequence_length + 1] token ids or complex64 [n, sequence_length] samples.

        Raises DataError when a file has become shorter since the start, StorageError when it cannot be read.
        """

    def labels(self, indices: Indices) -> tuple[str, ...]:
        """Return the signal class of each window, "" where the source knows none."""

    def identify(self, index: int) -> tuple[str, int]:
        """Return the path of the file that the window begins in and the byte offset of its first element."""

    def check_unchanged(self) -> None:
        """Raise DataError naming a file that was written to, replaced or removed since it was hashed.

        It costs a stat per file and reads nothing.
        """


class Source(Windows, Protocol):
    """The windows of one domain, as its source opens them."""

    @property
    def encoding(self) -> str:
        """How the files hold it, for a person to read: bytes, or the datatypes of complex samples."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is read and probably not meant, a sentence each."""


@dataclass(frozen=True)
class WindowCount:
    """How many windows fit, and how many elements none of them covers."""

    windows: int
    remainder: int


def count_windows(elements: int, length: int, stride: int) -> WindowCount:
    """Count the windows [i * stride, i * stride + length) that lie wholly within `elements`, exactly."""
    if elements < length:
        return WindowCount(0, elements)
    windows = (elements - length) // stride + 1
    # Overlapping windows cover one run without a gap; windows further apart than their length leave gaps.
    covered = (windows - 1) * min(stride, length) + length
    return WindowCount(windows, elements - covered)


def checked_stride(name: str, stride: int | None, sequence_length: int) -> int:
    """Return the stride in elements (null = `sequence_length`). DataError when either is below 1."""
    if sequence_length < 1:
        raise DataError(f"data domain {name}: expected a sequence_length of at least 1, found {sequence_length}")
    if stride is None:
        return sequence_length
    if stride < 1:
        raise DataError(f"data domain {name}: expected a stride of at least 1 or null, found {stride}")
    return stride


def checked_span(name: str, span: Sequence[float]) -> tuple[float, float]:
    """Return the span as two fractions. Raises DataError unless 0 <= begin < end <= 1."""
    if len(span) != 2 or not all(math.isfinite(edge) for edge in span) or not 0 <= span[0] < span[1] <= 1:
        raise DataError(
            f"data domain {name}: expected a span [begin, end] with 0 <= begin < end <= 1, found {list(span)}"
        )
    return float(span[0]), float(span[1])


def cut(span: tuple[float, float], total: int) -> tuple[int, int]:
    """Return the elements [begin, end) that a span takes of `total`.

    Spans that meet at a fraction meet at an element too: [0, 0.9] and [0.9, 1] share none and leave none out.
    """
    return round(span[0] * total), round(span[1] * total)


class Concatenation:
    """Several domains one after the other, as one sequence of windows of the same kind."""

    def __init__(self, domains: Sequence[Windows]) -> None:
        """Raises DataError when there is no domain, or when they hold different kinds of windows."""
        if not domains:
            raise DataError("data.train: expected at least one domain, found none")
        self._domains = tuple(domains)
        first = self._domains[0]
        for other in self._domains[1:]:
            if (other.kind, other.vocabulary) != (first.kind, first.vocabulary):
                raise DataError(f"data.train: expected domains of one kind, found {_shown(first)} and {_shown(other)}")
        self.kind: Literal["tokens", "complex"] = first.kind
        self.vocabulary = first.vocabulary
        self.files = tuple(file for domain in self._domains for file in domain.files)
        self.parts = tuple(part for domain in self._domains for part in domain.parts)
        self.remainder = sum(domain.remainder for domain in self._domains)
        self._starts = np.cumsum([0, *(len(domain) for domain in self._domains)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, indices: Indices) -> torch.Tensor:
        """See `Windows.read`; the rows come in the order of `indices`, whichever domains they belong to."""
        owners = self._owners(indices)
        if len(indices) and (owners == owners[0]).all():
            domain = int(owners[0])
            return self._domains[domain].read(indices - self._starts[domain])
        rows, places = [], []
        for number in np.unique(owners):
            (of_domain,) = np.nonzero(owners == number)
            rows.append(self._domains[number].read(indices[of_domain] - self._starts[number]))
            places.append(of_domain)
        if not rows:
            return self._domains[0].read(indices)
        return torch.cat(rows)[torch.from_numpy(np.argsort(np.concatenate(places)))]

    def labels(self, indices: Indices) -> tuple[str, ...]:
        """See `Windows.labels`."""
        owners = self._owners(indices)
        return tuple(
            self._domains[number].labels(indices[i : i + 1] - self._starts[number])[0]
            for i, number in enumerate(owners)
        )

    def identify(self, index: int) -> tuple[str, int]:
        """See `Windows.identify`."""
        number = int(self._owners(np.asarray([index]))[0])
        return self._domains[number].identify(index - int(self._starts[number]))

    def check_unchanged(self) -> None:
        """See `Windows.check_unchanged`."""
        for domain in self._domains:
            domain.check_unchanged()

    def _owners(self, indices: Indices) -> Indices:
        return np.searchsorted(self._starts, indices, side="right") - 1


def _shown(windows: Windows) -> str:
    if windows.kind == "complex":
        return "complex samples"
    return f"tokens of a vocabulary of {windows.vocabulary}"
