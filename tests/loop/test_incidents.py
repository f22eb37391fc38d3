"""An incident leaves a file that says why, and finding out changes nothing of the run."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from pretrain import lineage, syscalls
from pretrain.attempt import replay_incident, resume_attempt, start_attempt
from pretrain.attempt.replayed import Replayed
from pretrain.errors import ConfigError, IntegrityError
from pretrain.evidence import canonical, checkpoint, incident
from pretrain.evidence.checkpoint import CheckpointRecord, list_checkpoints
from pretrain.evidence.incident import Incident, read_incident
from pretrain.loop import LoopParts, finish_step
from pretrain.loop import incidents as page
from pretrain.machine.signals import StopRequest
from pretrain.policy.diagnosis import diagnose
from pretrain.telemetry.sink import End, Event, Note, StepRow
from tests.loop.lineages import tree
from tests.loop.test_rollback import QUICK, newest, rows
from tests.tiny import Recorder, go_on, tiny, train

TWO = "faults.inject=[loss_spike@31x8, loss_spike@32x8, loss_spike@33x8, nan_grad@40]"


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRETRAIN_ALLOW_FAULTS", "1")


def found_in(run_dir: Path) -> list[Incident]:
    return [read_incident(path) for path in sorted((newest(run_dir) / "incidents").iterdir())]


@pytest.mark.parametrize("task", ["text", "iq"])
def test_every_incident_has_its_file(tmp_path: Path, task: str) -> None:
    seen = Recorder()
    assert start_attempt(tiny(tmp_path, task, *QUICK, TWO), StopRequest(), [seen]).verdict == "done"
    found = found_in(tmp_path / "run")
    assert [(one.number, one.batch, one.action) for one in found] == [
        *((1, 31, "skip"), (2, 32, "skip"), (3, 33, "roll_back"), (4, 40, "skip"))
    ]
    assert [one.numbers.trigger for one in found] == ["loss", "loss", "loss", "non_finite_norm"]
    named = [row["incident"] for row in rows(tmp_path / "run") if row["event"] in ("skipped", "rolled_back")]
    assert named == [1, 2, 3, 3, 4]
    texts = [note.text for note in seen.events if isinstance(note, Note) and "incident_" in note.text]
    assert [text.rpartition(", ")[2] for text in texts] == [f"incident_{number:04d}" for number in named]
    (end,) = [event for event in seen.events if isinstance(event, End)]
    assert (end.incidents, end.incident) == (4, str(tmp_path / "run/attempts/0001" / incident.name_of(4)))
    manifest = json.loads((tmp_path / "run/attempts/0001/manifest.json").read_text())
    assert manifest["counts"]["incidents"] == 4
    assert sum(entry["role"] == "incident" for entry in manifest["files"]) == 4
    for one in found:
        assert one.cause == diagnose(one.numbers).cause
        assert len(one.samples) == 4
        assert len(one.numbers.block_gradient_norms) == len(one.numbers.block_activations) == 2
        assert len(one.record["history"]) == one.batch if one.batch < 50 else 50
        assert one.numbers.same_batch_from_safe is not None
        assert one.numbers.same_batch_from_safe.step == 30
        assert one.numbers.other_batch is not None
    # The batch is sound: what the fault did to the loss is not in the data, and the samples say so.
    assert max(one["loss"] for one in found[0].samples) < found[0].numbers.threshold


def test_the_samples_lead_to_the_bytes_they_were_read_from(tmp_path: Path) -> None:
    train(tiny(tmp_path, "text", *QUICK, "faults.inject=[nan_grad@33]"))
    (one,) = found_in(tmp_path / "run")
    corpus = (tmp_path / "corpus.txt").read_bytes()
    for sample in one.samples:
        assert Path(sample["source"]) == tmp_path / "corpus.txt"
        assert len(corpus[sample["offset"] : sample["offset"] + 17]) == 17


def test_a_raised_alarm_is_an_incident_too(tmp_path: Path) -> None:
    quiet = ("spikes.loss.action=record", "spikes.gradient.action=record")
    train(tiny(tmp_path, "text", *QUICK, *quiet, "faults.inject=[loss_spike@33x8]"))
    (one,) = found_in(tmp_path / "run")
    assert (one.action, one.numbers.trigger) == ("record", "loss")
    raised = [row for row in rows(tmp_path / "run") if row["event"] == "alarm" and row["state"] == "raised"]
    assert {row["incident"] for row in raised} == {1}


def test_finding_the_cause_changes_no_byte_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_it = train(tiny(tmp_path, "text", *QUICK, TWO, run="a"))
    monkeypatch.setattr(page, "_experiments", lambda *_: (page.Sight((), ()), page.Experiments()))
    without = train(tiny(tmp_path, "text", *QUICK, TWO, run="b"))
    assert with_it.checkpoint is not None
    assert without.checkpoint is not None
    assert with_it.checkpoint.record_sha256 == without.checkpoint.record_sha256
    assert (tmp_path / "a/attempts/0001/metrics.jsonl").read_bytes() == (
        tmp_path / "b/attempts/0001/metrics.jsonl"
    ).read_bytes()


@pytest.mark.parametrize(
    ("stop_after", "precision"),
    [(25, "float16"), (32, "float32"), (33, "float32"), (34, "float16"), (35, "float32"), (42, "float32")],
)
def test_stopped_and_resumed_it_leaves_the_same_files(tmp_path: Path, stop_after: int, precision: str) -> None:
    options = (*QUICK, TWO, f"training.precision={precision}")
    train(tiny(tmp_path, "text", *options, run="a"))
    result = train(tiny(tmp_path, "text", *options, run="b"), stop_after)
    while result.verdict == "interrupted":
        result = go_on(tmp_path / "b", stop_after=15)
    names = sorted(path.name for path in (tmp_path / "a/attempts/0001/incidents").iterdir())
    assert names == sorted(path.name for path in (newest(tmp_path / "b") / "incidents").iterdir())
    for name in names:
        one = (tmp_path / "a/attempts/0001/incidents" / name).read_bytes()
        assert (newest(tmp_path / "b") / "incidents" / name).read_bytes() == one
    assert lineage.verify(newest(tmp_path / "b")).ok


def test_a_damaged_incident_of_the_parent_is_refused_and_a_missing_one_is_said(tmp_path: Path) -> None:
    train(tiny(tmp_path, "text", *QUICK, TWO), 45)
    path = tmp_path / "run/attempts/0001" / incident.name_of(2)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"batch":32', b'"batch":33'))
    before = tree(tmp_path / "run/attempts")
    with pytest.raises(IntegrityError, match=r"incident_0002\.json"):
        go_on(tmp_path / "run")
    assert tree(tmp_path / "run/attempts") == before
    path.unlink()
    assert lineage.verify(tmp_path / "run").missing == (incident.name_of(2),)
    assert go_on(tmp_path / "run", require_latest=True).verdict == "done", "which is about checkpoints alone"
    assert [one.number for one in found_in(tmp_path / "run")] == [1, 3, 4]
    assert (
        "incident_0002.json: the file of an incident is gone" in (newest(tmp_path / "run") / "events.jsonl").read_text()
    )


def test_without_room_for_a_copy_the_incident_says_what_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(page, "Twin", full)
    assert train(tiny(tmp_path, "text", *QUICK, "faults.inject=[nan_grad@33]")).verdict == "done"
    (one,) = found_in(tmp_path / "run")
    assert (one.samples, one.numbers.same_batch_from_safe) == ((), None)
    assert "no room on the device" in (tmp_path / "run/attempts/0001/events.jsonl").read_text()


# --- what is not finite where a checkpoint is due ------------------------------------------------------


def spoil_at(monkeypatch: pytest.MonkeyPatch, step: int, times: int = 1) -> None:
    """Make a weight NaN after the update of `step`, so that its checkpoint is the first to see it."""
    left = [times]

    def finish(parts: LoopParts) -> None:
        if parts.state.step == step and left[0]:
            left[0] -= 1
            with torch.no_grad():
                next(iter(parts.state.model.parameters())).view(-1)[0] = float("nan")
        finish_step(parts)

    monkeypatch.setattr("pretrain.loop.steps.finish_step", finish)


@pytest.mark.parametrize("step", [40, 60])
def test_a_checkpoint_that_refuses_sends_the_run_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    spoil_at(monkeypatch, step)
    assert train(tiny(tmp_path, "text", *QUICK)).verdict == "done"
    (one,) = found_in(tmp_path / "run")
    assert (one.numbers.trigger, one.action, one.numbers.step) == ("non_finite_state", "roll_back", step)
    back = next(row for row in rows(tmp_path / "run") if row["event"] == "rolled_back")
    assert (back["step"], back["undone_steps"], back["incident"]) == (step - 10, 10, 1)
    assert [row["step"] for row in rows(tmp_path / "run") if row["event"] == "step"][-1] == 60


def test_where_it_refuses_again_and_again_the_budget_ends_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil_at(monkeypatch, 40, times=100)
    result = train(tiny(tmp_path, "text", *QUICK))
    assert (result.verdict, result.exit_code) == ("diverged", 4)
    outcome = json.loads((tmp_path / "run/attempts/0001/outcome.json").read_text())
    assert outcome["incident"] == len(found_in(tmp_path / "run")) == 4
    assert found_in(tmp_path / "run")[-1].action == "stop"
    assert incident.name_of(4) in outcome["reason"]


def test_a_signal_never_saves_what_is_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil_at(monkeypatch, 43)
    result = train(tiny(tmp_path, "text", *QUICK), 43)
    assert (result.verdict, result.exit_code) == ("interrupted", 75)
    assert (
        "the checkpoint of step 40 is saved"
        in json.loads((tmp_path / "run/attempts/0001/outcome.json").read_text())["reason"]
    )
    assert go_on(tmp_path / "run").verdict == "done"


def test_damage_that_only_a_checkpoint_sees_is_no_learning_rate(tmp_path: Path) -> None:
    calm = ("optimizer.lr=1e-4", "faults.inject=[nan_weight@39]")
    train(tiny(tmp_path, "text", *QUICK, *calm))
    (one,) = found_in(tmp_path / "run")
    assert (one.numbers.trigger, one.cause) == ("non_finite_state", "unknown")


def test_the_end_says_what_it_was(tmp_path: Path) -> None:
    train(tiny(tmp_path, "text", *QUICK, "spikes.max_rollbacks=0", "faults.inject=[nan_weight@39]"))
    reason = json.loads((tmp_path / "run/attempts/0001/outcome.json").read_text())["reason"]
    assert "batch 39 at step 40: non_finite_state is nan" in reason
    assert "spikes.max_rollbacks is 0, and 0 were made" in reason


def test_without_a_checkpoint_to_go_back_to_the_end_says_so(tmp_path: Path) -> None:
    train(tiny(tmp_path, "text", *QUICK, "faults.inject=[nan_weight@33]"), 32)
    go_on(tmp_path / "run", stop_after=1)
    shutil.rmtree(tmp_path / "run/attempts/0001")
    result = go_on(tmp_path / "run")
    assert result.exit_code == 4
    assert (
        "there is no checkpoint to go back to"
        in json.loads((newest(tmp_path / "run") / "outcome.json").read_text())["reason"]
    )


def test_a_file_of_any_name_can_be_named_by_an_incident(tmp_path: Path) -> None:
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "a.txt").write_text("one green bottle hanging on the wall\n" * 40)
    (tmp_path / "books" / os.fsdecode(b"\xff\xfe b.txt")).write_text("two green bottles hanging on the wall\n" * 40)
    data = [f"data.{kind}.letters.path={folder}" for kind in ("train", "validation")]
    config = tiny(
        tmp_path, "text", "training.max_steps=12", *data, "faults.inject=[nan_grad@5, nan_grad@6, nan_grad@7]"
    )
    assert train(config).verdict == "done"
    named = {sample["source"] for one in found_in(tmp_path / "run") for sample in one.samples}
    assert any(name.endswith("\\udcff\\udcfe b.txt") for name in named), named
    assert replayed(tmp_path / "run", 1).experiments["same_batch"].loss is not None


def test_incidents_are_not_written_through_a_link(tmp_path: Path) -> None:
    train(tiny(tmp_path, "text", *QUICK, "faults.inject=[nan_grad@33]"), 20)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    class Linking(Recorder):
        def emit(self, event: Event) -> None:
            if isinstance(event, StepRow) and event.batch == 25:
                (newest(tmp_path / "run") / "incidents").symlink_to(elsewhere)

    result = resume_attempt(tmp_path / "run", [], StopRequest(), [Linking()])
    assert (result.verdict, result.exit_code) == ("failed", 3)
    assert not list(elsewhere.iterdir())


def test_a_disk_that_is_full_ends_with_6_and_a_resume_ends_in_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(tiny(tmp_path, "text", *QUICK, "faults.inject=[nan_grad@33]", run="a"))
    monkeypatch.setattr(syscalls, "system", syscalls.System())
    result = train(tiny(tmp_path, "text", *QUICK, "faults.inject=[nan_grad@33, full_disk@34]", run="b"))
    assert (result.verdict, result.exit_code) == ("storage", 6)
    assert not (tmp_path / "b/attempts/0001/outcome.json").exists()  # the disk is full for it as well
    monkeypatch.setattr(syscalls, "system", syscalls.System())
    done = go_on(tmp_path / "b")
    assert done.verdict == "done"
    assert whole.checkpoint is not None
    stream = (newest(tmp_path / "b") / "metrics.jsonl").read_bytes()
    assert stream == (tmp_path / "a/attempts/0001/metrics.jsonl").read_bytes()


# --- pretrain replay -----------------------------------------------------------------------------------


def replayed(run_dir: Path, number: int) -> Replayed:
    return replay_incident(newest(run_dir) / incident.name_of(number))


@pytest.mark.parametrize("task", ["text", "iq"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_replay_runs_the_step_again_and_changes_nothing(tmp_path: Path, task: str, precision: str) -> None:
    options = ("spikes.loss.action=record", "checkpoint.keep_every_n_steps=10", f"training.precision={precision}")
    train(tiny(tmp_path, task, *QUICK, *options, "faults.inject=[nan_grad@40]"))
    before = tree(tmp_path / "run")
    found = replayed(tmp_path / "run", 1)
    assert tree(tmp_path / "run") == before
    assert found.step == 40
    recorded = found.incident.numbers
    # The checkpoint of step 40 is the state at the incident: the loss comes back to the bit, the NaN does not.
    assert found.experiments["same_batch"].loss == recorded.loss
    assert found.experiments["other_batch"] == recorded.other_batch
    assert found.experiments["fresh_moments"] == recorded.fresh_moments
    assert ("in_float32" in found.experiments) == (precision != "float32")
    answer = found.answer()
    assert answer["cause"] == found.incident.cause
    assert len(answer["experiments"]["same_batch"]["block_gradient_norms"]) == 2
    assert "model.layers.1" in found.text()
    assert "as it happened" in found.text()


def test_a_replay_takes_a_later_checkpoint_where_none_before_is_left(tmp_path: Path) -> None:
    train(tiny(tmp_path, "text", *QUICK, "faults.inject=[nan_grad@13]"))
    found = replayed(tmp_path / "run", 1)
    assert found.step > 13
    assert "steps after it" in found.text()


def test_a_replay_of_a_childs_incident_finds_the_checkpoint_of_its_parent(tmp_path: Path) -> None:
    train(tiny(tmp_path, "text", *QUICK, TWO), 36)
    go_on(tmp_path / "run", "checkpoint.max_rolling_checkpoints=2")
    assert newest(tmp_path / "run").name == "0002"
    assert replayed(tmp_path / "run", 2).step == 30


def test_a_replay_repeats_the_noise_of_a_corrupt_batch(tmp_path: Path) -> None:
    loud = ("spikes.loss.threshold=2.0", "spikes.loss.action=skip", "checkpoint.keep_every_n_steps=10")
    train(tiny(tmp_path, "text", *QUICK, *loud, "optimizer.lr=1e-2", "faults.inject=[corrupt_batch@40]"))
    noisy = next(one for one in found_in(tmp_path / "run") if one.batch == 40)
    found = replayed(tmp_path / "run", noisy.number)
    assert found.experiments["same_batch"].loss == pytest.approx(noisy.numbers.loss, rel=0.1)


@pytest.mark.parametrize("path", ["metrics.jsonl", "incidents", "incidents/incident_0009.json"])
def test_a_replay_of_something_else_is_refused(tmp_path: Path, path: str) -> None:
    train(tiny(tmp_path, "text", *QUICK, "faults.inject=[nan_grad@33]"))
    with pytest.raises(ConfigError):
        replay_incident(newest(tmp_path / "run") / path)


def test_a_replay_follows_no_link_into_another_run(tmp_path: Path) -> None:
    train(tiny(tmp_path, "text", *QUICK, "faults.inject=[nan_grad@33]"))
    one, other = tmp_path / "run", shutil.copytree(tmp_path / "run", tmp_path / "other")
    shutil.rmtree(newest(one) / incident.FOLDER)
    (newest(one) / incident.FOLDER).symlink_to(newest(other) / incident.FOLDER, target_is_directory=True)
    with pytest.raises(IntegrityError, match="incidents: expected a folder, found a symlink"):
        replayed(one, 1)


def test_a_replay_of_an_attempt_or_a_run_names_its_incidents(tmp_path: Path) -> None:
    train(tiny(tmp_path, "text", *QUICK, "faults.inject=[nan_grad@33, nan_grad@35]"))
    folder = newest(tmp_path / "run")
    names = ", ".join(str(folder / incident.name_of(number)) for number in (1, 2))
    for place in (folder, tmp_path / "run"):
        with pytest.raises(
            ConfigError, match=f"expected the file of an incident, found none there; there are {names}$"
        ):
            replay_incident(place)
    train(tiny(tmp_path, "text", "training.max_steps=1", run="calm"))
    with pytest.raises(ConfigError, match="there is none in"):
        replay_incident(tmp_path / "calm")


def test_the_evidence_of_no_cause_names_the_one_that_it_is_of(tmp_path: Path) -> None:
    train(tiny(tmp_path, "text", *QUICK, "checkpoint.keep_every_n_steps=10", "faults.inject=[nan_grad@40]"))
    found = replayed(tmp_path / "run", 1)
    assert found.incident.cause == "unknown"
    nearest = diagnose(found.incident.numbers).scores[0][0]
    lines = found.text().splitlines()
    assert ", which must be finite; step 40, batch 40; phase " in lines[0]
    assert lines[2].startswith(f"  for {nearest}, which comes nearest: ")
    assert lines[3].startswith(f"  against {nearest}, which comes nearest: ")
    assert "pretrain replay" not in lines[4]


def test_a_replay_refuses_other_data_and_altered_records(tmp_path: Path) -> None:
    train(tiny(tmp_path, "text", *QUICK, "faults.inject=[nan_grad@33]"))
    corpus = tmp_path / "corpus.txt"
    text = corpus.read_text()
    corpus.write_text(text.replace("green", "brown"))
    with pytest.raises(IntegrityError, match=r"is not the data of attempt 0001"):
        replayed(tmp_path / "run", 1)
    corpus.write_text(text)
    path = newest(tmp_path / "run") / incident.name_of(1)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"phase":"decay"', b'"phase":"delay"'))
    with pytest.raises(IntegrityError, match="altered"):
        replayed(tmp_path / "run", 1)
    # Altered together with its digest: the manifest knows.
    record = {key: value for key, value in json.loads(whole).items() if key != "self_sha256"} | {"batch": 10**15}
    path.write_bytes(canonical.encode(canonical.seal(record)))
    with pytest.raises(IntegrityError, match="verify-manifest"):
        replayed(tmp_path / "run", 1)
    (newest(tmp_path / "run") / "manifest.json").unlink()
    with pytest.raises(IntegrityError, match="expected batch 1000000000000000 to hold the samples"):
        replayed(tmp_path / "run", 1)


def test_a_replay_finds_data_that_has_moved(tmp_path: Path) -> None:
    train(tiny(tmp_path, "text", *QUICK, "faults.inject=[nan_grad@33]"))
    (tmp_path / "corpus.txt").rename(tmp_path / "moved.txt")
    path = newest(tmp_path / "run") / incident.name_of(1)
    moved = [f"data.{kind}.letters.path={tmp_path / 'moved.txt'}" for kind in ("train", "validation")]
    with pytest.raises(ConfigError):
        replay_incident(path)
    assert replay_incident(path, moved).experiments["same_batch"].loss is not None
    with pytest.raises(ConfigError, match=r"optimizer\.lr"):
        replay_incident(path, [*moved, "optimizer.lr=1"])


def test_a_replay_passes_over_what_was_undone(tmp_path: Path) -> None:
    """A checkpoint for a signal, in an earlier attempt, of a step that the run went back from afterwards."""
    often = ("checkpoint.checkpoint_every_n_steps=4", "training.max_steps=16", "spikes.warmup_steps=16")
    faults = "faults.inject=[loss_spike@40, nan_weight@6, nan_grad@10]"
    train(tiny(tmp_path, "text", *often, faults), 6)
    assert go_on(tmp_path / "run").verdict == "done"
    assert [step for step, _ in list_checkpoints(tmp_path / "run/attempts/0001")] == [0, 4, 6]
    hurt = next(one for one in found_in(tmp_path / "run") if one.batch == 10)
    assert replayed(tmp_path / "run", hurt.number).step != 6


def test_a_replay_beside_the_training_takes_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tiny(tmp_path, "text", *QUICK, "faults.inject=[nan_grad@33]"))
    real = checkpoint.load_checkpoint

    def pruned_meanwhile(place: Path, *destination: dict[str, torch.Tensor]) -> CheckpointRecord:
        if place.name == "step_00000050":
            shutil.rmtree(place)
        return real(place, *destination)

    monkeypatch.setattr(checkpoint, "load_checkpoint", pruned_meanwhile)
    assert replayed(tmp_path / "run", 1).step == 60
