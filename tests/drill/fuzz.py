"""L8f: one byte or one field of what an attempt answers for is changed: it is always found and named.

Of an attempt that is stopped no record binds events.jsonl, telemetry.csv and outcome.json, nor the rows after its
newest checkpoint: these are left out. Of one that is done the manifest binds every file.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from pretrain import lineage, syscalls
from pretrain.config import load
from pretrain.evidence import canonical, checkpoint
from tests.drill.corruption import STEPS, STOPPED_AFTER
from tests.drill.kill_sweep import HURT
from tests.drill.layer import Layer
from tests.loop.lineages import small_config
from tests.loop.probes import Unsynced
from tests.tiny import train

STREAM = "metrics.jsonl"
RECORD = "checkpoints/step_00000002/checkpoint.json"
BOUND = (RECORD, "incidents/incident_0001.json", "environment.json", STREAM)
OTHERS = ("config.yaml", RECORD.replace("checkpoint.json", "shard_00000.safetensors"))
FIELDS = {"finished": ("manifest.json", *BOUND, "events.jsonl"), "stopped": BOUND}
TABLES = {"finished": ("telemetry.csv",), "stopped": ()}
EXAMPLES = (8, 100)  # of each point, all of them different: of the quick part, and of the whole
MADE = 0.9  # of the examples of each point, where the ways to change a file are few

_SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=8)
_VALUES = _SCALARS | st.lists(_SCALARS, max_size=2) | st.dictionaries(st.text(max_size=8), _SCALARS, max_size=2)


@st.composite
def bytes_of(draw: st.DrawFn, data: bytes, end: int) -> bytes:
    """The data with one byte before `end` changed, taken out or put in."""
    at = draw(st.integers(0, end - 1))
    changed = bytes([data[at] ^ draw(st.integers(1, 255))])
    between = draw(st.sampled_from([changed, b"", data[at : at + 1] + changed]))
    return data[:at] + between + data[at + 1 :]


@st.composite
def field_of(draw: st.DrawFn, data: bytes, end: int) -> bytes:
    """The data with one field of a record before `end` changed, taken out or put in, and spelled as before."""
    lines = data[:end].splitlines(keepends=True)
    at = draw(st.integers(0, len(lines) - 1))
    record = json.loads(lines[at])
    places = list(_places(record))
    holder, key = places[draw(st.integers(0, len(places) - 1))]
    match draw(st.sampled_from(["change", "change", "take", "put"])):
        case "change":
            holder[key] = draw(_VALUES)
        case "take":
            del holder[key]
        case _ if isinstance(holder, dict):
            holder[draw(st.text(max_size=8))] = draw(_VALUES)
        case _:
            holder.insert(key, draw(_VALUES))
    try:
        lines[at] = canonical.encode(record)
    except ValueError:  # a text that is no Unicode has no canonical spelling
        assume(False)
    return b"".join(lines) + data[end:]


@st.composite
def cell_of(draw: st.DrawFn, data: bytes, end: int) -> bytes:
    """The data with one cell of a table changed, taken out or put in; `end` is that of the data."""
    rows = [line.split(b",") for line in data[:end].split(b"\n")[:-1]]
    cells = rows[draw(st.integers(0, len(rows) - 1))]
    at = draw(st.integers(0, len(cells) - 1))
    new = draw(st.floats().map(repr) | st.integers().map(str) | st.text(st.characters(codec="utf-8"), max_size=8))
    cells[at : at + draw(st.sampled_from([1, 1, 0]))] = draw(st.sampled_from([[new.encode()], [new.encode()], []]))
    return b"".join(b",".join(cells) + b"\n" for cells in rows)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every field of a record, at any depth, as what holds it and its key there."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


class Fuzz:
    """A finished run, and one that was stopped, with incidents behind them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        config = small_config(folder, "text", STEPS, 2, HURT, "checkpoint.keep_every_n_steps=2")
        train(load(config, [f"run.dir={folder / 'finished'}"]))
        train(load(config, [f"run.dir={folder / 'stopped'}"]), STOPPED_AFTER)

    def points(self, *, whole: bool) -> Sequence[str]:
        """Every kind of file with bytes and with fields or cells changed, and how many times."""
        return [
            f"{run} {kind} {name} {EXAMPLES[whole]}"
            for run in FIELDS
            for kind, names in (
                ("byte", (*FIELDS[run], *TABLES[run], *OTHERS)),
                ("field", FIELDS[run]),
                ("cell", TABLES[run]),
            )
            for name in names
        ]

    def check(self, point: str, folder: Path) -> None:
        """Change the file in ever other ways; each time it must be named."""
        run, kind, name, count = point.split(" ")
        attempt = shutil.copytree(self._folder / run, folder / run) / "attempts/0001"
        data = (attempt / name).read_bytes()
        end = len(data)
        if (run, name) == ("stopped", STREAM):  # nobody answers yet for the rows after the newest checkpoint
            end = max(checkpoint.read_record(place).metrics.bytes for _, place in checkpoint.list_checkpoints(attempt))
        made: set[bytes] = set()

        @settings(
            derandomize=True,
            deadline=None,
            max_examples=int(count),
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given({"byte": bytes_of, "field": field_of, "cell": cell_of}[kind](data, end))
        def is_found(changed: bytes) -> None:
            assume((changed if end == len(data) else changed[:end]) != data[:end] and changed not in made)
            (attempt / name).write_bytes(changed)
            found = lineage.verify(attempt)
            told = {*found.extra, *found.missing, *found.changed, *found.unsafe}
            assert not found.ok and not found.sound, f"it verifies: {_difference(data, changed)}"  # noqa: PT018
            assert name in told, f"not named: {_difference(data, changed)}\n{found.text()}"
            made.add(changed)  # only here: hypothesis tries again what was not found

        is_found()
        assert len(made) >= MADE * int(count), f"only {len(made)} changes of {count} were made"


def _difference(before: bytes, after: bytes) -> str:
    first = next((at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), len(before))
    begin = max(first - 20, 0)
    return f"at byte {first}: {before[begin : first + 40]!r} became {after[begin : first + 40]!r}"


@contextmanager
def opened(folder: Path, seed: int) -> Iterator[Fuzz]:
    """Train both runs; `seed` changes nothing, nor does anything but the clock in the files that hold it."""
    with mock.patch.dict(os.environ, PRETRAIN_ALLOW_FAULTS="1"), mock.patch.object(syscalls, "system", Unsynced()):
        yield Fuzz(folder)


LAYER = Layer("L8f", "one byte or field changed, in 2,600 ways", (26, 26), opened)
