"""SigMF pairs: a metadata file and the samples beside it, as one recording with a segment per capture."""

import hashlib
from pathlib import Path

from pretrain.data.byte_source import FileBytes
from pretrain.data.recording import Reading, Recording, Segment, checked_channel, whole_samples
from pretrain.data.sample_format import SampleFormat, format_named
from pretrain.data.sigmf_metadata import SigmfMetadata, parse_metadata
from pretrain.data.windows import SourceFile
from pretrain.errors import DataError, IntegrityError
from pretrain.reading import read_regular

META, DATA = ".sigmf-meta", ".sigmf-data"
_METADATA_LIMIT = 256 << 20  # bytes; the annotations of a long recording make large files


def open_sigmf(path: Path, reading: Reading, *, keep_open: bool) -> Recording:
    """Open the pair whose metadata file is `path`; its core:sha512 is verified where it has one.

    Real samples are refused, with one exception: two real channels are read as I and Q (the way a sound card
    records them) when the setting `datatype` says so by naming the complex datatype of the same numbers.
    Raises DataError naming the file and the field, sample or offset.
    """
    try:
        content = read_regular(path, limit=_METADATA_LIMIT)
    except IntegrityError as error:
        raise DataError(f"{error}; a SigMF recording is a {META} file with a {DATA} file beside it") from error
    metadata = parse_metadata(content, str(path))
    data_path = path.with_name(metadata.dataset) if metadata.dataset else path.with_suffix(DATA)
    data = FileBytes(data_path, keep_open=keep_open)
    if metadata.sha512 is not None:
        _verify_sha512(data, metadata.sha512, path.name)
    sample_format, channels = _format(path, metadata, reading.datatype)
    return Recording(
        data=data,
        files=(SourceFile(str(path), len(content), hashlib.sha256(content).hexdigest()), data.file),
        format=sample_format,
        segments=_segments(path, metadata, data, sample_format, channels),
        channels=channels,
        channel=checked_channel(path, channels, reading.channel),
    )


def _verify_sha512(data: FileBytes, expected: str, named_by: str) -> None:
    digest = hashlib.sha512()
    for _, block in data.blocks(0, data.file.bytes):
        digest.update(block.data)
    if digest.hexdigest() != expected:
        raise DataError(
            f"{data.path}: expected SHA-512 {expected[:16]}... (core:sha512 of {named_by}), found "
            f"{digest.hexdigest()[:16]}...; fetch the recording again"
        )


def _format(path: Path, metadata: SigmfMetadata, asked: str | None) -> tuple[SampleFormat, int]:
    """Return the complex datatype and the number of complex channels."""
    stored, channels = metadata.datatype, metadata.num_channels
    chosen = None if asked is None else format_named(asked, f"{path}: the setting `datatype`")
    if not stored.startswith("r"):
        found = format_named(stored, f"{path}: core:datatype")
        if chosen is not None and chosen != found:
            raise DataError(f"{path}: core:datatype is {stored}, but the setting `datatype` is {asked}")
        return found, channels
    pair = format_named("c" + stored[1:], f"{path}: core:datatype {stored}, as the numbers of a complex sample")
    if channels != 2:
        raise DataError(
            f"{path}: core:datatype {stored} with {channels} channel{'s' * (channels != 1)} is a real "
            "signal, expected complex samples: mix it down to complex baseband first"
        )
    if chosen != pair:
        raise DataError(
            f"{path}: core:datatype {stored} with 2 channels may be two real signals or I and Q; set "
            f"`datatype: {pair.name}` to read channel 0 as I and channel 1 as Q"
        )
    return pair, 1


def _segments(
    path: Path, metadata: SigmfMetadata, data: FileBytes, sample_format: SampleFormat, channels: int
) -> tuple[Segment, ...]:
    """Return one segment per capture; header_bytes stand before the samples of their own capture."""
    frame = sample_format.bytes * channels
    headers = sum(capture.header_bytes for capture in metadata.captures)
    what = f"{sample_format.name} in {channels} channels" if channels > 1 else sample_format.name
    total = whole_samples(data, frame, headers, data.file.bytes - metadata.trailing_bytes, what)
    starts = [capture.sample_start for capture in metadata.captures]
    if starts[-1] >= total:
        raise DataError(f"{path}: a capture begins at sample {starts[-1]}, but {data.path} holds {total} samples")
    segments, headers = [], 0
    for capture, end in zip(metadata.captures, [*starts[1:], total], strict=True):
        headers += capture.header_bytes
        offset = headers + capture.sample_start * frame
        segments.append(Segment(offset, capture.sample_start, end - capture.sample_start))
    return tuple(segments)
