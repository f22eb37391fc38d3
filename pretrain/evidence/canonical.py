"""Canonical JSON: one text for one value, records that carry their own digest, a reader that is strict."""

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from pretrain.errors import IntegrityError

SELF = "self_sha256"
RECORD_LIMIT = 16 << 20  # bytes of one record or row that a reader takes in
VALUES_LIMIT = 1 << 21  # values in it: 16 MiB of nothing but `[],` would become a gigabyte of lists
DEPTH_LIMIT = 32
INTEGER_LIMIT = 2**63

_HEX = re.compile(r"[0-9a-f]{64}")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")  # lone surrogates: a name that is not UTF-8
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


def encode(value: Any) -> bytes:
    """The canonical text of `value`: None, bool, int, float, str, and lists and str-keyed mappings of them.

    UTF-8, sorted keys, the separators `,` and `:`, floats as `repr`, the words "nan", "inf" and "-inf" for
    what is not finite, one final newline. Raises TypeError for any other type, ValueError for an integer
    beyond 64 bits, a text that is no Unicode, or a nesting of more than 32.
    """
    return _encoder.encode(_plain(value, DEPTH_LIMIT)).encode() + b"\n"


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        if not -INTEGER_LIMIT <= value < INTEGER_LIMIT:
            raise ValueError(f"{value} does not fit into 64 bits")
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(float(value))
    if depth == 0:
        raise ValueError(f"nested more than {DEPTH_LIMIT} deep")
    if isinstance(value, list | tuple):
        return [_plain(item, depth - 1) for item in value]
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"the keys of a record are texts, found {list(value)}")
        return {key: _plain(item, depth - 1) for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} has no canonical text")


def unicode(text: str) -> str:
    """The text, with the bytes of a file's name that are no UTF-8 written as escapes, so that a record can hold it."""
    return text.encode("utf-8", "backslashreplace").decode()


def digest_of(record: Mapping[str, Any]) -> str:
    """What self_sha256 of `record` must be: the SHA-256 of the canonical text without that field."""
    return hashlib.sha256(encode({key: value for key, value in record.items() if key != SELF})).hexdigest()


def seal(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with its self_sha256."""
    return {**record, SELF: digest_of(record)}


# --- reading -------------------------------------------------------------------------------------------


def parse(data: bytes, where: str, *, limit: int = RECORD_LIMIT) -> Any:
    """The value whose canonical text is exactly `data`; IntegrityError naming `where` for anything else.

    So duplicate keys, NaN literals, integers beyond 64 bits, other spellings of the same value, a nesting of
    more than 32, more than `limit` bytes and more than two million values are all refused. The words "nan",
    "inf" and "-inf" stay words: `number` reads them.
    """
    if len(data) > limit:
        raise IntegrityError(f"{where}: expected at most {limit} bytes, found {len(data)}")
    if sum(map(data.count, (b",", b"[", b"{"))) > VALUES_LIMIT:
        raise IntegrityError(f"{where}: expected at most {VALUES_LIMIT} values, found more")
    try:
        value = _decoder.decode(data.decode())
        canonical = encode(value)
    except RecursionError as error:
        raise IntegrityError(f"{where}: nested more than {DEPTH_LIMIT} deep") from error
    except ValueError as error:
        raise IntegrityError(f"{where}: expected canonical JSON: {error}") from error
    if canonical != data:
        raise IntegrityError(f"{where}: expected canonical JSON, found another spelling of the same value")
    return value


def parse_record(data: bytes, where: str, names: Collection[str], *, limit: int = RECORD_LIMIT) -> dict[str, Any]:
    """A sealed record with exactly the fields `names` and self_sha256, whose digest is right."""
    record = fields(parse(data, where, limit=limit), {*names, SELF}, where)
    if digest(record[SELF], f"{where}: {SELF}") != digest_of(record):
        raise IntegrityError(f"{where}: {SELF} is not the digest of the record; it was altered")
    return record


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"duplicate key {next(name for name in names if names.count(name) > 1)!r}")
    return found


def _bounded(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def _refuse(word: str) -> Any:
    raise ValueError(f"the literal {word} is not JSON")


_decoder = json.JSONDecoder(object_pairs_hook=_once, parse_int=_bounded, parse_constant=_refuse)


# --- what a field may hold; each returns the value, or raises IntegrityError naming `where` ------------


def fields(value: Any, names: Collection[str], where: str) -> dict[str, Any]:
    """An object with exactly the fields `names`."""
    if not isinstance(value, dict):
        raise _expected(where, "an object", value)
    missing, unknown = sorted(set(names) - set(value)), sorted(set(value) - set(names))
    if missing or unknown:
        raise IntegrityError(f"{where}: missing fields {missing}, unknown fields {unknown}")
    return value


def integer(value: Any, where: str, minimum: int = 0) -> int:
    """An integer of at least `minimum`; true and false are none."""
    if type(value) is not int or value < minimum:
        raise _expected(where, f"an integer of at least {minimum}", value)
    return value


def number(value: Any, where: str) -> float:
    """A float, or one of the words for what is not finite."""
    if type(value) is float or value in ("nan", "inf", "-inf"):
        return float(value)
    raise _expected(where, "a float", value)


def boolean(value: Any, where: str) -> bool:
    """true or false."""
    if type(value) is not bool:
        raise _expected(where, "true or false", value)
    return value


def text(value: Any, where: str, choices: Collection[str] | None = None) -> str:
    """A text, one of `choices` where they are given."""
    if type(value) is not str or (choices is not None and value not in choices):
        raise _expected(where, "a text" if choices is None else f"one of {sorted(choices)}", value)
    return value


def items(value: Any, where: str) -> list[Any]:
    """A list."""
    if type(value) is not list:
        raise _expected(where, "a list", value)
    return value


def digest(value: Any, where: str) -> str:
    """A SHA-256: 64 lowercase hex digits."""
    if type(value) is not str or not _HEX.fullmatch(value):
        raise _expected(where, "64 lowercase hex digits", value)
    return value


def relative_path(value: Any, where: str) -> str:
    """A relative POSIX path that stays inside: no empty part, `.`, `..`, backslash or control character."""
    if type(value) is not str or len(value) > 1024 or _UNSAFE.search(value):
        raise _expected(where, "a relative POSIX path", value)
    if any(part in ("", ".", "..") or len(part.encode()) > 255 for part in value.split("/")):
        raise _expected(where, "a relative POSIX path that stays inside the folder", value)
    return value


def _expected(where: str, what: str, found: Any) -> IntegrityError:
    shown = repr(found)
    return IntegrityError(f"{where}: expected {what}, found {shown if len(shown) < 100 else shown[:97] + '...'}")
