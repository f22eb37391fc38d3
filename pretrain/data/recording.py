"""One IQ recording: runs of complex samples in one file, and the checks that every kind of it passes."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pretrain.data.byte_source import FileBytes
from pretrain.data.sample_format import SampleFormat
from pretrain.data.windows import SourceFile
from pretrain.errors import DataError


@dataclass(frozen=True)
class Reading:
    """What the settings say about every recording; None = what the recording itself says."""

    datatype: str | None
    channel: int | None


@dataclass(frozen=True)
class Segment:
    """A run of samples without a gap: the first at byte `offset` of the file, number `first` of all."""

    offset: int
    first: int
    samples: int


@dataclass(frozen=True)
class Recording:
    """Where the samples lie and how they are stored; the file interleaves `channels` of them, one is read."""

    data: FileBytes
    files: tuple[SourceFile, ...]
    format: SampleFormat
    segments: tuple[Segment, ...]
    channels: int = 1
    channel: int = 0

    @property
    def samples(self) -> int:
        """Number of complex samples of one channel."""
        return sum(segment.samples for segment in self.segments)

    @property
    def frame_bytes(self) -> int:
        """Bytes of one sample of every channel."""
        return self.format.bytes * self.channels

    def decode(self, raw: NDArray[np.uint8]) -> NDArray[np.complex64]:
        """Return the recording's channel in `raw`, uint8 [..., n * frame_bytes], as complex64 [..., n]."""
        samples = self.format.decode(raw)
        if self.channels == 1:
            return samples
        return np.ascontiguousarray(samples[..., self.channel :: self.channels])


def whole_samples(data: FileBytes, frame_bytes: int, begin: int, end: int, what: str) -> int:
    """Return the number of samples in the bytes [begin, end), which may leave out headers and trailers.

    Raises DataError when there is none, or a part of one at the end.
    """
    if data.file.bytes == 0:
        raise DataError(f"{data.path}: is empty; expected complex samples")
    if end <= begin:
        raise DataError(f"{data.path}: {data.file.bytes} bytes are all header and trailer; expected samples")
    samples, rest = divmod(end - begin, frame_bytes)
    if rest:
        raise DataError(
            f"{data.path}: ends in a part of a sample: {rest} bytes from byte {end - rest} on, after "
            f"{samples} samples of {frame_bytes} bytes ({what}); the datatype is wrong, or the file was cut"
        )
    return samples


def checked_channel(path: Path, channels: int, channel: int | None) -> int:
    """Return the channel to read. Raises DataError when there are several and none was chosen."""
    if channel is None:
        if channels == 1:
            return 0
        raise DataError(f"{path}: holds {channels} channels; set `channel` to one of 0 to {channels - 1}")
    if not 0 <= channel < channels:
        raise DataError(f"{path}: expected `channel` from 0 to {channels - 1}, found {channel}")
    return channel


def check_samples(recording: Recording) -> None:
    """Raises DataError at the first sample that is not finite, and for a recording of nothing but zeros.

    Every sample that is stored as a float is looked at, integers up to the first block that is not silent.
    """
    silent = True
    for segment in recording.segments:
        end = segment.offset + segment.samples * recording.frame_bytes
        for offset, block in recording.data.blocks(segment.offset, end, recording.frame_bytes):
            samples = recording.decode(block)
            silent = silent and not samples.any()
            if not recording.format.floating:
                if not silent:
                    return
                continue
            finite = np.isfinite(samples)
            if not finite.all():
                raise _not_finite(recording, segment, offset, samples, int(np.argmin(finite)))
    if silent:
        where = f" of channel {recording.channel}" if recording.channels > 1 else ""
        raise DataError(
            f"{recording.data.path}: all {recording.samples} samples{where} are zero; expected a recording with "
            "power in it: move it away, or record again"
        )


def _not_finite(
    recording: Recording, segment: Segment, offset: int, samples: NDArray[np.complex64], within: int
) -> DataError:
    at = offset + within * recording.frame_bytes
    number = segment.first + (at - segment.offset) // recording.frame_bytes
    return DataError(
        f"{recording.data.path}: sample {number} at byte {at} has I {samples[within].real} and "
        f"Q {samples[within].imag}; expected finite 32-bit values: cut the recording there, or mend it"
    )
