"""What is refused: the exit code, a message that says where and what to do, and nothing written."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pretrain.lock import Lock
from tests.cli.calling import Answer, contents, flip, pretrain
from tests.tiny import go_on, write_config


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path)


def assert_refused(answer: Answer, code: int, *texts: str) -> None:
    assert (answer.code, answer.out) == (code, ""), answer
    assert answer.err.startswith("pretrain: ")
    assert "Traceback" not in answer.err
    for text in texts:
        assert text in answer.err, answer.err


@pytest.mark.parametrize(
    ("override", "texts"),
    [
        ("optimizer.lrr=0.1", ["override optimizer.lrr=0.1", "is not a setting of adamw; did you mean lr?"]),
        ("optimiser.lr=0.1", ["optimiser is not a section; did you mean optimizer?"]),
        ("training.max_steps=1.5", ["training.max_steps must be a whole number of at least 1; found 1.5"]),
        ("optimizer.lr=.nan", ["optimizer.lr must be a finite number above 0"]),
        ("training.max_steps=999999999999999999", ["training.max_steps is 999999999999999999: with 64 positions"]),
        ("training.device=gpu", ["training.device must be one of cpu, cuda; found 'gpu'"]),
        ("model.heads=3", ["model.heads: 3 does not divide model.width, 16"]),
        ("parallel.every=5", ["parallel is not a section; it is not in this version"]),
        ("training.max_steps", ["expected KEY=VALUE, as in training.max_steps=20"]),
        ("data.train.letters.path=missing.txt", ["missing.txt: missing"]),
        ("data.sequence_length=100000", ["corpus.txt: found", "shorten data.sequence_length or widen the span"]),
        ("telemetry.csv_log_path=manifest.json", ["telemetry.csv_log_path must end in .csv"]),
        ("telemetry.csv_log_path=logs/x.csv", ["telemetry.csv_log_path must be a plain file name"]),
        ("telemetry.csv_log_path=/no/such/x.csv", ["the folder /no/such does not exist"]),
    ],
)
def test_a_setting_that_cannot_be(config: Path, override: str, texts: list[str]) -> None:
    before = contents(config.parent)
    assert_refused(pretrain("train", "--config", config, override), 2, *texts)
    assert contents(config.parent) == before


def test_every_fault_is_named_at_once(config: Path) -> None:
    answer = pretrain("train", "--config", config, "optimizer.lrr=1", "training.seed=-1", "model.widht=8")
    assert_refused(answer, 2, "optimizer.lrr", "training.seed must be", "did you mean width?")


def test_a_config_that_is_not_there(tmp_path: Path) -> None:
    answer = pretrain("train", "--config", tmp_path / "none.yaml")
    assert_refused(answer, 2, "none.yaml: cannot be opened: No such file", "expected a YAML file")


def test_a_run_folder_under_a_file(config: Path) -> None:
    before = contents(config.parent)
    for place in (config, config / "deep" / "run"):
        answer = pretrain("train", "--config", config, f"run.dir={place}")
        assert_refused(answer, 2, f"run.dir: {config} is no folder; choose another run.dir")
    assert contents(config.parent) == before


def test_a_run_folder_under_a_dangling_link(config: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    answer = pretrain("train", "--config", config, f"run.dir={tmp_path / 'link' / 'run'}")
    assert_refused(answer, 2, "link is no folder")


@pytest.mark.parametrize("words", [["--json"], ["--lineage"], ["--expect-sha256", "0" * 64]])
def test_sums_stand_alone(finished: Path, words: list[str]) -> None:
    answer = pretrain("verify-manifest", finished, "--sums", *words)
    assert (answer.code, answer.out[:1]) == (2, "{" if words == ["--json"] else "")
    assert "--sums prints checksums and checks nothing: use it without --json, --lineage and" in answer.err


def test_a_printed_config_is_no_json(config: Path) -> None:
    answer = pretrain("train", "--config", config, "--print-config", "--json")
    assert (answer.code, answer.json["exit_code"]) == (2, 2)
    assert "--print-config prints YAML: use it without --json" in answer.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there(config: Path) -> None:
    assert_refused(pretrain("train", "--config", config, "training.device=cuda"), 2, "PyTorch sees no CUDA device")
    assert not (config.parent / "run").exists()


@pytest.mark.parametrize("words", [["train"], ["trian"], ["train", "--confg", "x"], ["resume"], ["verify-manifest"]])
def test_words_that_are_no_command(words: list[str]) -> None:
    answer = pretrain(*words)
    assert (answer.code, answer.out) == (2, "")
    assert "Usage: pretrain" in answer.err


def test_a_run_is_not_trained_twice(made: Path, finished: Path) -> None:
    before = contents(finished)
    answer = pretrain("train", "--config", made / "text.yaml", f"run.dir={finished}")
    assert_refused(answer, 2, "already holds attempts", f"pretrain resume --attempt {finished}", "another run.dir")
    assert contents(finished) == before


@pytest.mark.parametrize("command", [["resume", "--attempt"], ["verify-manifest"], ["inspect-checkpoint"]])
def test_a_path_that_means_nothing(tmp_path: Path, command: list[str]) -> None:
    assert_refused(pretrain(*command, tmp_path / "nothing"), 2, "nothing", "expected a")


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("optimizer.lr=0.02", "optimizer.lr was 0.01 and would become 0.02; a resume keeps it"),
        ("training.max_steps=8", "training.max_steps was 12 and would become 8; a resume can only raise it"),
        ("checkpoint.checkpoint_every_n_steps=3", "checkpoint.checkpoint_every_n_steps was 4"),
    ],
)
def test_a_resume_keeps_its_settings(stopped: Path, override: str, text: str) -> None:
    before = contents(stopped)
    assert_refused(pretrain("resume", "--attempt", stopped, override), 2, text)
    assert contents(stopped) == before


def test_a_resume_keeps_its_data(stopped: Path, made: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_bytes((made / "corpus.txt").read_bytes().replace(b"green", b"brown"))
    before = contents(stopped)
    answer = pretrain("resume", "--attempt", stopped, f"data.train.letters.path={other}")
    assert_refused(answer, 3, "data.train.letters", "other.txt is not the data of attempt 0001")
    assert contents(stopped) == before


def test_a_parent_that_does_not_verify(stopped: Path) -> None:
    shard = max(stopped.rglob("*.safetensors"))
    flip(shard)
    before = contents(stopped)
    attempt = stopped / "attempts" / "0001"
    refused = pretrain("resume", "--attempt", stopped, "--checkpoint", 6)
    assert_refused(refused, 3, str(shard), "expected SHA-256")
    assert f"`pretrain resume --attempt {attempt} --checkpoint 4` goes on from the one before it\n" in refused.err
    refused = pretrain("resume", "--attempt", stopped, "--require-latest")
    assert_refused(refused, 3, str(shard), "expected SHA-256")
    assert contents(stopped) == before
    said = pretrain("verify-manifest", stopped).out
    over = "passes over the checkpoints of steps 6 and goes on from that of step 4"
    assert f"the attempt is unfinished, and `pretrain resume` {over}" in said
    assert "goes on from it" not in said


@pytest.mark.parametrize("name", ["shard_00000.safetensors", "checkpoint.json"])
def test_a_damaged_checkpoint_is_passed_over_and_the_run_goes_on_before_it(
    stopped: Path, finished: Path, name: str
) -> None:
    flip(stopped / "attempts" / "0001" / "checkpoints" / "step_00000006" / name)
    answer = pretrain("resume", "--attempt", stopped, "--json", "--quiet")
    assert (answer.json["verdict"], answer.json["step"]) == ("done", 12)
    assert "step_00000006 does not verify: " in answer.err
    assert pretrain("verify-manifest", stopped, "--lineage").code == 0
    ends = [one / "checkpoints" / "step_00000012" for one in (stopped / "attempts/0002", finished / "attempts/0001")]
    assert pretrain("inspect-checkpoint", ends[0], "--compare", ends[1], "--json").json["differs"] == []


def test_the_checkpoint_that_a_child_began_from_is_named_where_nothing_else_is_left(stopped: Path) -> None:
    assert go_on(stopped, stop_after=1).verdict == "interrupted"
    (own,) = (stopped / "attempts" / "0002" / "checkpoints").iterdir()
    parent = stopped / "attempts" / "0001"
    flip(own / "shard_00000.safetensors")
    flip(parent / "checkpoints" / "step_00000006" / "shard_00000.safetensors")
    before = contents(stopped)
    refused = pretrain("resume", "--attempt", stopped)
    assert_refused(refused, 3, "step_00000006/shard_00000.safetensors", "expected SHA-256")
    assert f"`pretrain resume --attempt {parent} --checkpoint 4` goes on from the one before it\n" in refused.err
    assert contents(stopped) == before
    assert pretrain("resume", "--attempt", parent, "--checkpoint", 4, "--quiet").code == 0


def test_what_a_person_saved_over_a_finished_attempt_is_refused_with_advice(finished: Path) -> None:
    flip(finished / "attempts" / "0001" / "telemetry.csv")
    answer = pretrain("resume", "--attempt", finished, "training.max_steps=13")
    assert_refused(answer, 3, "changed: telemetry.csv", "is bound, telemetry.csv among it: put back what it names")


def test_another_parent_than_was_expected(stopped: Path) -> None:
    answer = pretrain("resume", "--attempt", stopped, "--expect-sha256", "0" * 64)
    assert_refused(answer, 3, "expected the parent's record to have SHA-256 " + "0" * 64)


@pytest.mark.parametrize("given", ["zz", "", "0" * 63, "g" * 64])
def test_a_hash_that_is_none(stopped: Path, given: str) -> None:
    for words in (["resume", "--attempt", stopped], ["verify-manifest", stopped]):
        answer = pretrain(*words, "--expect-sha256", given)
        assert_refused(answer, 2, f"--expect-sha256: expected 64 hex digits, found {given!r}")
    assert [path.name for path in (stopped / "attempts").iterdir()] == ["0001"]


def test_other_surroundings_where_bits_must_be_the_same(stopped: Path) -> None:
    answer = pretrain("resume", "--attempt", stopped, "--require-bit-exact", "training.threads=2")
    torch.set_num_threads(1)
    assert_refused(answer, 2, "--require-bit-exact: threads was 1, is 2")
    assert sorted(path.name for path in (stopped / "attempts").iterdir()) == ["0001"]


@pytest.mark.parametrize("command", ["train", "resume"])
def test_busy_while_another_process_writes_the_run(made: Path, stopped: Path, tmp_path: Path, command: str) -> None:
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    run = fresh if command == "train" else stopped
    target = ["--config", made / "text.yaml", f"run.dir={run}"] if command == "train" else ["--attempt", run]
    with Lock.acquire(run / "run.lock", "the test"):
        before = contents(run)
        assert_refused(pretrain(command, *target), 7, str(run), "another process writes this run")
        assert contents(run) == before


def test_a_refusal_as_json(config: Path, finished: Path) -> None:
    refused = pretrain("train", "--config", config, "optimizer.lrr=1", "--json")
    assert refused.json == {
        "verdict": "failed",
        "exit_code": 2,
        "reason": "override optimizer.lrr=1: optimizer.lrr is not a setting of adamw; did you mean lr?",
    }
    shutil.rmtree(finished / "attempts/0001/checkpoints/step_00000012")
    broken = pretrain("resume", "--attempt", finished, "--json")
    assert broken.json["exit_code"] == broken.code == 3


def test_a_csv_of_other_columns_is_refused_before_the_attempt_exists(config: Path, tmp_path: Path) -> None:
    csv = tmp_path / "rows.csv"
    csv.write_text("step,loss\n1,2.0\n")
    words = [f"telemetry.csv_log_path={csv}", "telemetry.csv_rotate_on_schema_change=false"]
    assert_refused(pretrain("train", "--config", config, *words), 2, "telemetry.csv_log_path", "other columns")
    assert not (tmp_path / "run").exists()
    assert csv.read_text() == "step,loss\n1,2.0\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["train"], "Missing option '--config'."),
        (["train", "--jsn"], "No such option: --jsn"),
        (["trian"], "No such command 'trian'. Did you mean 'train'?"),
        (["resume", "--attempt", "x", "--checkpoint", "last"], "Invalid value for '--checkpoint'"),
        (["verify-manifest"], "Missing argument"),
    ],
)
def test_words_that_no_command_takes_have_an_answer_too(words: list[str], reason: str) -> None:
    """Also as JSON, which a script reads whatever became of its command."""
    for as_json in ([], ["--json"]):
        ended = subprocess.run(
            [sys.executable, "-m", "pretrain", *words, *as_json], capture_output=True, text=True, timeout=60
        )
        assert ended.returncode == 2
        assert f"Error: {reason}" in ended.stderr
        if as_json:
            answer = json.loads(ended.stdout)
            assert (answer["verdict"], answer["exit_code"]) == ("failed", 2)
            assert answer["reason"].startswith(reason)
        else:
            assert ended.stdout == ""


def test_a_resume_that_names_another_folder_is_refused_and_one_that_names_its_own_is_not(tmp_path: Path) -> None:
    assert pretrain("train", "--config", write_config(tmp_path), "--quiet").code == 0
    run = tmp_path / "run"
    moved = run.rename(tmp_path / "moved")
    longer = "training.max_steps=14"
    before = contents(moved)
    answer = pretrain("resume", "--attempt", moved, longer, f"run.dir={tmp_path / 'elsewhere'}")
    assert_refused(answer, 2, f"run.dir: a resume opens its attempt in the run that it goes on with, {moved}, found")
    assert contents(moved) == before
    assert not (tmp_path / "elsewhere").exists()
    assert pretrain("resume", "--attempt", moved, longer, f"run.dir={moved}", "--quiet").code == 0


def test_a_folder_that_is_given_brings_no_module(tmp_path: Path) -> None:
    """Python begins with the folder that it is started in, which may be the run that somebody has sent."""
    for name in ("typer", "torch", "json", "site"):
        (tmp_path / f"{name}.py").write_text("open('canary', 'w')\n")
    ended = subprocess.run(
        [sys.executable, "-m", "pretrain", "verify-manifest", "."], cwd=tmp_path, capture_output=True, timeout=60
    )
    assert (ended.returncode, (tmp_path / "canary").exists()) == (2, False), ended.stderr


def test_a_current_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    config, gone = write_config(tmp_path), tmp_path / "gone"
    gone.mkdir()
    words = [sys.executable, "-m", "pretrain", "train", "--config", str(config), "--json"]
    ended = subprocess.run(
        ["sh", "-c", 'rmdir ../gone && exec "$@"', "sh", *words], cwd=gone, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2, ended.stderr
    assert json.loads(ended.stdout)["reason"].startswith("the current folder has been removed")
