"""The script behind `make quickstart`, and the commands of the targets that call it."""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "quickstart.py"
RESULT = {
    "attempt": 1,
    "step": 3,
    "checkpoint": {"step": 3, "record_sha256": "ab" * 32},
    "validation": {"signals": {"nmse": 0.5, "samples": 4, "classes": {"bpsk": {"nmse": 0.25, "samples": 2}}}},
}
Words = tuple[str, ...]


@pytest.fixture
def quickstart(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Words]]:
    """The script's main, with a `pretrain` that only answers; returns the commands that it called for."""
    namespace: dict[str, object] = {"__name__": "quickstart", "__doc__": ""}
    exec(compile(SCRIPT.read_text(), SCRIPT, "exec"), namespace)
    called: list[Words] = []

    def pretrain(*words: str, answer: bool = False) -> str:
        called.append(words)
        return json.dumps(RESULT) if words[0] == "train" else "\n".join(f"line {n}" for n in range(20))

    def call(*words: str) -> list[Words]:
        called.clear()
        monkeypatch.setattr(sys, "argv", ["quickstart.py", *words])
        namespace["main"]()  # type: ignore[operator]
        return list(called)

    namespace["pretrain"] = pretrain
    return call


def test_overrides_may_stand_anywhere(quickstart: Callable[..., list[Words]], tmp_path: Path) -> None:
    run = tmp_path / "run"
    attempt = f"{run}/attempts/0001"
    option = ["--run-dir", str(run)]
    for words in (
        ["c.yaml", "a.b=1", "c=2", *option],
        ["c.yaml", *option, "a.b=1", "c=2"],
        [*option, "c.yaml", "a.b=1", "c=2"],
    ):
        assert quickstart(*words) == [
            ("train", "--config", "c.yaml", f"run.dir={run}", "a.b=1", "c=2", "--json"),
            ("verify-manifest", attempt),
            ("inspect-checkpoint", f"{attempt}/checkpoints/step_00000003"),
        ]


def test_it_shows_the_head_of_the_tensors_and_the_figures(
    quickstart: Callable[..., list[Words]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quickstart("c.yaml", "--run-dir", str(tmp_path / "run"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:7] == [*(f"line {n}" for n in range(6)), "  ... and 14 tensors more"]
    assert lines[-2:] == ["  signals: nmse 0.5000", "    bpsk: nmse 0.250"]


def test_an_earlier_run_is_left_as_it_is(quickstart: Callable[..., list[Words]], tmp_path: Path) -> None:
    for name in ("run", "run-2"):
        (tmp_path / name).mkdir()
    train, *_ = quickstart("c.yaml", "--run-dir", str(tmp_path / "run"))
    assert f"run.dir={tmp_path / 'run-3'}" in train


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_the_recording_that_make_adsb_is_given_reaches_the_script(quickstart: Callable[..., list[Words]]) -> None:
    command = ["make", "--no-print-directory", "-n", "adsb", "RECORDING=a b.cu8", "RUNS=none"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    (line,) = [line for line in said.splitlines() if "quickstart.py" in line]
    words = shlex.split(line)
    train, *_ = quickstart(*words[words.index("scripts/quickstart.py") + 1 :])
    assert train[:3] == ("train", "--config", "configs/iq-adsb.yaml")
    assert train[3:] == ("run.dir=none/iq-adsb", "data.train.adsb.path=a b.cu8", "--json")
