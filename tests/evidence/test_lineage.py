"""verify-manifest names every file that is not as it was bound: flipped, cut, removed, linked, added, rewritten."""

import hashlib
import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pretrain import lineage, syscalls
from pretrain.errors import ConfigError, IntegrityError
from pretrain.evidence import canonical, checkpoint, metrics, namespace
from pretrain.evidence.checkpoint_record import parse_record
from pretrain.evidence.manifest import parse_manifest
from pretrain.evidence.namespace import Parent
from tests.evidence import attempts


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    attempt, _ = attempts.finished_attempt(tmp_path_factory.mktemp("run"))
    return attempt


@pytest.fixture
def attempt(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "attempts" / "0001"))


def file_names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def state_of(folder: Path) -> list[tuple[str, int, int]]:
    return sorted((str(path), path.lstat().st_mtime_ns, path.lstat().st_size) for path in folder.rglob("*"))


def named(attempt: Path, **expected: list[str]) -> None:
    """The verification names exactly what is expected, and its text and JSON name it as well."""
    found = lineage.verify(attempt)
    lists = {kind: list(getattr(found, kind)) for kind in ("extra", "missing", "changed", "unsafe")}
    assert lists == {"extra": [], "missing": [], "changed": [], "unsafe": []} | expected, found.reasons
    assert not found.ok
    assert not found.answer()["ok"]
    for kind, names in expected.items():
        for name in names:
            assert f"{'unread' if name in found.unread else kind}: {name}\n" in found.text()
            assert any(name.rstrip("/") in reason for reason in found.reasons)


def test_a_finished_attempt_verifies_and_nothing_is_touched(attempt: Path) -> None:
    before = state_of(attempt)
    found = lineage.verify(attempt)
    assert found.ok, found.reasons
    assert state_of(attempt) == before
    sha256 = hashlib.sha256((attempt / "manifest.json").read_bytes()).hexdigest()
    assert found.answer() == {
        "ok": True,
        "manifest_sha256": sha256,
        "unfinished": False,
        "extra": [],
        "missing": [],
        "changed": [],
        "unsafe": [],
        "parent_ok": None,
    }
    assert f"verified, {len(file_names(attempt)) - 1} files" in found.text()
    assert sha256 in found.text()


@pytest.mark.parametrize("word", ["folder", "manifest", "run", "link"])
def test_every_way_to_name_an_attempt(attempt: Path, word: str) -> None:
    (attempt.parent.parent / "latest").symlink_to(attempt)
    paths = {
        "folder": attempt,
        "manifest": attempt / "manifest.json",
        "run": attempt.parent.parent,
        "link": attempt.parent.parent / "latest",
    }
    found = lineage.verify(paths[word])
    assert found.ok
    assert found.path == attempt.resolve()


def test_an_attempt_that_was_copied_elsewhere_verifies(attempt: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(attempt, tmp_path / "backup"))
    assert lineage.verify(copy).ok


def test_a_path_that_is_nothing_of_ours(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"")
    for name in ("empty", "file", "gone"):
        with pytest.raises(ConfigError, match=f"{name}: expected an attempt, a run or a checkpoint"):
            lineage.verify(tmp_path / name)


# --- one fault at a time -------------------------------------------------------------------------------


def test_a_bit_flipped_at_200_places_over_all_files_is_named(attempt: Path) -> None:
    files = file_names(attempt)
    places = [(name, offset) for name in files for offset in range((attempt / name).stat().st_size)]
    chosen = random.Random(20).sample(places, 200)
    # Every file is hit, the last byte of each record as well: it is the newline of the canonical text.
    chosen += [(name, (attempt / name).stat().st_size - 1) for name in files]
    for name, offset in chosen:
        path = attempt / name
        content = path.read_bytes()
        changed = bytearray(content)
        changed[offset] ^= 1 << random.Random(offset).randrange(8)
        path.write_bytes(changed)
        named(attempt, changed=[name])
        path.write_bytes(content)
    assert lineage.verify(attempt).ok
    assert {name for name, _ in chosen} == set(files)


