"""Source `iq`: windows of complex samples from recordings, split by time or by recording, never by window."""

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
import torch

from pretrain.data.recording import Reading, Recording
from pretrain.data.recordings import open_recordings
from pretrain.data.windows import Indices, Part, checked_span, checked_stride, count_windows, cut
from pretrain.errors import DataError
from pretrain.registry import limited


@dataclass(frozen=True)
class IqSettings:
    """IQ recordings: raw files, SigMF pairs (.sigmf-meta and .sigmf-data), .npy arrays, or a folder of them.

    path: the recording, or a folder of which every recording is read in sorted order of the names.
    datatype: SigMF's name of the samples in raw files (cu8, ci16_le, cf32_be ...); null = the file's suffix. Where the
      suffix says another datatype, or the recording itself does, it is refused.
    channel: which channel of a recording with several; null = such a recording is refused.
    split: `contiguous` = the span cuts every recording in time; `recording` = it takes whole ones, in order.
    span: the part [begin, end) that this domain takes, as fractions of each recording or of their number.
    """

    path: str
    datatype: str | None = None
    channel: int | None = limited(None, at_least=0)
    split: str = limited("contiguous", choices=("contiguous", "recording"))
    span: tuple[float, float] = limited((0.0, 1.0), at_least=0, at_most=1)


@dataclass(frozen=True)
class _Run:
    """Windows that lie in one segment: the offset of the first one, and how many there are."""

    recording: Recording
    offset: int
    windows: int


def build_iq(settings: IqSettings, *, sequence_length: int, stride: int | None, seed: int, name: str) -> "IqWindows":
    """Open the recordings of the domain `name`; `seed` is not used. DataError names file and offset."""
    span = checked_span(name, settings.span)
    stride = checked_stride(name, stride, sequence_length)
    recordings = open_recordings(settings.path, Reading(settings.datatype, settings.channel))
    if settings.split == "recording":
        begin, end = cut(span, len(recordings))
        if begin == end:
            raise DataError(
                f"{settings.path}: the span {list(span)} takes none of {len(recordings)} recordings; "
                "widen it, or set `split: contiguous`"
            )
        recordings, span = recordings[begin:end], (0.0, 1.0)
    return IqWindows(settings.path, recordings, settings.split, span, sequence_length, stride)


class IqWindows:
    """Windows of `sequence_length` samples, every `stride` samples of a segment and never across two."""

    def __init__(
        self,
        path: str,
        recordings: list[Recording],
        split: str,
        span: tuple[float, float],
        sequence_length: int,
        stride: int,
    ) -> None:
        """The `span` cuts every recording; `split` says how they were chosen.

        Raises DataError when no segment holds a window within the span.
        """
        self.kind: Literal["tokens", "complex"] = "complex"
        self.vocabulary: int | None = None
        self.files = tuple(file for recording in recordings for file in recording.files)
        # Other datatypes cut the same bytes elsewhere, so they are a part of how the files are cut.
        self.parts = (
            Part(
                files=tuple(file.sha256 for file in self.files),
                data=frozenset(recording.data.file.sha256 for recording in recordings),
                split=(split, *(recording.format.name for recording in recordings)),
                begin=span[0],
                end=span[1],
            ),
        )
        self.encoding = ", ".join(sorted({recording.format.name for recording in recordings}))
        self.warnings: tuple[str, ...] = ()
        self._data = [recording.data for recording in recordings]
        self.remainder = 0
        self._length, self._stride = sequence_length, stride
        self._runs: list[_Run] = []
        longest = 0
        for recording in recordings:
            begin, end = cut(span, recording.samples)
            for segment in recording.segments:
                first = max(begin, segment.first)
                samples = max(min(end, segment.first + segment.samples) - first, 0)
                count = count_windows(samples, sequence_length, stride)
                self.remainder += count.remainder
                longest = max(longest, samples)
                if count.windows:
                    offset = segment.offset + (first - segment.first) * recording.frame_bytes
                    self._runs.append(_Run(recording, offset, count.windows))
        if not self._runs:
            raise DataError(
                f"{path}: found at most {longest} samples in one piece (span {list(span)}), expected at "
                f"least {sequence_length}, which is data.sequence_length; shorten it or widen the span"
            )
        self._starts = list(accumulate((run.windows for run in self._runs), initial=0))
        self._windows = self._starts.pop()

    def __len__(self) -> int:
        return self._windows

    def read(self, indices: Indices) -> torch.Tensor:
        """Return complex64 [n, sequence_length] samples as recorded; see `Windows.read`."""
        places = [self._place(index) for index in indices.tolist()]
        samples = np.empty((len(places), self._length), dtype=np.complex64)
        # Windows of one layout are decoded together: most domains have one layout only.
        layouts: dict[tuple[str, int, int], list[int]] = {}
        for row, (recording, _) in enumerate(places):
            layout = (recording.format.name, recording.channels, recording.channel)
            layouts.setdefault(layout, []).append(row)
        for rows in layouts.values():
            decoder = places[rows[0]][0]
            raw = np.empty((len(rows), self._length * decoder.frame_bytes), dtype=np.uint8)
            for i, row in enumerate(rows):
                recording, offset = places[row]
                recording.data.read_into(offset, raw[i])
            samples[rows] = decoder.decode(raw)
        return torch.from_numpy(samples)

    def labels(self, indices: Indices) -> tuple[str, ...]:
        """Return "" for every window: a recording does not say which class of signal it holds."""
        return ("",) * len(indices)

    def identify(self, index: int) -> tuple[str, int]:
        """Return the data file and the byte that the window begins at."""
        recording, offset = self._place(index)
        return recording.data.file.path, offset

    def check_unchanged(self) -> None:
        """See `Windows.check_unchanged`; metadata beside the samples was read once and is not looked at again."""
        for data in self._data:
            data.check_unchanged()

    def _place(self, index: int) -> tuple[Recording, int]:
        number = bisect_right(self._starts, index) - 1
        run = self._runs[number]
        return run.recording, run.offset + (index - self._starts[number]) * self._stride * run.recording.frame_bytes
