"""The head of a shard file: what is written reads back, and everything else is refused, quickly and small."""

import json
import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from pretrain.errors import IntegrityError
from pretrain.evidence.safetensors_file import HEADER_LIMIT, Chunk, ShardFile, encode_header

GOOD: dict[str, Any] = {
    "__metadata__": {"chunks": "{}"},
    "a": {"data_offsets": [0, 8], "dtype": "F32", "shape": [2]},
    "b": {"data_offsets": [8, 11], "dtype": "U8", "shape": [3]},
}


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def write(path: Path, header: Any, data: int = 11) -> Path:
    text = (header if isinstance(header, str) else canonical(header)).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))
    return path


def changed(**entries: Any) -> dict[str, Any]:
    return GOOD | {name: {**GOOD.get(name, {}), **entry} for name, entry in entries.items()}


def place(offsets: Any, shape: Any) -> dict[str, Any]:
    return GOOD | {"__metadata__": {"chunks": canonical({"a": {"offsets": offsets, "shape": shape}})}}


def test_what_is_encoded_reads_back(tmp_path: Path) -> None:
    chunks = [
        Chunk("rng", "U8", (3,), (0,), (3,)),
        Chunk("w", "BF16", (2, 4), (2, 0), (6, 4)),
        Chunk("number", "F64", (), (), ()),
        Chunk("empty", "I16", (0, 4), (0, 0), (0, 4)),
        Chunk("v", "F32", (5,), (0,), (5,)),
    ]
    header, ordered = encode_header(chunks)
    assert [chunk.name for chunk in ordered] == ["number", "v", "empty", "w", "rng"]
    assert header == encode_header(reversed(chunks))[0]
    assert len(header) % 8 == 0
    path = tmp_path / "f"
    path.write_bytes(header + bytes(sum(chunk.bytes for chunk in chunks)))
    with ShardFile.open(path) as file:
        assert {name: chunk for name, (chunk, _) in file.chunks.items()} == {c.name: c for c in chunks}
        starts = [file.chunks[chunk.name][1] for chunk in ordered]
    assert starts == [len(header) + offset for offset in (0, 8, 28, 28, 44)]
    metadata = json.loads(header[8:])["__metadata__"]
    assert metadata == {"chunks": '{"w":{"offsets":[2,0],"shape":[6,4]}}'}


def test_one_file_holds_one_box_of_a_tensor() -> None:
    with pytest.raises(ValueError, match="two boxes"):
        encode_header([Chunk("w", "F32", (1,), (0,), (2,)), Chunk("w", "F32", (1,), (1,), (2,))])


def test_the_good_header_is_good(tmp_path: Path) -> None:
    with ShardFile.open(write(tmp_path / "f", GOOD)) as file:
        assert sorted(file.chunks) == ["a", "b"]
    ShardFile.open(write(tmp_path / "f", canonical(GOOD) + " ")).close()
    ShardFile.open(write(tmp_path / "f", {"__metadata__": {"chunks": "{}"}}, 0)).close()


