"""checkpoint.json has exactly the fields of the format: a row per way to be wrong."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pretrain.errors import IntegrityError
from pretrain.evidence import canonical, checkpoint
from pretrain.evidence.checkpoint_record import CheckpointFile, RecordDraft, parse_record
from pretrain.evidence.metrics import Cursor
from tests.evidence.attempts import set_at
from tests.evidence.checkpoint_samples import SCALARS, save

FILES = [
    CheckpointFile("shard_00000.safetensors", 10, "0c" * 32),
    CheckpointFile("shard_00001.safetensors", 0, "d0" * 32),
]


def draft(**changes: Any) -> RecordDraft:
    plain = {"layout": {"ranks": 2}, "metrics": Cursor(1, 2, "ab" * 32), "scalars": copy.deepcopy(SCALARS)}
    return RecordDraft(**{"step": 3, "batch": 4, "identity_sha256": "ef" * 32, **plain, **changes})


def record() -> dict[str, Any]:
    found: dict[str, Any] = canonical.parse(draft().encode(FILES, "99" * 32), "here")
    return found


def drop_at(path: str) -> Callable[[dict[str, Any]], None]:
    *parents, last = path.split(".")

    def change(whole: dict[str, Any]) -> None:
        inner: Any = whole
        for part in parents:
            inner = inner[part]
        del inner[last]

    return change


def test_the_files_are_sorted_and_everything_comes_back() -> None:
    data = draft().encode(FILES[::-1], "99" * 32)
    found = parse_record(data, "here")
    assert found.files == tuple(FILES)
    assert (found.step, found.batch, found.identity_sha256) == (3, 4, "ef" * 32)
    assert (found.content_sha256, found.layout) == ("99" * 32, {"ranks": 2})
    assert (found.metrics, found.scalars) == (Cursor(1, 2, "ab" * 32), SCALARS)
    assert found.bytes == len(data) + 10


NAMES = [name for name in record() if name != "self_sha256"]
NAMES += [f"metrics.{name}" for name in record()["metrics"]]
NAMES += [f"scalars.{name}" for name in SCALARS]
NAMES += [f"scalars.{group}.{name}" for group in ("loader", "ledger") for name in SCALARS[group]]
GROUPS = ("", "files.0.", "metrics.", "scalars.", "scalars.loader.", "scalars.ledger.", "scalars.best.0.")


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_field_is_refused(name: str) -> None:
    changed = record()
    drop_at(name)(changed)
    with pytest.raises(IntegrityError, match=f"here.*{name.split('.')[-1]}"):
        parse_record(canonical.encode(canonical.seal(changed)), "here")


@pytest.mark.parametrize("group", GROUPS)
def test_an_unknown_field_is_refused(group: str) -> None:
    changed = record()
    set_at(f"{group}surprise", 1)(changed)
    with pytest.raises(IntegrityError, match="surprise"):
        parse_record(canonical.encode(canonical.seal(changed)), "here")


WRONG: list[tuple[str, Any]] = [
    ("schema", 2),
    ("schema", True),
    ("schema", "1"),
    ("step", -1),
    ("step", True),
    ("step", 1.0),
    ("step", "3"),
    ("batch", None),
    ("identity_sha256", "EF" * 32),
    ("identity_sha256", "ef" * 31),
    ("content_sha256", 5),
    ("layout", []),
    ("layout", None),
    ("files", []),
    ("files", {}),
    ("files", [FILES[0].__dict__, FILES[0].__dict__]),
    ("files", [FILES[1].__dict__, FILES[0].__dict__]),
    ("files.0", "shard_00000.safetensors"),
    ("files.0.path", "../shard_00000.safetensors"),
    ("files.0.path", "/etc/passwd"),
    ("files.0.path", "checkpoint.json"),
    ("files.0.path", "shard_00000.safetensors\n"),
    ("files.0.path", "shard_\u0660\u0660\u0660\u0660\u0660.safetensors"),
    ("files.0.bytes", -1),
    ("files.0.bytes", 10.0),
    ("files.0.sha256", "x" * 64),
    ("metrics.lines", -1),
    ("metrics.sha256", ""),
    ("scalars", []),
    ("scalars.loader.epoch", -1),
    ("scalars.loader.position", 0.5),
    ("scalars.ledger", None),
    ("scalars.ledger.retries", {}),
    ("scalars.ledger.retries", [-1]),
    ("scalars.ledger.retries", ["3"]),
    ("scalars.ledger.rollbacks", False),
    ("scalars.ledger.rung", 0.0),
    ("scalars.ledger.incidents", None),
    ("scalars.ledger.quarantined", [5]),
    ("scalars.ledger.quarantined", [[5]]),
    ("scalars.ledger.quarantined", [[5, 4]]),
    ("scalars.ledger.quarantined", [[5, 6, 7]]),
    ("scalars.ledger.learning_rate_factor", 1),
    ("scalars.ledger.learning_rate_factor", 0.0),
    ("scalars.ledger.learning_rate_factor", "nan"),
    ("scalars.ledger.faults_fired", [1]),
    ("scalars.guard", []),
    ("scalars.spikes", None),
    ("scalars.scaler", []),
    ("scalars.scaler", {}),
    ("scalars.scaler", {"scale": 1.0}),
    ("scalars.scaler", {"scale": 0.0, "growth_tracker": 0}),
    ("scalars.scaler", {"scale": "inf", "growth_tracker": 0}),
    ("scalars.scaler", {"scale": 2.0, "growth_tracker": -1}),
    ("scalars.scaler", {"scale": 2.0, "growth_tracker": 0, "more": 1}),
    ("scalars.best", {}),
    ("scalars.best.0", [10, 1.5]),
    ("scalars.best.0.step", -1),
    ("scalars.best.0.value", "inf"),
    ("scalars.best.0.value", None),
]


@pytest.mark.parametrize(("path", "value"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_value_is_refused(path: str, value: Any) -> None:
    changed = record()
    set_at(path, value)(changed)
    with pytest.raises(IntegrityError, match=r"^here: "):
        parse_record(canonical.encode(canonical.seal(changed)), "here")


@pytest.mark.parametrize(("path", "value"), [("step", 9), ("scalars.best.0.value", 0.5), ("layout", {})])
def test_an_altered_record_is_refused_by_its_own_digest(path: str, value: Any) -> None:
    changed = record()
    set_at(path, value)(changed)
    with pytest.raises(IntegrityError, match="self_sha256"):
        parse_record(canonical.encode(changed), "here")


@pytest.mark.parametrize(
    "changes",
    [
        {"step": -1},
        {"step": True},
        {"batch": 1.0},
        {"identity_sha256": "none"},
        {"layout": {"x": float("nan")}},
        {"layout": {"x": b"bytes"}},
        {"layout": {5: 1}},
        {"scalars": {}},
        {"scalars": SCALARS | {"more": 1}},
        {"scalars": SCALARS | {"best": [{"step": 1, "value": float("nan")}]}},
        {"scalars": SCALARS | {"spikes": {"deep": [{"mean": float("inf")}]}}},
        {"scalars": SCALARS | {"guard": {"big": 2**70}}},
    ],
    ids=str,
)
def test_what_no_record_may_hold_is_refused_before_anything_is_written(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises((IntegrityError, TypeError, ValueError)):
        save(tmp_path / "c", **changes)
    assert list(tmp_path.iterdir()) == []


def test_a_record_beyond_the_limit_is_refused_unread(tmp_path: Path) -> None:
    save(tmp_path / "c")
    with (tmp_path / "c" / "checkpoint.json").open("r+b") as file:
        file.truncate(1 << 36)
    with pytest.raises(IntegrityError, match="at most"):
        checkpoint.read_record(tmp_path / "c")
