"""Canonical JSON: one text for one value, and a reader that takes nothing else."""

import hashlib
import json
import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pretrain.errors import IntegrityError
from pretrain.evidence import canonical


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None, -3]}, '{"a":[true,null,-3],"b":1}'),
        ({"x": 0.1, "y": 1e-05, "z": 1.0, "w": -0.0}, '{"w":-0.0,"x":0.1,"y":1e-05,"z":1.0}'),
        ([math.nan, math.inf, -math.inf, np.float64("nan")], '["nan","inf","-inf","nan"]'),
        (np.float64(0.1), "0.1"),
        ((1, (2,)), "[1,[2]]"),
        ('é€\u2028\n"\\', '"é€\u2028\\n\\"\\\\"'),
        ({"é": 1, "z": 2, "Z": 3}, '{"Z":3,"z":2,"é":1}'),
        (2**63 - 1, "9223372036854775807"),
        ({}, "{}"),
    ],
)
def test_the_text_of_a_value(value: Any, text: str) -> None:
    assert canonical.encode(value) == (text + "\n").encode()
    canonical.parse(canonical.encode(value), "x")


@pytest.mark.parametrize("value", [b"", {1: 2}, {None: 1}, {"a": object()}, np.float32(1), np.int64(1), {1, 2}, 1j])
def test_a_type_that_has_no_text(value: Any) -> None:
    with pytest.raises(TypeError):
        canonical.encode(value)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, "\ud800"])
def test_a_value_that_has_no_text(value: Any) -> None:
    with pytest.raises(ValueError):
        canonical.encode({"a": value})


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_depth_is_limited_both_ways() -> None:
    assert canonical.parse(canonical.encode(nested(32)), "x") == nested(32)
    with pytest.raises(ValueError, match="deep"):
        canonical.encode(nested(33))


@pytest.mark.parametrize("seed", range(5))
def test_random_values_come_back(seed: int) -> None:
    random = np.random.default_rng(seed)

    def value(depth: int) -> Any:
        kind = random.integers(0, 7 if depth else 5)
        if kind < 5:
            bits = int(random.integers(-(2**62), 2**62)) >> int(random.integers(0, 62))
            float_bits = float(np.frombuffer(random.bytes(8), np.float64)[0])
            text = "".join(map(chr, random.integers(0, 0xD7FF, 5)))
            return [None, bool(bits % 2), bits, float_bits if math.isfinite(float_bits) else 0.5, text][kind]
        size = int(random.integers(0, 5))
        if kind == 5:
            return [value(depth - 1) for _ in range(size)]
        return {f"{chr(int(random.integers(32, 600)))}{n}": value(depth - 1) for n in range(size)}

    for _ in range(200):
        original = value(4)
        data = canonical.encode(original)
        assert data == canonical.encode(json.loads(data))
        found = canonical.parse(data, "x")
        assert found == original
        assert canonical.encode(found) == data


HOSTILE: list[tuple[bytes, str]] = [
    (b"", "expected canonical JSON"),
    (b"{}", "another spelling"),
    (b"{}\n\n", "another spelling"),
    (b"{}\r\n", "another spelling"),
    (b" {}\n", "another spelling"),
    (b"\xef\xbb\xbf{}\n", "expected canonical JSON"),
    (b'{"a": 1}\n', "another spelling"),
    (b'{"b":1,"a":2}\n', "another spelling"),
    (b'{"a":1,"a":1}\n', "duplicate key 'a'"),
    (b'{"a":{"b":1,"b":2}}\n', "duplicate key 'b'"),
    (b'{"\\u0061":1,"a":2}\n', "duplicate key 'a'"),
    (b'["\\u0061"]\n', "another spelling"),
    (b"NaN\n", "NaN is not JSON"),
    (b"[Infinity]\n", "Infinity is not JSON"),
    (b"[-Infinity]\n", "-Infinity is not JSON"),
    (b"[1e400]\n", "another spelling"),
    (b"[1.00]\n", "another spelling"),
    (b"[1E5]\n", "another spelling"),
    (b"[1e5]\n", "another spelling"),
    (b"[0.1000000000000000055]\n", "another spelling"),
    (b"[-0]\n", "another spelling"),
    (b"[01]\n", "expected canonical JSON"),
    (b"[9223372036854775808]\n", "64 bits"),
    (b"[" + b"9" * 5000 + b"]\n", "5000 digits"),
    (b"[" * 33 + b"]" * 33 + b"\n", "more than 32"),
    (b"[" * 100_000 + b"]" * 100_000 + b"\n", "more than 32"),
    (b'{"a":' * 100_000, "more than 32"),
    (b'"\\ud800"\n', "expected canonical JSON"),
    (b'"\xff"\n', "expected canonical JSON"),
    (b'"\x00"\n', "expected canonical JSON"),
    (b"[1,]\n", "expected canonical JSON"),
    (b"{}\n{}\n", "expected canonical JSON"),
    (b'{"a":1} // no\n', "expected canonical JSON"),
    (b"'a'\n", "expected canonical JSON"),
    (b"\x80\x04K\x01.", "expected canonical JSON"),
]