def test_a_bit_flipped_in_any_byte_of_a_record_is_found_by_the_record_alone(attempt: Path) -> None:
    for path, parse in [
        (attempt / "checkpoints/step_00000004/checkpoint.json", parse_record),
        (attempt / "manifest.json", parse_manifest),
    ]:
        content = path.read_bytes()
        parse(content, path.name)
        for offset in range(len(content)):
            changed = bytearray(content)
            changed[offset] ^= 1 << random.Random(offset).randrange(8)
            assert path.name in refusal(parse, bytes(changed), path.name), f"a flip at {offset} was not found"


def refusal(parse: Callable[[bytes, str], Any], data: bytes, where: str) -> str:
    """What the parser says against `data`; faster than `pytest.raises` by far."""
    try:
        parse(data, where)
    except IntegrityError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("cut", [0, 1, 0.5, -1])
def test_a_truncated_file_is_named(attempt: Path, cut: float) -> None:
    for name in file_names(attempt):
        path = attempt / name
        content = path.read_bytes()
        length = int(len(content) * cut) if cut == 0.5 else (len(content) + cut if cut < 0 else cut)
        path.write_bytes(content[: int(length)])
        named(attempt, changed=[name])
        path.write_bytes(content + b"\0")
        named(attempt, changed=[name])
        path.write_bytes(content)


def test_a_removed_file_is_named(attempt: Path) -> None:
    for name in file_names(attempt):
        (attempt / name).rename(attempt.parent / "away")
        if name == "manifest.json":
            found = lineage.verify(attempt)
            assert (found.ok, found.sound, found.unfinished, found.manifest_sha256) == (False, True, True, None)
            assert "there is no manifest.json: the attempt is unfinished, and `pretrain resume` goes on" in found.text()
            assert "checked: the checkpoints of steps 0, 2, 4 and the rows they bind\n" in found.text()
        else:
            named(attempt, missing=[name])
        (attempt.parent / "away").rename(attempt / name)


@pytest.mark.parametrize("kind", ["link to the same bytes", "dangling link", "folder", "fifo", "empty"])
def test_a_file_replaced_by_something_else_is_named(attempt: Path, kind: str) -> None:
    for name in file_names(attempt):
        path, away = attempt / name, attempt.parent / "away"
        path.rename(away)
        if kind == "link to the same bytes":
            path.symlink_to(away)
        elif kind == "dangling link":
            path.symlink_to(attempt / "nothing")
        elif kind == "folder":
            path.mkdir()
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            path.write_bytes(b"")
        if kind == "empty":
            named(attempt, changed=[name])
        else:
            named(attempt, unsafe=[name])
        path.rmdir() if kind == "folder" else path.unlink()
        away.rename(path)


def test_a_folder_replaced_by_a_link_is_named_with_all_that_was_in_it(attempt: Path) -> None:
    for name in ("checkpoints", "checkpoints/step_00000002"):
        path, away = attempt / name, attempt.parent / "away"
        inside = [file for file in file_names(attempt) if file.startswith(name + "/")]
        path.rename(away)
        path.symlink_to(away)
        named(attempt, unsafe=[name], missing=inside)
        path.unlink()
        away.rename(path)


@pytest.mark.parametrize(
    "name",
    [
        "note.txt",
        ".tmp-1-1-manifest.json",
        "outcome.json",
        "checkpoint.json",
        "checkpoints/shard_00000.safetensors",
        "checkpoints/step_00000004/shard_00001.safetensors",
        "incidents/incident_0001.json",
        "deep/er/file",
    ],
)
def test_an_added_file_is_named(attempt: Path, name: str) -> None:
    new = [parent for parent in list(Path(name).parents)[:-1] if not (attempt / parent).exists()]
    (attempt / name).parent.mkdir(parents=True, exist_ok=True)
    (attempt / name).write_bytes(b"{}\n")
    named(attempt, extra=sorted([name, *(f"{folder}/" for folder in new)]))


def test_an_added_folder_and_a_name_that_is_no_text_are_named(attempt: Path) -> None:
    (attempt / "attempts").mkdir()
    Path(os.fsdecode(os.fsencode(attempt) + b"/caf\xe9\n\x1b[2J")).write_bytes(b"")
    found = lineage.verify(attempt)
    assert found.extra == ("attempts/", "caf\\udce9\n\x1b[2J")
    assert "\x1b" not in found.text()
    json.dumps(found.answer(), ensure_ascii=False).encode()


