"""What a `.sigmf-meta` file says about the samples beside it (SigMF 1.2)."""

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pretrain.errors import DataError

_SHA512 = re.compile(r"[0-9a-fA-F]{128}")


@dataclass(frozen=True)
class Capture:
    """One capture: the number of its first sample in the file, and the bytes that stand before it there."""

    sample_start: int
    header_bytes: int


@dataclass(frozen=True)
class SigmfMetadata:
    """The fields that say where the samples lie; captures are in the order of the samples, the first at 0.

    A recording without captures, or with samples before its first one, gets a capture at 0 for them.
    """

    datatype: str
    num_channels: int
    captures: tuple[Capture, ...]
    trailing_bytes: int
    sha512: str | None
    dataset: str | None


def parse_metadata(content: bytes, where: str) -> SigmfMetadata:
    """Parse the bytes of a metadata file. Raises DataError that begins with `where` and names the field."""
    try:
        document = json.loads(content, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: expected SigMF metadata in JSON: {error}") from error
    if not isinstance(document, dict):
        raise DataError(f"{where}: expected a JSON object, found {type(document).__name__}")
    fields = document.get("global")
    if not isinstance(fields, dict):
        raise DataError(f"{where}: expected an object `global`, found {_shown(fields)}")
    if fields.get("core:metadata_only") is True:
        raise DataError(f"{where}: core:metadata_only is true, so there are no samples to train on")
    datatype = fields.get("core:datatype")
    if not isinstance(datatype, str):
        raise DataError(f"{where}: expected a text core:datatype in `global`, found {_shown(datatype)}")
    return SigmfMetadata(
        datatype=datatype,
        num_channels=_integer(fields, "core:num_channels", where, default=1, at_least=1),
        captures=_captures(document.get("captures", []), _integer(fields, "core:offset", where), where),
        trailing_bytes=_integer(fields, "core:trailing_bytes", where),
        sha512=_sha512(fields, where),
        dataset=_dataset(fields, where),
    )


def _captures(listed: Any, offset: int, where: str) -> tuple[Capture, ...]:
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise DataError(f"{where}: expected `captures` to be a list of objects, found {_shown(listed)}")
    captures: list[Capture] = []
    for number, entry in enumerate(listed):
        at = f"{where}: captures[{number}]"
        if "core:sample_start" not in entry:
            raise DataError(f"{at}: core:sample_start is missing")
        # Every sample index is counted from the first sample of the whole recording, of which core:offset are
        # in earlier files.
        start = _integer(entry, "core:sample_start", at) - offset
        if start < 0:
            raise DataError(f"{at}: core:sample_start lies before core:offset {offset}")
        captures.append(Capture(start, _integer(entry, "core:header_bytes", at)))
    if any(later.sample_start <= earlier.sample_start for earlier, later in pairwise(captures)):
        starts = [capture.sample_start for capture in captures]
        raise DataError(f"{where}: expected captures sorted by core:sample_start, each once, found {_shown(starts)}")
    if not captures or captures[0].sample_start > 0:
        captures.insert(0, Capture(0, 0))
    return tuple(captures)


def _sha512(fields: dict[str, Any], where: str) -> str | None:
    value = fields.get("core:sha512")
    if value is None:
        return None
    if not isinstance(value, str) or not _SHA512.fullmatch(value):
        raise DataError(f"{where}: expected core:sha512 to be 128 hex digits, found {_shown(value)}")
    return value.lower()


def _dataset(fields: dict[str, Any], where: str) -> str | None:
    value = fields.get("core:dataset")
    if value is None:
        return None
    if not isinstance(value, str) or not value or "/" in value or value in (".", ".."):
        raise DataError(f"{where}: expected core:dataset to name a file in the same folder, found {_shown(value)}")
    return value


def _integer(fields: dict[str, Any], key: str, where: str, *, default: int = 0, at_least: int = 0) -> int:
    value = fields.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value < 1 << 63:
        raise DataError(f"{where}: expected {key} to be an integer of at least {at_least}, found {_shown(value)}")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} stands there twice")
    return fields


def _shown(value: Any) -> str:
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