BAD: dict[str, Any] = {
    "no object": "[]",
    "no JSON": "{]",
    "not UTF-8": "\udcff",
    "not canonical": json.dumps(GOOD),
    "duplicate name": canonical(GOOD)[:-1] + ',"b":{"data_offsets":[8,11],"dtype":"U8","shape":[3]}}',
    "deep": "[" * 5000 + "]" * 5000,
    "nan": '{"__metadata__":NaN}',
    "no metadata": {name: entry for name, entry in GOOD.items() if name != "__metadata__"},
    "more metadata": GOOD | {"__metadata__": {"chunks": "{}", "format": "pt"}},
    "metadata is no text": GOOD | {"__metadata__": {"chunks": {}}},
    "metadata is no object": GOOD | {"__metadata__": {"chunks": "[]"}},
    "entry is no object": GOOD | {"a": 5},
    "more in an entry": changed(a={"strides": [1]}),
    "less in an entry": GOOD | {"a": {"data_offsets": [0, 8], "dtype": "F32"}},
    "unknown dtype": changed(a={"dtype": "F8_E4M3"}),
    "dtype is no text": changed(a={"dtype": 4}),
    "dtype of another size": changed(a={"dtype": "F64"}),
    "dtype of another size below": changed(a={"dtype": "F16"}),
    "shape of another size": changed(a={"shape": [3]}),
    "shape is no list": changed(a={"shape": 2}),
    "shape of floats": changed(a={"shape": [2.0]}),
    "shape of bools": changed(a={"shape": [2, True]}),
    "negative shape": changed(a={"shape": [-2, -1]}),
    "shape that overflows": changed(a={"shape": [2**62, 4]}),
    "huge shape": changed(a={"shape": [2**62] * 64}),
    "too many dimensions": changed(a={"shape": [1] * 100 + [2]}),
    "beyond 64 bits": changed(a={"shape": [2**64]}),
    "negative offset": changed(a={"data_offsets": [-8, 0]}),
    "backwards": changed(a={"data_offsets": [8, 0]}),
    "three offsets": changed(a={"data_offsets": [0, 8, 16]}),
    "overlapping": changed(b={"data_offsets": [7, 10]}),
    "gap": changed(b={"data_offsets": [9, 12]}),
    "gap at the start": changed(a={"data_offsets": [3, 11]}, b={"data_offsets": [11, 14]}),
    "the same bytes": changed(b={"data_offsets": [0, 8], "dtype": "I64", "shape": [1]}),
    "beyond the file": changed(b={"data_offsets": [8, 12], "shape": [4]}),
    "short of the file": changed(b={"data_offsets": [8, 10], "shape": [2]}),
    "name with a space": {**GOOD, "a b": {"data_offsets": [11, 11], "dtype": "U8", "shape": [0]}},
    "empty name": {**GOOD, "": {"data_offsets": [11, 11], "dtype": "U8", "shape": [0]}},
    "placed outside": place([3], [4]),
    "placed in other dimensions": place([0, 0], [4, 4]),
    "offsets of other dimensions": place([0, 0], [4]),
    "placed below zero": place([-1], [4]),
    "placed by floats": place([0.0], [4]),
    "placed without offsets": GOOD | {"__metadata__": {"chunks": '{"a":{"shape":[4]}}'}},
    "placed and not there": GOOD | {"__metadata__": {"chunks": '{"c":{"offsets":[0],"shape":[4]}}'}},
}


@pytest.mark.parametrize("kind", BAD)
def test_a_malformed_header_is_refused(tmp_path: Path, kind: str) -> None:
    header = BAD[kind]
    if kind == "not UTF-8":
        text = canonical(GOOD).encode().replace(b'"a"', b'"\xff"')
        (tmp_path / "f").write_bytes(len(text).to_bytes(8, "little") + text + bytes(11))
    else:
        write(tmp_path / "f", header)
    before = os.listdir("/proc/self/fd")
    started = time.perf_counter()
    with pytest.raises(IntegrityError, match=str(tmp_path / "f")):
        ShardFile.open(tmp_path / "f")
    assert time.perf_counter() - started < 0.5
    assert os.listdir("/proc/self/fd") == before


def test_no_flipped_bit_ends_in_another_error(tmp_path: Path) -> None:
    """The parser stands alone here, without the hash of the file before it."""
    sound = write(tmp_path / "f", place([2], [4])).read_bytes()
    opened = 0
    for position in range(len(sound) - 11):
        for bit in range(8):
            torn = bytearray(sound)
            torn[position] ^= 1 << bit
            (tmp_path / "f").write_bytes(torn)
            try:
                ShardFile.open(tmp_path / "f").close()
            except IntegrityError:
                continue
            opened += 1
    assert opened < position  # a letter of a name, a dtype of the same size, a place that still fits


@pytest.mark.parametrize("length", [0, 1, 1 << 20, HEADER_LIMIT + 1, 1 << 40, 2**63, 2**64 - 1])
def test_an_impossible_length_is_refused_without_its_memory(tmp_path: Path, length: int) -> None:
    path = tmp_path / "f"
    path.write_bytes(length.to_bytes(8, "little") + b"{}")
    if length > HEADER_LIMIT:
        os.truncate(path, 1 << 36)  # sparse: the header could be there
    tracemalloc.start()
    try:
        with pytest.raises(IntegrityError, match="expected a header"):
            ShardFile.open(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", range(8))
def test_a_file_shorter_than_a_length_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "f").write_bytes(bytes(size))
    with pytest.raises(IntegrityError, match=f"found {size} bytes"):
        ShardFile.open(tmp_path / "f")