def test_two_files_and_two_steps_swapped_are_named(attempt: Path) -> None:
    steps = [attempt / "checkpoints" / f"step_{step:08d}" for step in (2, 4)]
    inside = [path.relative_to(attempt).as_posix() for step in steps for path in sorted(step.iterdir())]
    swap(*steps)
    named(attempt, changed=sorted(inside))
    swap(*steps)
    shards = [step / "shard_00000.safetensors" for step in steps]
    swap(*shards)
    named(attempt, changed=[shard.relative_to(attempt).as_posix() for shard in shards])


def swap(one: Path, other: Path) -> None:
    away = one.with_name("away")
    one.rename(away)
    other.rename(one)
    away.rename(other)


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_checked(
    attempt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    class Failing(syscalls.System):
        def read_into(self, fd: int, buffer: memoryview) -> int:
            if os.readlink(f"/proc/self/fd/{fd}").endswith("events.jsonl"):
                raise OSError(5, "Input/output error")
            return super().read_into(fd, buffer)

    monkeypatch.setattr(syscalls, "system", Failing())
    (attempt / "telemetry.csv").unlink()
    named(attempt, changed=["events.jsonl"], missing=["telemetry.csv"])
    found = lineage.verify(attempt)
    assert (found.unread, found.is_only_unread) == (("events.jsonl",), False)


# --- forgeries: the digests are right again ------------------------------------------------------------


def forge(folder: Path, record: str, **change: Any) -> None:
    path = folder / record
    path.write_bytes(attempts.rewrite(path, change))


def test_a_rewritten_manifest_is_found_by_its_expected_hash(attempt: Path) -> None:
    sha256 = lineage.verify(attempt).manifest_sha256
    assert lineage.verify(attempt, expect_sha256=sha256).ok
    forge(attempt, "manifest.json", batch=99)
    assert lineage.verify(attempt).ok
    found = lineage.verify(attempt, expect_sha256=sha256)
    assert (found.ok, found.changed) == (False, ("manifest.json",))
    assert f"expected SHA-256 {sha256}, found {found.manifest_sha256}" in found.text()
    assert lineage.verify(attempt, expect_sha256=str(found.manifest_sha256).upper()).ok
    for text in ("ab" * 31, "xy" * 32, ""):
        with pytest.raises(ConfigError, match="expected 64 hex digits, found"):
            lineage.verify(attempt, expect_sha256=text)


def test_what_a_manifest_says_is_checked_against_the_files(attempt: Path) -> None:
    original = (attempt / "manifest.json").read_bytes()
    record = json.loads(original)
    shards = [entry for entry in record["files"] if not entry["path"].endswith("2/shard_00000.safetensors")]
    without_record = [entry for entry in record["files"] if "step_00000002/checkpoint.json" not in entry["path"]]
    step_2 = hashlib.sha256((attempt / "checkpoints/step_00000002/checkpoint.json").read_bytes()).hexdigest()
    counts = record["counts"]
    for change, reason, extra in [
        ({"counts": counts | {"skipped": 0}}, "counts are not those", []),
        ({"counts": counts | {"alarms": {"dead": 1}}}, "counts are not those", []),
        ({"metrics": record["metrics"] | {"lines": 3}}, "metrics does not count the rows", []),
        ({"identity_sha256": "00" * 32}, "identity_sha256 is not that of", []),
        ({"attempt": 2}, "it is of attempt 2, not of 1", []),
        ({"latest": {"step": 3, "record_sha256": record["latest"]["record_sha256"]}}, "latest is not", []),
        ({"latest": {"step": 2, "record_sha256": step_2}}, "latest is not", []),
        ({"files": shards}, "it binds other files than", ["checkpoints/step_00000002/shard_00000.safetensors"]),
        ({"files": without_record}, "no record of that", ["checkpoints/step_00000002/checkpoint.json"]),
    ]:
        forge(attempt, "manifest.json", **change)
        named(attempt, changed=["manifest.json"], **({"extra": extra} if extra else {}))
        assert reason in lineage.verify(attempt).text(), change
        (attempt / "manifest.json").write_bytes(original)


def rebind(attempt: Path, name: str) -> None:
    """Let the manifest bind what the file `name` is now."""
    record = json.loads((attempt / "manifest.json").read_bytes())
    content = (attempt / name).read_bytes()
    for entry in record["files"]:
        if entry["path"] == name:
            entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    forge(attempt, "manifest.json", files=record["files"])


def test_a_checkpoint_whose_cursor_is_not_of_the_stream_is_named(attempt: Path) -> None:
    name = "checkpoints/step_00000002/checkpoint.json"
    cursor = json.loads((attempt / name).read_bytes())["metrics"]
    for change in ({"sha256": "00" * 32}, {"lines": 1}, {"bytes": 10**12}, {"bytes": cursor["bytes"] - 1}):
        forge(attempt, name, metrics=cursor | change)
        rebind(attempt, name)
        named(attempt, changed=[name])


def test_an_environment_of_another_attempt_is_named(attempt: Path) -> None:
    (attempt / "environment.json").write_bytes(canonical.encode(attempts.environment(7)))
    rebind(attempt, "environment.json")
    named(attempt, changed=["environment.json"])
    (attempt / "environment.json").write_bytes(b'{"attempt":1}\n')
    rebind(attempt, "environment.json")
    named(attempt, changed=["environment.json"])


# --- unfinished attempts -------------------------------------------------------------------------------


@pytest.fixture
def unfinished(attempt: Path) -> Path:
    (attempt / "manifest.json").unlink()
    (attempt / "outcome.json").write_bytes(b"{}\n")
    return attempt


def test_an_unfinished_attempt_is_sound_but_not_ok(unfinished: Path) -> None:
    with (unfinished / "metrics.jsonl").open("ab") as stream:
        stream.write(b'{"torn')
    found = lineage.verify(unfinished / "manifest.json")
    assert (found.ok, found.sound, found.unfinished) == (False, True, True)
    assert found.num_files == 6
    assert found.text().startswith(f"{unfinished.resolve()}: unfinished\n")
    shutil.rmtree(unfinished / "checkpoints")
    assert "  no checkpoint yet\n" in lineage.verify(unfinished).text()


def test_what_the_checkpoints_of_an_unfinished_attempt_bind_is_checked(unfinished: Path) -> None:
    step = "checkpoints/step_00000004/"
    flip(unfinished / step / "shard_00000.safetensors", 100)
    named(unfinished, changed=[step + "shard_00000.safetensors"])
    flip(unfinished / step / "shard_00000.safetensors", 100)
    flip(unfinished / step / "checkpoint.json", 100)
    named(unfinished, changed=[step + "checkpoint.json"])
    flip(unfinished / step / "checkpoint.json", 100)
    flip(unfinished / "metrics.jsonl", 30)
    named(unfinished, changed=["metrics.jsonl"])
    flip(unfinished / "metrics.jsonl", 30)
    (unfinished / step / "checkpoint.json").unlink()
    named(unfinished, extra=[step, step + "shard_00000.safetensors"])
    (unfinished / step / "shard_00000.safetensors").unlink()
    (unfinished / "config.yaml").unlink()
    (unfinished / ".tmp-3-1-telemetry.csv").write_bytes(b"")
    (unfinished / "environment.json").rename(unfinished / "moved")
    (unfinished / "environment.json").symlink_to("moved")
    named(
        unfinished,
        extra=[".tmp-3-1-telemetry.csv", step],
        missing=["config.yaml"],
        unsafe=["environment.json"],
    )


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_an_unfinished_attempt_under_another_number_is_named(unfinished: Path) -> None:
    moved = unfinished.rename(unfinished.with_name("0005"))
    named(moved, changed=["environment.json"])


def test_a_manifest_that_cannot_be_read_leaves_the_checkpoints_checked(attempt: Path) -> None:
    (attempt / "manifest.json").write_bytes(b"{}\n")
    flip(attempt / "checkpoints/step_00000002/shard_00000.safetensors", 50)
    named(attempt, changed=["checkpoints/step_00000002/shard_00000.safetensors", "manifest.json"])
    assert not lineage.verify(attempt).unfinished


# --- checkpoints ---------------------------------------------------------------------------------------


def test_a_checkpoint_folder_is_verified(attempt: Path) -> None:
    step = attempt / "checkpoints" / "step_00000004"
    for path in (step, step / "checkpoint.json"):
        found = lineage.verify(path)
        assert found.ok
        assert (found.manifest_sha256, found.num_files) == (None, 2)
    sha256 = checkpoint.read_record(step).record_sha256
    assert found.record_sha256 == sha256
    assert sha256 in found.text()
    assert lineage.verify(step, expect_sha256=sha256).ok
    assert lineage.verify(step, expect_sha256="00" * 32).changed == ("checkpoint.json",)
    for name in file_names(step):
        content = (step / name).read_bytes()
        flip(step / name, len(content) // 2)
        named(step, changed=[name])
        (step / name).unlink()
        named(step, missing=[name])
        (step / name).symlink_to(attempt / "config.yaml")
        named(step, unsafe=[name])
        (step / name).unlink()
        (step / name).mkdir()
        named(step, unsafe=[name])
        (step / name).rmdir()
        (step / name).write_bytes(content)
    (step / "more").write_bytes(b"")
    named(step, extra=["more"])
    copy = Path(shutil.copytree(attempt / "checkpoints" / "step_00000002", attempt / "elsewhere"))
    assert lineage.verify(copy).ok


def reseal(step: Path, **change: Any) -> None:
    """Let the record of a checkpoint bind what its shard file is now."""
    content = (step / "shard_00000.safetensors").read_bytes()
    entry = {"path": "shard_00000.safetensors", "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    forge(step, "checkpoint.json", files=[entry], **change)


def test_a_record_sealed_again_over_other_tensors_does_not_verify(attempt: Path) -> None:
    step = attempt / "checkpoints" / "step_00000004"
    shard = step / "shard_00000.safetensors"
    content = shard.read_bytes()
    length = int.from_bytes(content[:8], "little")
    for broken in (b"PK\3\4 a pickle, perhaps", content[:-4], content[:8] + b" " * length + content[8 + length :]):
        shard.write_bytes(broken)
        reseal(step)
        named(step, changed=[shard.name])
    shard.write_bytes(content)
    flip(shard, len(content) - 1)
    reseal(step)
    named(step, changed=["checkpoint.json"])
    assert "content_sha256 is not that of the tensors" in lineage.verify(step).text()
    shard.write_bytes(content)
    reseal(step, content_sha256="00" * 32)
    named(step, changed=["checkpoint.json"])


@pytest.mark.parametrize("unfinish", [False, True])
def test_a_file_of_a_checkpoint_that_holds_no_tensors_is_named_in_its_attempt(attempt: Path, unfinish: bool) -> None:
    step = "checkpoints/step_00000002/"
    (attempt / step / "shard_00000.safetensors").write_bytes(b"PK\3\4 a pickle, perhaps")
    reseal(attempt / step)
    if unfinish:
        (attempt / "manifest.json").unlink()
    else:
        for name in ("checkpoint.json", "shard_00000.safetensors"):
            rebind(attempt, step + name)
    named(attempt, changed=[step + "shard_00000.safetensors"])


# --- parents -------------------------------------------------------------------------------------------


@pytest.fixture(params=["manifest", "checkpoint"])
def child(request: pytest.FixtureRequest, attempt: Path) -> tuple[Path, Path]:
    """(the record that the child bound, a finished child that goes on from step 4 of `attempt`)."""
    step = checkpoint.folder_of(attempt, 4)
    bound = attempt / "manifest.json" if request.param == "manifest" else step / "checkpoint.json"
    parent = Parent(1, request.param, hashlib.sha256(bound.read_bytes()).hexdigest())
    cursor = checkpoint.read_record(step).metrics
    prefix = metrics.verify_prefix(attempt / "metrics.jsonl", cursor)
    folder = attempts.begin_attempt(attempt.parent.parent, 2, parent, prefix)
    saved, end = attempts.train(folder, 4, 6, cursor)
    attempts.finish(folder, saved, end, parent)
    return bound, folder


def test_the_parent_is_found_and_its_change_is_caught_by_the_child(child: tuple[Path, Path]) -> None:
    bound, folder = child
    found = lineage.verify(folder)
    assert (found.ok, found.parent_ok) == (True, True)
    assert "the parent is as it was bound" in found.text()
    assert lineage.verify(folder.parent.parent).path == folder.resolve()
    forge(bound.parent, bound.name, batch=77)
    found = lineage.verify(folder)
    assert (found.ok, found.parent_ok) == (False, False)
    assert "0001 holds no" in found.text()


def test_without_the_parent_beside_it_nothing_is_said_about_it(child: tuple[Path, Path]) -> None:
    bound, folder = child
    away = folder.parent.parent / "away"
    (folder.parent / "0001").rename(away)
    assert (lineage.verify(folder).ok, lineage.verify(folder).parent_ok) == (True, None)
    (folder.parent / "0001").symlink_to(away)
    assert lineage.verify(folder).parent_ok is False
    (folder.parent / "0001").unlink()
    away.rename(folder.parent / "0001")
    bound.unlink()
    assert lineage.verify(folder).parent_ok is False


def test_an_unfinished_child_is_checked_against_its_parent(child: tuple[Path, Path]) -> None:
    bound, folder = child
    (folder / "manifest.json").unlink()
    assert lineage.verify(folder).parent_ok is True
    forge(bound.parent, bound.name, batch=77)
    found = lineage.verify(folder)
    assert (found.sound, found.unfinished, found.parent_ok) == (False, True, False)


@pytest.fixture
def youngest(original: Path, tmp_path: Path) -> Path:
    """A finished 0003 that goes on from a checkpoint of 0002, which goes on from one of 0001; both were stopped."""
    first = Path(shutil.copytree(original, tmp_path / "run" / "attempts" / "0001"))
    (first / "manifest.json").unlink()
    folder, number = first, 1
    for number, step in ((2, 4), (3, 6)):
        bound = checkpoint.read_record(checkpoint.folder_of(folder, step))
        parent = Parent(number - 1, "checkpoint", bound.record_sha256)
        prefix = metrics.verify_prefix(folder / "metrics.jsonl", bound.metrics)
        folder = attempts.begin_attempt(tmp_path / "run", number, parent, prefix)
        saved, end = attempts.train(folder, step, step + 2, bound.metrics)
    attempts.finish(folder, saved, end, parent)
    return folder


def test_a_lineage_is_checked_up_to_the_first_attempt(youngest: Path) -> None:
    steps = [youngest.parent / "0002/checkpoints/step_00000006", youngest.parent / "0001/checkpoints/step_00000004"]
    for path in (youngest, youngest / "manifest.json", youngest.parent.parent):
        found = lineage.verify_lineage(path)
        assert [one.path for one in found] == [youngest.resolve(), *(step.resolve() for step in steps)]
        assert all(one.ok for one in found)
    assert [one.path for one in lineage.verify_lineage(steps[0])] == [steps[0].resolve()]
    assert lineage.verify_lineage(youngest, "00" * 32)[0].changed == ("manifest.json",)
    for changed in range(2):
        shard = steps[changed] / "shard_00000.safetensors"
        flip(shard, 100)
        found = lineage.verify_lineage(youngest)
        assert [one.sound for one in found] == [True, changed != 0, changed != 1]
        assert found[1 + changed].changed == ("shard_00000.safetensors",)
        flip(shard, 100)


def test_a_record_that_was_rewritten_or_removed_anywhere_in_a_lineage_is_missed(youngest: Path) -> None:
    record = youngest.parent / "0001/checkpoints/step_00000004/checkpoint.json"
    content = record.read_bytes()
    forge(record.parent, record.name, batch=99)
    for _ in range(2):
        found = lineage.verify_lineage(youngest)
        assert [(one.sound, one.missing) for one in found] == [(True, ()), (True, ()), (False, ("checkpoint.json",))]
        record.unlink(missing_ok=True)
    record.write_bytes(content)
    environment = youngest.parent / "0002/environment.json"
    content = environment.read_bytes()
    own = checkpoint.read_record(youngest.parent / "0002/checkpoints/step_00000006").record_sha256
    parent = {"attempt": 2, "kind": "checkpoint", "record_sha256": own}
    for changed in (b"{}\n", canonical.encode(json.loads(content) | {"parent": parent})):
        environment.write_bytes(changed)
        found = lineage.verify_lineage(youngest)
        assert [one.sound for one in found] == [True, True, False]
        assert found[-1].changed == ("environment.json",)
    environment.write_bytes(content)
    (youngest / "environment.json").write_bytes(b"{}\n")
    (only,) = lineage.verify_lineage(youngest)
    assert only.changed == ("environment.json",)


def test_a_manifest_that_was_rewritten_is_found_by_an_unfinished_child(child: tuple[Path, Path]) -> None:
    bound, folder = child
    if bound.name == "checkpoint.json":
        return
    for name in ("manifest.json", ""):
        forge(bound.parent, bound.name, batch=77) if name else bound.unlink()
        found = lineage.verify_lineage(folder)
        assert [one.sound for one in found] == [False, False]


def test_a_lineage_ends_where_an_ancestor_is_gone(youngest: Path, tmp_path: Path) -> None:
    assert lineage.cut_text(youngest) == ""
    shutil.rmtree(youngest.parent / "0001")
    assert [one.ok for one in lineage.verify_lineage(youngest)] == [True, True]
    assert lineage.cut_text(youngest) == "its parent 0001 is not here: verified up to it\n"
    shutil.rmtree(youngest.parent / "0002/checkpoints/step_00000006")
    found = lineage.verify_lineage(youngest)
    assert [one.missing for one in found] == [(), ("checkpoint.json",)]
    assert (found[0].ok, found[0].parent_ok) == (False, False)
    shutil.rmtree(youngest.parent / "0002")
    (only,) = lineage.verify_lineage(youngest)
    assert (only.ok, only.parent_ok) == (True, None)
    assert lineage.cut_text(youngest) == "its parent 0002 is not here: verified up to it\n"
    assert lineage.cut_text(shutil.copytree(youngest, tmp_path / "elsewhere")) == lineage.cut_text(youngest)


def test_a_lineage_through_a_manifest(child: tuple[Path, Path]) -> None:
    bound, folder = child
    found = lineage.verify_lineage(folder)
    assert [one.path for one in found] == [folder.resolve(), bound.parent.resolve()]
    if bound.name == "manifest.json":
        flip(bound.parent / "metrics.jsonl", 30)
        assert [one.ok for one in lineage.verify_lineage(folder)] == [True, False]


# --- sums ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unfinish", [False, True])
def test_sums_are_what_sha256sum_checks(attempt: Path, unfinish: bool) -> None:
    if unfinish:
        (attempt / "manifest.json").unlink()
    step = attempt / "checkpoints" / "step_00000004"
    for folder, count in ((attempt, 6 if unfinish else len(file_names(attempt))), (step, 2)):
        lines = lineage.sums(folder)
        checked = subprocess.run(["sha256sum", "-c", "--strict"], input=lines.encode(), cwd=folder, stdout=-1)
        assert checked.returncode == 0
        assert len(lines.splitlines()) == count


def test_sums_of_what_cannot_be_read(attempt: Path) -> None:
    (attempt / "manifest.json").write_bytes(b"{}\n")
    with pytest.raises(IntegrityError, match=r"manifest\.json"):
        lineage.sums(attempt)


def test_verification_takes_no_option_from_the_file_it_checks(attempt: Path) -> None:
    unknown: Callable[[str], dict[str, Any]] = lambda name: {name: True}  # noqa: E731
    for name in ("ignore", "unsafe_ok", "version"):
        forge(attempt, "manifest.json", **unknown(name))
        named(attempt, changed=["manifest.json"])
        record = json.loads((attempt / "manifest.json").read_bytes())
        del record[name], record["self_sha256"]
        (attempt / "manifest.json").write_bytes(canonical.encode(canonical.seal(record)))
    assert lineage.verify(attempt).ok
    assert namespace.number_of(attempt) == 1
