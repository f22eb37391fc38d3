"""What trackers have written, read back: TensorBoard by its own reader, W&B record by record."""

import json
import struct
import time
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 60
_BLOCK, _HEADER = 32_768, struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) by name as TensorBoard shows them: what was purged is not among them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {name: [(one.step, one.value) for one in found.Scalars(name)] for name in found.Tags()["scalars"]}


def as_float32(value: float) -> float:
    """The value as TensorBoard keeps it."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def offline_rows(folder: Path, last: int) -> list[dict[str, Any]]:
    """Every row of the offline runs in a `wandb` folder, run by run in the order of their attempts.

    The library's own process writes them, and may still do so when a run has ended: step `last` is waited for.
    """
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        runs = [list(map(_row, _history(path.read_bytes()))) for path in folder.glob("offline-run-*/*.wandb")]
        found = [row for run in sorted(filter(None, runs), key=lambda rows: rows[0]["attempt"]) for row in run]
        if any(row["step"] == last for row in found):
            return found
        assert time.monotonic() < deadline, f"step {last} is not in {folder}"
        time.sleep(0.05)


def latest(rows: list[dict[str, Any]], name: str) -> dict[int, Any]:
    """The value by step, of several rows of a step that which the run went on from, as wandb.py says."""
    found: dict[int, Any] = {}
    place: dict[int, tuple[int, int]] = {}
    for row in rows:
        if name in row:
            step, at = row["step"], (row["attempt"], row["went_back"])
            assert place.get(step, (0, 0)) < at, f"step {step} is there twice in {at}"
            found[step], place[step] = row[name], at
    return found


def _history(data: bytes) -> list[Any]:
    from wandb.proto import wandb_internal_pb2

    records = map(wandb_internal_pb2.Record.FromString, _records(data))
    return [record.history.item for record in records if record.WhichOneof("record_type") == "history"]


def _row(items: Any) -> dict[str, Any]:
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def _records(data: bytes) -> list[bytes]:
    """The records of a LevelDB log, as W&B writes it: blocks of chunks, after seven bytes; a torn end is left out."""
    found, parts, at = [], b"", 7
    while at + _HEADER.size <= len(data):
        if _BLOCK - at % _BLOCK < _HEADER.size:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = _HEADER.unpack_from(data, at)
        chunk, at = data[at + _HEADER.size : at + _HEADER.size + length], at + _HEADER.size + length
        if kind == 0 or len(chunk) < length:
            break
        parts = chunk if kind in (_FULL, _FIRST) else parts + chunk
        if kind in (_FULL, _LAST):
            found.append(parts)
    return found
