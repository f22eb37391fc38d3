"""`resume` goes on from the newest checkpoint that verifies: a torn one is passed over, loudly, to the same end."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pretrain import syscalls
from pretrain.attempt import AttemptResult, resume_attempt
from pretrain.errors import ConfigError, IntegrityError
from pretrain.evidence import checkpoint
from pretrain.machine.signals import StopRequest
from tests.cli.calling import flip, pretrain
from tests.loop.lineages import end_of, tree
from tests.loop.probes import Unsynced, newest_attempt
from tests.tiny import Recorder, go_on

NEWEST = "checkpoints/step_00000014"
SHARD = f"{NEWEST}/shard_00000.safetensors"
RECORD = f"{NEWEST}/checkpoint.json"


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "system", Unsynced())


def cut(path: Path, share: float) -> None:
    os.truncate(path, int(path.stat().st_size * share))


def zeros(path: Path) -> None:
    """What a power cut makes of a file whose size was on disk and whose data were not."""
    path.write_bytes(bytes(path.stat().st_size))


def linked(path: Path) -> None:
    path.rename(path.with_name("away"))
    path.symlink_to("away")


def bound_rows(attempt: Path, step: int) -> int:
    return checkpoint.read_record(checkpoint.folder_of(attempt, step)).metrics.bytes


TEARS: dict[str, Callable[[Path], None]] = {
    "a bit of the tensors": lambda attempt: flip(attempt / SHARD),
    "half of the tensors": lambda attempt: cut(attempt / SHARD, 0.5),
    "none of the tensors": lambda attempt: cut(attempt / SHARD, 0),
    "zeros for tensors": lambda attempt: zeros(attempt / SHARD),
    "no tensors": lambda attempt: (attempt / SHARD).unlink(),
    "linked tensors": lambda attempt: linked(attempt / SHARD),
    "a strange file": lambda attempt: (attempt / NEWEST / "more").write_bytes(b"?"),
    "a bit of the record": lambda attempt: flip(attempt / RECORD),
    "half of the record": lambda attempt: cut(attempt / RECORD, 0.5),
    "none of the record": lambda attempt: cut(attempt / RECORD, 0),
    "zeros for a record": lambda attempt: zeros(attempt / RECORD),
    "a row that is cut short": lambda attempt: os.truncate(attempt / "metrics.jsonl", bound_rows(attempt, 14) - 1),
    "a bit of a row": lambda attempt: flip(attempt / "metrics.jsonl", bound_rows(attempt, 14) - 9),
}


def resumed(run: Path) -> tuple[AttemptResult, list[str]]:
    """Resume the newest attempt; return what it came to, and the warnings on the screen."""
    screen = Recorder()
    result = resume_attempt(run, [], StopRequest(), [screen])
    return result, [event.text for event in screen.events if getattr(event, "kind", "") == "warning"]


@pytest.mark.parametrize("tear", TEARS)
def test_a_torn_one_is_passed_over_to_the_same_end(made: Path, stopped: Path, tear: str) -> None:
    attempt = stopped / "attempts/0001"
    TEARS[tear](attempt)
    before = tree(attempt)
    said = pretrain("verify-manifest", stopped).out
    assert "`pretrain resume` passes over the checkpoints of steps 14 and goes on from that of step 12" in said
    refused = pretrain("resume", "--attempt", stopped, "--require-latest", "--json")
    assert (refused.code, refused.json["exit_code"]) == (3, 3)
    assert f"--require-latest: {attempt / NEWEST} does not verify" in refused.err
    assert os.listdir(stopped / "attempts") == ["0001"]
    result, warnings = resumed(stopped)
    assert (result.verdict, result.step) == ("done", 16)
    (told,) = (text for text in warnings if "passed over" in text)
    assert f"{attempt / NEWEST} does not verify: " in told
    assert told.endswith("; passed over, going on from step 12")
    assert not any("for itself" in text for text in warnings), "what is damaged is nothing to keep"
    events = [json.loads(line) for line in (newest_attempt(stopped) / "events.jsonl").read_text().splitlines()]
    assert told in [event.get("text") for event in events if event["event"] == "warning"]
    assert tree(attempt) == before
    assert end_of(stopped) == end_of(made / "whole")
    parent = json.loads((newest_attempt(stopped) / "environment.json").read_text())["parent"]
    twelfth = checkpoint.read_record(checkpoint.folder_of(attempt, 12)).record_sha256
    assert parent == {"attempt": 1, "kind": "checkpoint", "record_sha256": twelfth}
    assert pretrain("verify-manifest", stopped, "--lineage").code == 0


def test_the_third_newest_does_where_two_are_torn_in_different_ways(made: Path, stopped: Path) -> None:
    flip(stopped / "attempts/0001" / SHARD)
    cut(stopped / "attempts/0001/checkpoints/step_00000012/checkpoint.json", 0.5)
    assert "passes over the checkpoints of steps 12, 14 and goes on from that of step 8" in (
        pretrain("verify-manifest", stopped).out
    )
    result, warnings = resumed(stopped)
    assert result.verdict == "done"
    newest, next_one = (text for text in warnings if "passed over" in text)
    assert "step_00000014 does not verify" in newest
    assert "step_00000012 does not verify" in next_one
    assert end_of(stopped) == end_of(made / "whole")


def test_all_of_them_torn_is_refused_with_each_of_them_named(stopped: Path) -> None:
    attempt = stopped / "attempts/0001"
    for record in attempt.glob("checkpoints/*/checkpoint.json"):
        flip(record)
    before = tree(stopped)
    refused = pretrain("resume", "--attempt", stopped)
    assert refused.code == 3
    assert "none of its checkpoints verifies" in refused.err
    assert all(f"step_{step:08d} does not verify" in refused.err for step in (0, 4, 8, 12, 14))
    assert "`pretrain resume` refuses it as it is" in pretrain("verify-manifest", stopped).out
    assert {**tree(stopped), ".": before["."]} == {**before, ".": before["."]}


def test_a_link_for_a_record_is_no_save_that_was_cut_short(stopped: Path) -> None:
    """Where all records are links, it is refused; where they are gone, a kill may have come before the first."""
    for record in stopped.glob("attempts/0001/checkpoints/*/checkpoint.json"):
        linked(record)
    with pytest.raises(IntegrityError, match="none of its checkpoints verifies") as refused:
        go_on(stopped)
    assert "found a symlink" in str(refused.value)
    assert os.listdir(stopped / "attempts") == ["0001"]


def test_the_only_one_of_a_child_torn_goes_on_where_the_child_began(made: Path, stopped: Path) -> None:
    assert go_on(stopped, stop_after=1).verdict == "interrupted"
    (place,) = (stopped / "attempts/0002/checkpoints").iterdir()
    cut(place / "shard_00000.safetensors", 0.5)
    assert "passes over the checkpoints of steps 15 and goes on from where it began" in (
        pretrain("verify-manifest", stopped).out
    )
    result, warnings = resumed(stopped)
    assert result.verdict == "done"
    assert any(f"{place} does not verify: " in text for text in warnings)
    assert end_of(stopped) == end_of(made / "whole")
    assert pretrain("verify-manifest", stopped, "--lineage").code == 0


@pytest.mark.parametrize("damage", [flip, Path.unlink])
@pytest.mark.parametrize("name", ["shard_00000.safetensors", "checkpoint.json"])
def test_one_that_can_no_longer_be_gone_back_to_is_on_record(
    stopped: Path, damage: Callable[[Path], None], name: str
) -> None:
    """After a spike the run would go back to step 12 or 8; to another one it may come to another end."""
    damage(stopped / "attempts/0001/checkpoints/step_00000012" / name)
    with pytest.raises(ConfigError, match=r"--require-bit-exact: it cannot go back to step 12 any more: .*step"):
        go_on(stopped, require_bit_exact=True)
    assert os.listdir(stopped / "attempts") == ["0001"]
    result, warnings = resumed(stopped)
    assert result.verdict == "done"
    assert any("it cannot go back to step 12 any more" in text for text in warnings)
    record = json.loads((newest_attempt(stopped) / "manifest.json").read_text())
    assert record["bit_exact"] is False
    assert "it cannot go back to step 12 any more" in record["reasons"][0]


def test_events_that_are_too_many_to_read_cannot_tell_of_a_move(made: Path, stopped: Path) -> None:
    with (stopped / "attempts/0001/events.jsonl").open("ab") as file:
        file.write(b"\n" * 100_001)
    result, _ = resumed(stopped)
    record = json.loads((newest_attempt(stopped) / "manifest.json").read_text())
    assert (result.verdict, record["bit_exact"]) == ("done", False)
    assert "events.jsonl is too long to tell whether the state moved to another device" in record["reasons"][0]
    assert end_of(stopped) == end_of(made / "whole")


def test_what_it_never_goes_back_to_may_be_damaged(made: Path, stopped: Path) -> None:
    for record in sorted(stopped.glob("attempts/0001/checkpoints/*/checkpoint.json"))[:2]:
        flip(record)
    result, _ = resumed(stopped)
    assert result.verdict == "done"
    assert json.loads((newest_attempt(stopped) / "manifest.json").read_text())["bit_exact"] is True
    assert end_of(stopped) == end_of(made / "whole")


def test_nothing_takes_the_place_of_one_that_was_named(stopped: Path) -> None:
    flip(stopped / "attempts/0001" / SHARD)
    expected = checkpoint.read_record(stopped / "attempts/0001" / NEWEST).record_sha256
    for options in ({"step": 14}, {"expect_sha256": expected}):
        with pytest.raises(IntegrityError, match=r"step_00000014/shard_00000\.safetensors: expected SHA-256"):
            go_on(stopped, **options)
    flip(stopped / "attempts/0001" / RECORD)
    with pytest.raises(IntegrityError, match=f"expected the parent's record to have SHA-256 {expected}") as refused:
        go_on(stopped, expect_sha256=expected)
    assert "step_00000014 does not verify" in str(refused.value)
    assert os.listdir(stopped / "attempts") == ["0001"]


def test_a_checkpoint_of_another_model_is_refused_and_not_passed_over(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pretrain.evidence import shard_reader

    def refuse(*_: object) -> None:
        raise IntegrityError("does not fit this model and optimizer")

    monkeypatch.setattr(shard_reader, "check_matches", refuse)
    with pytest.raises(IntegrityError, match="does not fit"):
        go_on(stopped)
    assert os.listdir(stopped / "attempts") == ["0001"]
