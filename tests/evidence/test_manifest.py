"""manifest.json: built from what is there, exact in its fields, and hostile ones refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pretrain import reading
from pretrain.errors import IntegrityError
from pretrain.evidence import manifest
from pretrain.evidence.canonical import encode, seal
from pretrain.evidence.manifest import read_manifest
from pretrain.evidence.manifest_record import parse_manifest, role_of
from pretrain.evidence.metrics import Counts
from tests.evidence import attempts

FIELDS = (
    "schema verdict attempt step batch identity_sha256 bit_exact reasons validation parent files latest best metrics "
    "counts faults self_sha256"
)


@pytest.fixture(scope="module")
def attempt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return attempts.finished_attempt(tmp_path_factory.mktemp("run"))[0]


@pytest.fixture(scope="module")
def record(attempt: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((attempt / "manifest.json").read_bytes())
    return found


def test_a_manifest_names_every_file_with_its_role(attempt: Path, record: dict[str, Any]) -> None:
    assert set(record) == set(FIELDS.split())
    assert {entry["path"]: entry["role"] for entry in record["files"]} == {
        "checkpoints/step_00000000/checkpoint.json": "checkpoint",
        "checkpoints/step_00000000/shard_00000.safetensors": "checkpoint",
        "checkpoints/step_00000002/checkpoint.json": "checkpoint",
        "checkpoints/step_00000002/shard_00000.safetensors": "checkpoint",
        "checkpoints/step_00000004/checkpoint.json": "checkpoint",
        "checkpoints/step_00000004/shard_00000.safetensors": "checkpoint",
        "config.yaml": "config",
        "environment.json": "environment",
        "events.jsonl": "events",
        "metrics.jsonl": "metrics",
        "telemetry.csv": "telemetry",
    }
    for entry in record["files"]:
        found = reading.hash_file(attempt / entry["path"])
        assert (found.bytes, found.sha256) == (entry["bytes"], entry["sha256"])
    parsed, sha256 = read_manifest(attempt)
    assert sha256 == reading.hash_file(attempt / "manifest.json").sha256
    assert parsed.counts == Counts(1, 0, 0, 0, {})
    assert (parsed.latest.step, parsed.best[0].value, parsed.parent, parsed.bit_exact) == (4, 0.5, None, True)
    assert role_of("incidents/incident_0001.json") == "incident"
    assert role_of("telemetry.001.csv") == "telemetry"


def test_equal_attempts_have_equal_manifests(tmp_path: Path, attempt: Path) -> None:
    other, _ = attempts.finished_attempt(tmp_path)
    assert (other / "manifest.json").read_bytes() == (attempt / "manifest.json").read_bytes()


def rebuild(attempt: Path) -> str:
    parsed, _ = read_manifest(attempt)
    (attempt / "manifest.json").unlink()
    built = manifest.build_manifest(
        attempt,
        number=parsed.attempt,
        step=parsed.step,
        batch=parsed.batch,
        identity_sha256=parsed.identity_sha256,
        bit_exact=parsed.bit_exact,
        reasons=parsed.reasons,
        validation=parsed.validation,
        parent=parsed.parent,
        latest=parsed.latest,
        best=parsed.best,
        metrics_cursor=parsed.metrics,
    )
    return manifest.publish_manifest(attempt, built)


def test_building_refuses_what_a_manifest_cannot_answer_for(attempt: Path, tmp_path: Path) -> None:
    original = (attempt / "manifest.json").read_bytes()

    def copy(name: str) -> Path:
        return Path(shutil.copytree(attempt, tmp_path / name))

    with_temporary = copy("temporary")
    (with_temporary / ".tmp-1-1-telemetry.csv").write_bytes(b"left by a removal that failed")
    rebuild(with_temporary)
    assert (with_temporary / "manifest.json").read_bytes() == original

    for name, reason in [
        ("link", "expected only regular files"),
        ("outcome.json", "expected only regular files"),
        ("a\nb", "expected a relative POSIX path"),
        ("checkpoints/step_00000002/shard_00000.safetensors", "as its checkpoint.json says"),
    ]:
        changed = copy(f"copy{len(list(tmp_path.iterdir()))}")
        if name == "link":
            (changed / name).symlink_to("config.yaml")
        else:
            (changed / name).write_bytes(b"other")
        with pytest.raises(IntegrityError, match=reason):
            rebuild(changed)
        assert not (changed / "manifest.json").exists()
    changed = copy("missing")
    (changed / "checkpoints/step_00000002/shard_00000.safetensors").unlink()
    with pytest.raises(IntegrityError, match=r"step_00000002/shard_00000\.safetensors: missing"):
        rebuild(changed)
    changed = copy("stream")
    with (changed / "metrics.jsonl").open("ab") as stream:
        stream.write(b'{"event":"begin"}\n')
    with pytest.raises(IntegrityError, match=r"metrics is not the cursor at the end of metrics\.jsonl"):
        rebuild(changed)


# --- hostile manifests, with a digest that is right ----------------------------------------------------

ENTRY = {"path": "telemetry.csv", "bytes": 1, "sha256": "00" * 32, "role": "telemetry"}


def with_path(path: Any) -> dict[str, Any]:
    return ENTRY | {"path": path}


CHANGES: list[tuple[str, Any, str]] = [
    ("schema", 2, "expected schema 1, found 2"),
    ("schema", True, "schema: expected an integer"),
    ("schema", 1.0, "schema: expected an integer"),
    ("verdict", "failed", "verdict: expected one of"),
    ("attempt", 0, "attempt: expected an integer of at least 1"),
    ("attempt", True, "attempt: expected an integer"),
    ("attempt", "1", "attempt: expected an integer"),
    ("step", -1, "step: expected an integer"),
    ("step", False, "step: expected an integer"),
    ("step", 3, "latest: step 4 is after the end"),
    ("batch", 1.5, "batch: expected an integer"),
    ("batch", 2**63 - 1, ""),
    ("identity_sha256", "AB" * 32, "identity_sha256: expected 64 lowercase hex"),
    ("identity_sha256", "ab" * 31, "identity_sha256: expected 64 lowercase hex"),
    ("bit_exact", 1, "bit_exact: expected true or false"),
    ("bit_exact", "true", "bit_exact: expected true or false"),
    ("reasons", "none", "reasons: expected a list"),
    ("reasons", [1], "reasons: expected a text"),
    ("faults", [None], "faults: expected a text"),
    ("validation", "none", "validation: expected one of"),
    ("parent", {}, "parent: missing fields"),
    ("parent", {"attempt": 1, "kind": "manifest", "record_sha256": "ab" * 32}, "attempt 1 is no earlier one"),
    ("parent", {"attempt": 1, "kind": "file", "record_sha256": "ab" * 32}, "parent.kind: expected one of"),
    ("parent", {"attempt": 1, "kind": "manifest", "record_sha256": "../0001"}, "parent.record_sha256: expected 64"),
    ("parent", "../0001/manifest.json", "parent: expected an object"),
    ("latest", None, "latest: expected an object"),
    ("latest", {"step": 4, "record_sha256": "ab" * 32}, "latest: no file is the checkpoint record"),
    ("latest", {"step": True, "record_sha256": "ab" * 32}, "latest.step: expected an integer"),
    ("best", {}, "best: expected a list"),
    ("best", [{"step": 4, "value": "nan", "record_sha256": "ab" * 32}], "expected a finite number, found nan"),
    ("best", [{"step": 4, "value": 1, "record_sha256": "ab" * 32}], "value: expected a float"),
    ("best", [{"step": 4, "value": 0.5}], "best[0]: missing fields ['record_sha256']"),
    ("metrics", {"lines": 1, "bytes": 1}, "metrics: missing fields"),
    ("metrics", {"lines": 1, "bytes": 1, "sha256": "ab" * 32}, "metrics is not the cursor at the end"),
    ("counts", {}, "counts: missing fields"),
    ("counts", [], "counts: expected an object"),
    ("files", {}, "files: expected a list"),
    ("files", [], "config.yaml is not named"),
    ("files", [ENTRY], "config.yaml is not named"),
    ("files", [ENTRY, ENTRY], "expected sorted paths, each once"),
    ("files", [ENTRY, with_path("a")], "expected sorted paths, each once"),
    ("files", [with_path("a"), with_path("a/b")], "a is both a file and a folder"),
    ("files", [ENTRY | {"more": 1}], "files[0]: missing fields [], unknown fields ['more']"),
    ("files", [{"path": "a"}], "files[0]: missing fields ['bytes', 'role', 'sha256']"),
    ("files", ["telemetry.csv"], "files[0]: expected an object"),
    ("files", [ENTRY | {"bytes": -1}], "files[0].bytes: expected an integer"),
    ("files", [ENTRY | {"bytes": True}], "files[0].bytes: expected an integer"),
    ("files", [ENTRY | {"bytes": 1.0}], "files[0].bytes: expected an integer"),
    ("files", [ENTRY | {"sha256": "0A" * 32}], "files[0].sha256: expected 64 lowercase hex"),
    ("files", [ENTRY | {"sha256": "00" * 33}], "files[0].sha256: expected 64 lowercase hex"),
    ("files", [ENTRY | {"role": "checkpoint"}], "files[0].role: expected one of ['telemetry']"),
    ("files", [with_path("config.yaml")], "files[0].role: expected one of ['config']"),
    ("files", [with_path("manifest.json")], "manifest.json is no file that a manifest can name"),
    ("files", [with_path("outcome.json")], "outcome.json is no file that a manifest can name"),
    *(
        ("files", [with_path(path)], "files[0].path: expected a relative POSIX path")
        for path in (
            *("", "/", "/etc/passwd", "..", "../0002/config.yaml", "a/../../b", "./a", "a//b", "a/", "a/."),
            *("a\\b", "a\x00b", "a\nb", "x" * 300, "a/" * 600 + "b", 1, None, ["a"], True),
        )
    ),
]


@pytest.mark.parametrize(("field", "value", "reason"), CHANGES, ids=range(len(CHANGES)))
def test_a_hostile_manifest_is_refused(record: dict[str, Any], field: str, value: Any, reason: str) -> None:
    changed = {**record, field: value}
    del changed["self_sha256"]
    data = encode(seal(changed))
    if not reason:
        parse_manifest(data, "manifest.json")
        return
    with pytest.raises(IntegrityError, match=r"^manifest\.json: ") as caught:
        parse_manifest(data, "manifest.json")
    assert reason in str(caught.value)


@pytest.mark.parametrize("field", FIELDS.split())
def test_every_field_is_needed_and_none_more(record: dict[str, Any], field: str) -> None:
    without = {name: value for name, value in record.items() if name not in (field, "self_sha256")}
    for changed in (without, {**without, field + "_": record[field]}):
        sealed = encode(seal(changed) if field != "self_sha256" else changed)
        with pytest.raises(IntegrityError, match=r"manifest\.json: missing fields \['" + field):
            parse_manifest(sealed, "manifest.json")


def test_text_level_attacks_are_refused(record: dict[str, Any]) -> None:
    data = encode(record)
    for changed in (
        data.replace(b'"attempt":1,', b'"attempt":1,"attempt":1,'),
        data.replace(b'"value":0.5', b'"value":NaN'),
        data.replace(b'"value":0.5', b'"value":0.50'),
        data.replace(b'"step":4,"validation"', b'"step":4e0,"validation"'),
        data.replace(b'"batch":5', b'"batch":' + b"5" * 4000),
        data.replace(b'"faults":[]', b'"faults":' + b"[" * 50_000 + b"]" * 50_000),
        data + b" " * (64 << 20),
        json.dumps(record, indent=1).encode(),
        data[:-1],
        data + b"\n",
        data.replace(record["self_sha256"].encode(), b"00" * 32),
    ):
        assert changed != data
        with pytest.raises(IntegrityError, match=r"^manifest\.json: "):
            parse_manifest(changed, "manifest.json")
