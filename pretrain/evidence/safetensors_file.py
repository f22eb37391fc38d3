"""One shard file in the safetensors format: its header written, strictly parsed, and its bytes read back."""

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pretrain import progress, reading, syscalls
from pretrain.errors import IntegrityError, StorageError
from pretrain.evidence import canonical

HEADER_LIMIT = 16 << 20  # bytes of JSON: about 100,000 tensors, and a hostile length costs no more memory
DIMENSIONS_LIMIT = 64
ITEM_BYTES: Mapping[str, int] = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
_METADATA = "__metadata__"
_CHUNKS = "chunks"  # the one metadata key: where the boxes of cut tensors lie
_NAME = re.compile(r"[!-~]{1,512}")


@dataclass(frozen=True)
class Chunk:
    """A box of one tensor, as one shard file holds it: the whole tensor, or a rank's part.

    dtype: the format's word, `F32`. shape: of the box. offsets: of the box in the tensor of shape `whole`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    whole: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)

    @property
    def is_whole(self) -> bool:
        return self.shape == self.whole


def check_name(name: str, where: str) -> str:
    """Return `name` if a header and a line of `content_sha256` can hold it; IntegrityError otherwise."""
    if name == _METADATA or not _NAME.fullmatch(name):
        raise IntegrityError(
            f"{where}: {name[:80]!r} is no tensor name; expected 1 to 512 printable characters without spaces"
        )
    return name


def encode_header(chunks: Iterable[Chunk]) -> tuple[bytes, list[Chunk]]:
    """Return the head of a file, up to its first data byte, and the chunks in the order their data follow it.

    Wide items come first, then names in order, so that every chunk is aligned and equal chunks give equal
    bytes. A name twice is a ValueError: one file holds one box of a tensor.
    """
    ordered = sorted(chunks, key=lambda chunk: (-ITEM_BYTES[chunk.dtype], chunk.name))
    header: dict[str, Any] = {}
    start = 0
    for chunk in ordered:
        if check_name(chunk.name, "a tensor to save") in header:
            raise ValueError(f"{chunk.name}: two boxes of one tensor for the same file")
        end = start + chunk.bytes
        header[chunk.name] = {
            "dtype": chunk.dtype,
            "shape": list(chunk.shape),
            "data_offsets": [start, end],
        }
        start = end
    cut = {c.name: {"offsets": list(c.offsets), "shape": list(c.whole)} for c in ordered if not c.is_whole}
    header[_METADATA] = {_CHUNKS: canonical.encode(cut).decode().rstrip("\n")}
    text = canonical.encode(header).rstrip(b"\n")
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_LIMIT:
        raise ValueError(f"{len(ordered)} tensors make a header of {len(text)} bytes; the limit is {HEADER_LIMIT}")
    return len(text).to_bytes(8, "little") + text, ordered


class ShardFile:
    """An open shard file: the chunks it holds, and their bytes read from the one descriptor.

    chunks: by tensor name, with the position of the first byte in the file.
    """

    def __init__(self, path: Path, fd: int, verified: reading.Verified | None = None) -> None:
        """Take over `fd`, and close it here on an error. Raises IntegrityError on a bad header."""
        self.path, self._fd, self._verified = path, fd, verified
        try:
            self.chunks: dict[str, tuple[Chunk, int]] = self._read_header(os.fstat(fd).st_size)
        except BaseException:  # The descriptor is ours by now, and nobody else could close it.
            self.close()
            raise

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open `path`, which this process has just written: nothing but the header is checked."""
        try:
            return cls(path, syscalls.system.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
        except OSError as error:
            raise StorageError(f"{path}: reading back failed: {error.strerror}") from error

    @classmethod
    def open_verified(cls, path: Path, bytes_: int, sha256: str) -> Self:
        """Open `path` after its size and hash were found as recorded; IntegrityError otherwise."""
        verified = reading.open_verified(path, bytes_, sha256)
        return cls(path, verified.fd, verified)

    def check_unchanged(self) -> None:
        """Raise IntegrityError where what was read may not be what was verified: the file was written to."""
        if self._verified is not None:
            self._verified.check()

    def _read_header(self, size: int) -> dict[str, tuple[Chunk, int]]:
        if size < 8:
            raise IntegrityError(f"{self.path}: expected a safetensors header, found {size} bytes")
        length = int.from_bytes(self.read(0, 8), "little")
        if not 2 <= length <= min(HEADER_LIMIT, size - 8):
            raise IntegrityError(
                f"{self.path}: expected a header of 2 to {min(HEADER_LIMIT, size - 8)} bytes, found {length}"
            )
        return parse_header(self.read(8, length), 8 + length, size, f"{self.path}: header")

    def read(self, start: int, count: int) -> bytes:
        """Return the `count` bytes at `start`."""
        buffer = bytearray(count)
        self.read_into(start, memoryview(buffer))
        return bytes(buffer)

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes at `start`; IntegrityError where the file ends before."""
        while buffer:
            try:
                count = os.preadv(self._fd, [buffer], start)
            except OSError as error:
                raise StorageError(f"{self.path}: reading failed: {error.strerror}; check the disk") from error
            if count == 0:
                raise IntegrityError(f"{self.path}: cut short at byte {start} while it was read")
            progress.moved()
            buffer = buffer[count:]
            start += count

    def close(self) -> None:
        """Give the descriptor back; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def parse_header(text: bytes, data_start: int, size: int, where: str) -> dict[str, tuple[Chunk, int]]:
    """Return the chunks by name, each with the position of its first byte in a file of `size` bytes.

    The data must fill the file from `data_start` to its end without a gap or an overlap, and each chunk have
    the bytes of its dtype and shape. IntegrityError says which tensor does not.
    """
    header = canonical.parse(text.rstrip(b" ") + b"\n", where)
    if not isinstance(header, dict):
        raise IntegrityError(f"{where}: expected an object, found {type(header).__name__}")
    metadata = canonical.fields(header.pop(_METADATA, None), {_CHUNKS}, f"{where}: {_METADATA}")
    cut = _cut_boxes(metadata[_CHUNKS], f"{where}: {_METADATA}: {_CHUNKS}")
    found: list[tuple[int, int, Chunk]] = []
    for name, entry in header.items():
        at = f"{where}: {check_name(name, where)}"
        values = canonical.fields(entry, {"dtype", "shape", "data_offsets"}, at)
        dtype = canonical.text(values["dtype"], f"{at}: dtype", ITEM_BYTES)
        shape = _integers(values["shape"], f"{at}: shape")
        offsets, whole = cut.pop(name, ((0,) * len(shape), shape))
        if not len(offsets) == len(whole) == len(shape) or any(
            offset + length > total for offset, length, total in zip(offsets, shape, whole, strict=True)
        ):
            raise IntegrityError(f"{at}: the box {shape} at {offsets} does not lie in the shape {whole}")
        chunk = Chunk(name, dtype, shape, offsets, whole)
        bounds = _integers(values["data_offsets"], f"{at}: data_offsets")
        if len(bounds) != 2 or bounds[1] - bounds[0] != chunk.bytes:
            raise IntegrityError(f"{at}: expected {chunk.bytes} bytes of {dtype} {shape}, found the span {bounds}")
        found.append((*bounds, chunk))
    if cut:
        raise IntegrityError(f"{where}: {next(iter(cut))[:80]!r} has a place, and no data")
    position = 0
    for start, end, chunk in sorted(found, key=lambda entry: entry[:2]):
        if start != position:
            fault = "overlaps the one before" if start < position else "leaves a gap before it"
            raise IntegrityError(f"{where}: {chunk.name}: expected data from {position}, found {start}: it {fault}")
        position = end
    if data_start + position != size:
        raise IntegrityError(f"{where}: expected a file of {data_start + position} bytes, found {size}")
    return {chunk.name: (chunk, data_start + start) for start, _, chunk in found}


def _cut_boxes(text: Any, where: str) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """The offsets and the whole shape of each tensor that is not whole in this file."""
    boxes = canonical.parse(canonical.text(text, where).encode() + b"\n", where)
    if not isinstance(boxes, dict):
        raise IntegrityError(f"{where}: expected an object, found {type(boxes).__name__}")
    places = {name: canonical.fields(box, {"offsets", "shape"}, where) for name, box in boxes.items()}
    return {name: (_integers(p["offsets"], where), _integers(p["shape"], where)) for name, p in places.items()}


def _integers(value: Any, where: str) -> tuple[int, ...]:
    if len(canonical.items(value, where)) > DIMENSIONS_LIMIT:
        raise IntegrityError(f"{where}: expected at most {DIMENSIONS_LIMIT} numbers, found {len(value)}")
    return tuple(canonical.integer(number, where) for number in value)
