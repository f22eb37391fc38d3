"""Opens IQ recordings by path: a raw file, a SigMF pair, a `.npy` array, or a folder of them."""

import os
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pretrain.data.byte_source import KEEP_OPEN, FileBytes, files_below
from pretrain.data.recording import (
    Reading,
    Recording,
    Segment,
    check_samples,
    checked_channel,
    whole_samples,
)
from pretrain.data.sample_format import FORMATS, contradicts, find_format, format_named
from pretrain.data.sigmf import DATA, META, open_sigmf
from pretrain.errors import DataError

# Suffixes that say "samples" without their datatype: read in a folder only when the settings give one.
_UNTYPED = (".iq", ".bin", ".dat", ".raw")
_NPY_READERS: dict[tuple[int, int], Callable[[Any], tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# A header is a Python literal: what numpy, `ast` and `tokenize` raise at one that is damaged, too deep or hostile.
_UNREADABLE = (
    ValueError,
    TypeError,
    SyntaxError,
    tokenize.TokenError,
    RecursionError,
    MemoryError,
    LookupError,
    AttributeError,
    ArithmeticError,
)


def open_recordings(path: str, reading: Reading) -> list[Recording]:
    """Open the recording at `path`, or every one below the folder `path`, sorted by relative path.

    In a folder, files that are no recordings by their suffix are left alone. Every file is hashed, and its
    samples pass `check_samples`. Raises DataError naming the file and the offset.
    """
    if not os.path.isdir(path) or os.path.islink(path):
        return [_open_one(Path(path), reading, keep_open=True)]
    paths = _recordings_below(Path(path), reading)
    return [_open_one(member, reading, keep_open=len(paths) <= KEEP_OPEN) for member in paths]


def _recordings_below(folder: Path, reading: Reading) -> list[Path]:
    found = files_below(folder)
    names = set(found)
    chosen = []
    for path in found:
        if path.suffix == DATA and path.with_suffix(META) not in names:
            raise DataError(f"{path}: the metadata beside it, {path.with_suffix(META).name}, is missing")
        typed = path.suffix in (META, ".npy") or find_format(path.suffix[1:]) is not None
        if typed or (reading.datatype is not None and path.suffix in _UNTYPED):
            chosen.append(path)
    if not chosen:
        raise DataError(
            f"{folder}: found no recording among {len(found)} files; expected SigMF pairs, .npy arrays, or "
            f"raw files with a datatype as their suffix ({', '.join(sorted(FORMATS))})"
        )
    return chosen


def _open_one(path: Path, reading: Reading, *, keep_open: bool) -> Recording:
    if path.suffix in (META, DATA):
        recording = open_sigmf(path.with_suffix(META), reading, keep_open=keep_open)
    elif path.suffix == ".npy":
        recording = _open_npy(path, reading, keep_open)
    else:
        recording = _open_raw(path, reading, keep_open)
    check_samples(recording)
    return recording


def _open_raw(path: Path, reading: Reading, keep_open: bool) -> Recording:
    data = FileBytes(path, keep_open=keep_open)
    if reading.datatype is not None:
        sample_format = format_named(reading.datatype, f"{path}: the setting `datatype`")
        if contradicts(reading.datatype, path.suffix[1:]):
            raise DataError(
                f"{path}: the suffix says {path.suffix[1:]}, but the setting `datatype` is {reading.datatype}; leave "
                "`datatype` out where the suffix is right, and rename the file where it is not"
            )
    elif path.suffix:
        sample_format = format_named(path.suffix[1:], f"{path}: the suffix")
    else:
        raise DataError(f"{path}: has no suffix that names its datatype; set `datatype`, for example to cf32_le")
    samples = whole_samples(data, sample_format.bytes, 0, data.file.bytes, sample_format.name)
    checked_channel(path, 1, reading.channel)
    return Recording(data, (data.file,), sample_format, (Segment(0, 0, samples),))


def _open_npy(path: Path, reading: Reading, keep_open: bool) -> Recording:
    """A 1-D complex array or floats [n, 2], read where they lie: no loader that knows pickles."""
    data = FileBytes(path, keep_open=keep_open)
    offset, shape, fortran, dtype = _npy_header(path)
    vector = len(shape) == 1 and dtype.kind == "c"
    pairs = len(shape) == 2 and shape[1] == 2 and dtype.kind == "f" and not fortran
    bits = dtype.itemsize * (4 if vector else 8)
    if not (vector or pairs) or bits not in (32, 64):
        raise DataError(
            f"{path}: expected complex64 or complex128 of shape [n], or float32 or float64 of shape [n, 2] "
            f"in C order, found {dtype} of shape {list(shape)}{' in Fortran order' if fortran else ''}"
        )
    sample_format = FORMATS[f"cf{bits}_{'be' if dtype.byteorder == '>' else 'le'}"]
    if reading.datatype is not None and format_named(reading.datatype, str(path)) != sample_format:
        raise DataError(f"{path}: holds {sample_format.name}, but the setting `datatype` is {reading.datatype}")
    expected, found = shape[0] * sample_format.bytes, data.file.bytes - offset
    if found != expected:
        raise DataError(f"{path}: expected {expected} bytes of samples from byte {offset} on, found {found}")
    samples = whole_samples(data, sample_format.bytes, offset, data.file.bytes, sample_format.name)
    checked_channel(path, 1, reading.channel)
    return Recording(data, (data.file,), sample_format, (Segment(offset, 0, samples),))


def _npy_header(path: Path) -> tuple[int, tuple[int, ...], bool, np.dtype[Any]]:
    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            if version not in _NPY_READERS:
                raise ValueError(f"version {version} of the format is not one for plain numbers")
            shape, fortran, dtype = _NPY_READERS[version](file)
        except _UNREADABLE as error:
            raise DataError(f"{path}: expected a .npy array: {str(error) or type(error).__name__}") from error
        return file.tell(), shape, fortran, dtype
