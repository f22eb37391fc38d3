"""The tensors that a set of shard files holds together, whatever layout cut them, and their digests."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from pretrain.errors import IntegrityError
from pretrain.evidence.safetensors_file import ITEM_BYTES, Chunk, ShardFile

_BLOCK = 1 << 20


@dataclass(frozen=True)
class StoredChunk:
    """A chunk and where its bytes are: from `start` on in `file`."""

    file: ShardFile
    chunk: Chunk
    start: int


@dataclass(frozen=True)
class StoredTensor:
    """One tensor and the chunks that fill it, each element in exactly one of them."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[StoredChunk, ...]

    @property
    def bytes(self) -> int:
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


def gather(shards: Iterable[ShardFile]) -> dict[str, StoredTensor]:
    """Return the tensors of all `shards` by name, in the order of names.

    IntegrityError where two files disagree about a tensor, or their chunks overlap or leave a part of it out.
    """
    found: dict[str, list[StoredChunk]] = {}
    for shard in shards:
        for name, (chunk, start) in shard.chunks.items():
            found.setdefault(name, []).append(StoredChunk(shard, chunk, start))
    return {name: _assembled(name, found[name]) for name in sorted(found)}


def _assembled(name: str, stored: list[StoredChunk]) -> StoredTensor:
    first = stored[0].chunk
    for other in stored[1:]:
        if (other.chunk.dtype, other.chunk.whole) != (first.dtype, first.whole):
            raise IntegrityError(
                f"{other.file.path}: {name}: expected a part of {first.dtype} {first.whole} as in "
                f"{stored[0].file.path}, found {other.chunk.dtype} {other.chunk.whole}"
            )
    # A rank whose part of an uneven cut is empty stores an empty chunk: it fills nothing.
    stored = [one for one in stored if one.chunk.bytes] or stored[:1]
    volume = sum(math.prod(one.chunk.shape) for one in stored)
    if volume != math.prod(first.whole) or _overlap(stored):
        raise IntegrityError(
            f"{stored[0].file.path}: {name}: expected chunks that fill {first.whole}, "
            f"found {len(stored)} with {volume} elements"
        )
    return StoredTensor(name, first.dtype, first.whole, tuple(stored))


def _overlap(stored: list[StoredChunk]) -> bool:
    """Whether any two boxes share an element, by a sweep along the dimension that is cut most."""
    if len(stored) == 1:
        return False
    boxes = [list(zip(one.chunk.offsets, one.chunk.shape, strict=True)) for one in stored]
    sweep = max(range(len(boxes[0])), key=lambda d: len({box[d][0] for box in boxes}), default=None)
    if sweep is None:  # several chunks of one number
        return True
    open_boxes: list[list[tuple[int, int]]] = []
    for box in sorted(boxes, key=lambda box: box[sweep][0]):
        open_boxes = [other for other in open_boxes if sum(other[sweep]) > box[sweep][0]]
        for other in open_boxes:
            if all(a < c + d and c < a + b for (a, b), (c, d) in zip(box, other, strict=True)):
                return True
        open_boxes.append(box)
    return False


def tensor_sha256(tensor: StoredTensor) -> str:
    """Return the SHA-256 of the whole tensor's bytes, little-endian, in C order; read block by block."""
    digest = hashlib.sha256()
    for block in _blocks(tensor):
        digest.update(block)
    return digest.hexdigest()


def _blocks(tensor: StoredTensor) -> Iterator[memoryview]:
    if len(tensor.chunks) > 1:
        yield from _assembled_rows(tensor)
        return
    stored = tensor.chunks[0]
    buffer = memoryview(bytearray(min(_BLOCK, tensor.bytes)))
    for done in range(0, tensor.bytes, _BLOCK):
        block = buffer[: min(_BLOCK, tensor.bytes - done)]
        stored.file.read_into(stored.start + done, block)
        yield block


def _assembled_rows(tensor: StoredTensor) -> Iterator[memoryview]:
    """Whole rows of the first dimension, put together from the chunks that hold parts of them."""
    length, item = tensor.shape[0], ITEM_BYTES[tensor.dtype]
    rows = max(1, _BLOCK // (tensor.bytes // length))
    for first in range(0, length, rows):
        last = min(first + rows, length)
        block = np.empty((last - first, *tensor.shape[1:], item), np.uint8)
        for stored in tensor.chunks:
            offset, count = stored.chunk.offsets[0], stored.chunk.shape[0]
            begin, end = max(first, offset), min(last, offset + count)
            if begin < end:
                part = np.empty((end - begin, *stored.chunk.shape[1:], item), np.uint8)
                stored.file.read_into(stored.start + (begin - offset) * (part.nbytes // len(part)), part.data.cast("B"))
                inner = (slice(o, o + n) for o, n in zip(stored.chunk.offsets[1:], stored.chunk.shape[1:], strict=True))
                block[(slice(begin - first, end - first), *inner)] = part
        yield block.data.cast("B")


def content_sha256(rows: Mapping[str, tuple[str, tuple[int, ...], str]]) -> str:
    """Return the digest of all tensors, given (dtype, shape, sha256) by name: independent of any layout.

    SHA-256 over the sorted lines `name dtype shape sha256`, the shape as `[2,3]`, each with a newline.
    """
    lines = [
        f"{name} {dtype} [{','.join(map(str, shape))}] {sha256}\n" for name, (dtype, shape, sha256) in rows.items()
    ]
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