@pytest.mark.parametrize(("data", "reason"), HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(IntegrityError, match=r"^manifest\.json: ") as caught:
        canonical.parse(data, "manifest.json")
    assert reason in str(caught.value)


@pytest.mark.parametrize("value", [b"[],", b"1,", b"{},"])
def test_a_text_of_too_many_values_is_refused_before_they_are_made(value: bytes) -> None:
    """Sixteen megabytes of brackets take a gigabyte as lists."""
    data = b"[" + value * (canonical.VALUES_LIMIT + 1) + b"1]\n"
    tracemalloc.start()
    with pytest.raises(IntegrityError, match="x: expected at most 2097152 values, found more"):
        canonical.parse(data, "x")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_text_beyond_the_limit_is_refused_before_it_is_read() -> None:
    assert canonical.parse(b"[1]\n", "x", limit=4) == [1]
    with pytest.raises(IntegrityError, match="x: expected at most 3 bytes, found 4"):
        canonical.parse(b"[1]\n", "x", limit=3)


def test_a_record_carries_the_digest_of_itself_without_it() -> None:
    record = canonical.seal({"step": 3, "loss": math.nan})
    assert record["self_sha256"] == hashlib.sha256(b'{"loss":"nan","step":3}\n').hexdigest()
    assert canonical.digest_of(record) == record["self_sha256"]
    assert canonical.seal(record) == record
    data = canonical.encode(record)
    assert canonical.parse_record(data, "x", ("step", "loss")) == {**record, "loss": "nan"}
    with pytest.raises(IntegrityError, match="x: self_sha256 is not the digest of the record"):
        canonical.parse_record(data.replace(b'"step":3', b'"step":4'), "x", ("step", "loss"))
    with pytest.raises(IntegrityError, match=r"x: missing fields \['batch'\], unknown fields \['loss'\]"):
        canonical.parse_record(data, "x", ("step", "batch"))


Check = Callable[[Any, str], Any]


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (canonical.integer, [0, 1, 2**62], [True, False, -1, 1.0, "1", None, [1]]),
        (canonical.number, [0.5, -1.0, "inf", "-inf"], [1, True, "0.5", "Infinity", "NAN", None, [], {}]),
        (canonical.boolean, [True, False], [0, 1, "true", None]),
        (canonical.text, ["", "a"], [b"a", 1, None, ["a"]]),
        (canonical.items, [[], [1]], [(), {}, "ab", None]),
        (canonical.digest, ["0a" * 32], ["0A" * 32, "0a" * 31, "0a" * 32 + "\n", "0g" * 32, "\u0660" * 64, 1, None]),
    ],
)
def test_what_a_field_may_hold(check: Check, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert check(value, "x.y") == (float(value) if check is canonical.number else value)
    for value in bad:
        with pytest.raises(IntegrityError, match=r"^x\.y: expected .*, found "):
            check(value, "x.y")


def test_limits_and_choices_of_a_field() -> None:
    assert math.isnan(canonical.number("nan", "x"))
    assert canonical.integer(-3, "x", minimum=-5) == -3
    with pytest.raises(IntegrityError, match="at least 1, found 0"):
        canonical.integer(0, "x", minimum=1)
    assert canonical.text("a", "x", ("a", "b")) == "a"
    with pytest.raises(IntegrityError, match=r"one of \['a', 'b'\], found 'c'"):
        canonical.text("c", "x", ("a", "b"))
    assert canonical.fields({"a": 1}, ["a"], "x") == {"a": 1}
    with pytest.raises(IntegrityError, match="expected an object, found "):
        canonical.fields(["a"], ["a"], "x")
    with pytest.raises(IntegrityError) as caught:
        canonical.text(["y" * 5000], "x")
    assert len(str(caught.value)) < 200


GOOD_PATHS = [
    "config.yaml",
    "checkpoints/step_00000100/shard_00000.safetensors",
    ".hidden",
    "a..b",
    "...",
    "é/ü",
    "a b",
]
BAD_PATHS: list[Any] = [
    *("", "/", "/etc/passwd", "..", "../a", "a/../b", "a/..", ".", "./a", "a/./b", "a//b", "a/", "//a"),
    *("a\\b", "C:\\a", "a\nb", "a\x00b", "\x7f", "a\tb", "x" * 256, "a/" * 600 + "a", "\udcff", 1, None, ["a"]),
]


def test_relative_paths() -> None:
    for path in GOOD_PATHS:
        assert canonical.relative_path(path, "x") == path
    for bad in BAD_PATHS:
        with pytest.raises(IntegrityError, match="x: expected a relative POSIX path"):
            canonical.relative_path(bad, "x")
