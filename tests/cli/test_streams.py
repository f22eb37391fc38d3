"""Standard streams that are closed, full, left by their reader, or unable to hold a letter: the exit code stands."""

import contextlib
import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TextIO

import pytest

from pretrain import cli, lineage
from tests.cli.calling import flip, pretrain
from tests.tiny import write_config

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
LOST = "pretrain: stdout: the answer cannot be written: "
TRAIN = """
import os
from pretrain.cli import main
try:
    main()
finally:
    print(os.readlink("/proc/self/fd/2"))
"""


class Failing(io.StringIO):
    """A stream whose reader is gone, or whose disk is full."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def write(self, text: str) -> int:
        raise OSError(self._number, os.strerror(self._number))


def stream(kind: str) -> TextIO | None:
    """A standard stream that takes nothing."""
    if kind == "shut":
        shut = io.StringIO()
        shut.close()
        return shut
    return None if kind == "none" else Failing({"full": errno.ENOSPC, "gone": errno.EPIPE}[kind])


def code_of(out: TextIO | None, err: TextIO | None, *words: object) -> int:
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
        cli.application([str(word) for word in words], prog_name="pretrain")
    assert isinstance(ended.value.code, int)
    return ended.value.code


KINDS = ["none", "shut", "full", "gone"]


def test_a_closed_stderr_stops_no_training_and_its_number_is_given_to_no_file(tmp_path: Path) -> None:
    words = ["train", "--config", str(write_config(tmp_path)), "training.max_steps=2", "--json"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", TRAIN, *words], stdout=subprocess.PIPE, text=True
    )
    answer, second = done.stdout.splitlines()
    assert (done.returncode, json.loads(answer)["verdict"]) == (0, "done")
    assert second == os.devnull
    assert lineage.verify(tmp_path / "run").ok


@needs_full
def test_an_answer_that_is_lost_on_a_full_disk_is_one_message_and_no_second_fault_at_exit(finished: Path) -> None:
    with FULL.open("w") as full:
        words = [sys.executable, "-m", "pretrain", "verify-manifest", str(finished)]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (6, f"{LOST}No space left on device\n")


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_done_although_nobody_can_be_told(tmp_path: Path, kind: str) -> None:
    words = ["train", "--config", write_config(tmp_path), "training.max_steps=1", "--json", "--quiet"]
    err = io.StringIO()
    assert code_of(stream(kind), err, *words, f"run.dir={tmp_path / 'one'}") == 0
    assert err.getvalue().splitlines()[-1].startswith(LOST)
    assert "done at step 1" in err.getvalue()
    assert code_of(stream(kind), stream(kind), *words, f"run.dir={tmp_path / 'two'}") == 0
    assert lineage.verify(tmp_path / "two").ok


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_that_is_its_answer_fails_without_it(finished: Path, kind: str) -> None:
    step = finished / "attempts/0001/checkpoints/step_00000012"
    for words in (
        ["verify-manifest", finished],
        ["verify-manifest", finished, "--json"],
        ["verify-manifest", finished, "--sums"],
        ["inspect-checkpoint", step],
        ["--version"],
    ):
        err = io.StringIO()
        assert code_of(stream(kind), err, *words) == 6
        assert err.getvalue().startswith(LOST)
        assert err.getvalue().count("\n") == 1
    flip(step / "shard_00000.safetensors")
    assert code_of(stream(kind), stream(kind), "verify-manifest", finished) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_keeps_its_code(stopped: Path, tmp_path: Path, kind: str) -> None:
    for code, words in (
        (2, ["train", "--config", tmp_path / "none.yaml"]),
        (2, ["verify-manifest", tmp_path / "none", "--json"]),
        (3, ["resume", "--attempt", stopped, "--expect-sha256", "0" * 64, "--json"]),
    ):
        assert code_of(stream(kind), stream(kind), *words) == code


@needs_full
@pytest.mark.parametrize(("words", "code"), [(["trian"], 2), (["train"], 2), (["resume", "--attempt", "none"], 2)])
def test_words_that_are_no_command_keep_their_code(
    monkeypatch: pytest.MonkeyPatch, words: list[str], code: int
) -> None:
    with FULL.open("w") as full:
        for name in ("stderr", "__stderr__"):
            monkeypatch.setattr(sys, name, full)
        monkeypatch.setattr(sys, "argv", ["pretrain", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        monkeypatch.undo()
    assert ended.value.code == code


def test_help_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["pretrain", "--help"])
    monkeypatch.setattr(sys, "stdout", Failing(errno.ENOSPC))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code, capsys.readouterr().err) == (6, f"{LOST}No space left on device\n")


@pytest.mark.parametrize("encoding", ["ascii", "utf-8", "latin-1"])
def test_what_an_encoding_cannot_hold_is_escaped(finished: Path, encoding: str) -> None:
    moved = finished.rename(os.fsdecode(os.fsencode(finished) + "-ü→".encode() + b"\xff"))
    for words in (["verify-manifest", moved], ["verify-manifest", moved / "none"]):
        raw, raw_err = io.BytesIO(), io.BytesIO()
        out, err = (io.TextIOWrapper(one, encoding, "strict", write_through=True) for one in (raw, raw_err))
        assert code_of(out, err, *words) == (2 if words[1] != moved else 0)
        told = (raw_err if words[1] != moved else raw).getvalue()
        assert b"\\udcff" in told
        assert (b"\\xfc" in told) == (encoding == "ascii")


def test_a_path_speaks_to_no_terminal(finished: Path) -> None:
    moved = finished.rename(finished.with_name("a\x1b[31m\nb"))
    out = io.StringIO()
    assert code_of(out, io.StringIO(), "verify-manifest", moved) == 0
    assert "a\\x1b[31m\\nb" in out.getvalue()
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_json_is_json_in_every_encoding(tmp_path: Path, encoding: str) -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding, "strict", write_through=True)
    path = os.fsdecode(os.fsencode(tmp_path) + "/ü😀".encode() + b"\xff")
    assert code_of(out, io.StringIO(), "verify-manifest", path, "--json") == 2
    answer = json.loads(raw.getvalue())
    assert answer["reason"].startswith(f"{tmp_path}/ü😀\\udcff: expected")


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["resume", "--attempt"],
            ["verify-manifest"],
            ["verify-manifest", "--sums"],
            ["verify-manifest", "--lineage"],
        ),
        *(["inspect-checkpoint"], ["train", "--config"]),
    ],
)
def test_a_name_that_is_too_long(tmp_path: Path, words: list[str]) -> None:
    path = tmp_path / ("x" * 300)
    answer = pretrain(*words, path)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert answer.err.startswith(f"pretrain: {path}: ")
    assert "File name too long" in answer.err


def test_a_run_folder_and_a_file_whose_names_are_too_long(tmp_path: Path) -> None:
    config, long = write_config(tmp_path), tmp_path / ("x" * 300)
    for words in (f"run.dir={long}", f"run.dir={long / 'run'}", f"data.train.letters.path={long}"):
        answer = pretrain("train", "--config", config, words, "--json")
        assert (answer.code, answer.json["exit_code"], answer.err.count("\n")) == (2, 2, 1)
        assert "File name too long" in answer.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fault", "code", "text"),
    [
        (OSError(errno.EACCES, "Permission denied", "a/b"), 2, "a/b: Permission denied"),
        (OSError(errno.ELOOP, "Too many levels of symbolic links", b"a/\xff"), 2, "a/\\udcff: Too many levels"),
        (OSError(errno.EIO, "Input/output error", "a/b"), 6, "a/b: Input/output error"),
        (OSError(errno.EACCES, "Permission denied", 7), 6, "Permission denied"),
        (OSError(errno.EMFILE, "Too many open files"), 6, "Too many open files"),
        (OSError("what nobody says"), 6, "what nobody says"),
    ],
)
def test_what_the_system_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: OSError, code: int, text: str
) -> None:
    def fails(*_: object) -> None:
        raise fault

    monkeypatch.setattr(lineage, "verify", fails)
    answer = pretrain("verify-manifest", tmp_path, "--json")
    assert (answer.code, answer.json["exit_code"], answer.err.count("\n")) == (code, code, 1)
    assert answer.err.startswith(f"pretrain: {text}")
