"""What the disk cannot read is no damage: it is told apart, and neither passed over nor put back from a copy."""

import errno
import json
import os
from pathlib import Path

import pytest

from pretrain import syscalls
from tests.cli.calling import Answer, flip, pretrain
from tests.loop.lineages import end_of, tree
from tests.loop.probes import Unsynced, newest_attempt
from tests.tiny import go_on

FIELDS = {"ok", "manifest_sha256", "unfinished", "extra", "missing", "changed", "unsafe", "parent_ok"}
ADVICE = "put back"


class Failing(Unsynced):
    """The real system, in which every read of some files reports an I/O error."""

    def __init__(self) -> None:
        self.bad: set[Path] = set()
        self._paths: dict[int, Path] = {}

    def open(self, path: Path, flags: int, mode: int = 0o644) -> int:
        """Open the file, and note which one it is."""
        fd = super().open(path, flags, mode)
        self._paths[fd] = Path(path).resolve()
        return fd

    def read(self, fd: int, count: int) -> bytes:
        """Read, or fail."""
        self._fail(fd)
        return super().read(fd, count)

    def read_into(self, fd: int, buffer: memoryview) -> int:
        """Read, or fail."""
        self._fail(fd)
        return super().read_into(fd, buffer)

    def _fail(self, fd: int) -> None:
        if self._paths.get(fd) in self.bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Failing:
    system = Failing()
    monkeypatch.setattr(syscalls, "system", system)
    return system


def refused(run: Path, *words: str) -> Answer:
    """What a resume that changes nothing says."""
    before = tree(run / "attempts")
    answer = pretrain("resume", "--attempt", run, *words)
    assert tree(run / "attempts") == before
    return answer


@pytest.mark.parametrize(
    "name",
    [
        *("telemetry.csv", "metrics.jsonl", "config.yaml", "environment.json", "manifest.json"),
        *("checkpoints/step_00000016/checkpoint.json", "checkpoints/step_00000004/shard_00000.safetensors"),
    ],
)
def test_a_file_of_a_finished_attempt(whole: Path, disk: Failing, name: str) -> None:
    attempt = whole / "attempts/0001"
    disk.bad = {attempt / name}
    found = pretrain("verify-manifest", whole, "--json")
    assert (found.code, found.json["ok"], found.json["changed"]) == (6, False, [name])
    assert set(found.json) == FIELDS
    said = pretrain("verify-manifest", whole).out
    assert said.startswith(f"{attempt}: cannot be read\nunread: {name}\n")
    assert "Input/output error" in said
    answer = refused(whole, "training.max_steps=20")
    assert (answer.code, ADVICE in answer.err, "Input/output error" in answer.err) == (6, False, True)
    disk.bad = set()
    assert pretrain("verify-manifest", whole).code == 0


def test_damage_beside_it_is_damage(whole: Path, disk: Failing) -> None:
    disk.bad = {whole / "attempts/0001/telemetry.csv"}
    flip(whole / "attempts/0001/metrics.jsonl", 30)
    found = pretrain("verify-manifest", whole, "--json")
    assert (found.code, found.json["changed"]) == (3, ["metrics.jsonl", "telemetry.csv"])
    answer = refused(whole, "training.max_steps=20")
    assert (answer.code, ADVICE in answer.err) == (3, True)


@pytest.mark.parametrize(
    "name",
    [
        *("metrics.jsonl", "config.yaml", "environment.json"),
        *("checkpoints/step_00000014/checkpoint.json", "checkpoints/step_00000014/shard_00000.safetensors"),
    ],
)
def test_what_a_resume_reads_is_not_passed_over(made: Path, stopped: Path, disk: Failing, name: str) -> None:
    disk.bad = {stopped / "attempts/0001" / name}
    found = pretrain("verify-manifest", stopped)
    assert found.code == 6
    assert f"`pretrain resume` ends with exit code 6 as long as it cannot read {name}\n" in found.out
    assert refused(stopped).code == 6
    disk.bad = set()
    assert go_on(stopped).verdict == "done"
    assert end_of(stopped) == end_of(made / "whole")


def test_nor_is_one_below_a_damaged_one(stopped: Path, disk: Failing) -> None:
    places = [stopped / f"attempts/0001/checkpoints/step_{step:08d}/shard_00000.safetensors" for step in (14, 12)]
    flip(places[0])
    disk.bad = {places[1]}
    found = pretrain("verify-manifest", stopped)
    assert found.code == 3
    assert "ends with exit code 6 as long as it cannot read checkpoints/step_00000012/shard" in found.out
    assert refused(stopped).code == 6


@pytest.mark.parametrize("name", ["checkpoint.json", "shard_00000.safetensors"])
def test_an_older_one_is_one_that_cannot_be_gone_back_to(stopped: Path, disk: Failing, name: str) -> None:
    disk.bad = {stopped / "attempts/0001/checkpoints/step_00000012" / name}
    found = pretrain("verify-manifest", stopped)
    assert (found.code, "`pretrain resume` goes on from it" in found.out) == (6, True)
    answer = refused(stopped, "--require-bit-exact")
    assert (answer.code, "it cannot go back to step 12 any more" in answer.err) == (2, True)
    assert go_on(stopped).verdict == "done"
    record = json.loads((newest_attempt(stopped) / "manifest.json").read_text())
    assert record["bit_exact"] is False
    assert "it cannot go back to step 12 any more" in record["reasons"][0]


def test_the_record_of_a_parent(stopped: Path, disk: Failing) -> None:
    assert go_on(stopped).verdict == "done"
    record = stopped / "attempts/0001/checkpoints/step_00000014/checkpoint.json"
    disk.bad = {record}
    found = pretrain("verify-manifest", stopped, "--lineage", "--json")
    assert (found.code, found.json["parent_ok"], found.json["changed"]) == (6, False, [])
    assert found.json["lineage"][0]["changed"] == ["checkpoints/step_00000014/checkpoint.json"]
    assert "it was changed" not in pretrain("verify-manifest", stopped).out
    # Another one that cannot be read is not the parent, which is there.
    disk.bad = {record.parents[1] / "step_00000000/checkpoint.json"}
    assert pretrain("verify-manifest", stopped, "--lineage").code == 0
    disk.bad = set()
    flip(record)
    assert pretrain("verify-manifest", stopped, "--lineage").code == 3
