"""`pretrain plan` as a person calls it: its answers, its picture, and what it refuses with exit code 2."""

import errno
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pretrain import syscalls
from pretrain.config import load, to_yaml
from pretrain.machine.signals import STOP_SIGNALS
from tests.cli.calling import contents, pretrain
from tests.tiny import write_config

QUICK = ["--widths", "16,32", "model.mup_base_width=16"]


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path)


def test_the_plan_begins_with_the_resolved_config_and_writes_nothing(config: Path) -> None:
    before = contents(config.parent)
    answer = pretrain("plan", "--config", config, "model.layers=3")
    assert answer.code == 0
    assert answer.out.startswith(to_yaml(load(config, ["model.layers=3"])))
    assert "\nparameters " in answer.out
    found = pretrain("plan", "--config", config, "--json").json
    assert {*found} == {"config", "parameters", "step", "run", "memory", "disk", "warnings"}
    assert contents(config.parent) == before


def test_the_coordinate_check_and_its_picture(config: Path, tmp_path: Path) -> None:
    picture = tmp_path / "check.svg"
    answer = pretrain("plan", "--config", config, "--coordinate-check", *QUICK, "--output", picture)
    assert answer.code == 0
    assert "standard: " in answer.out
    assert "mup: " in answer.out
    assert picture.read_text().startswith("<svg ")
    found = pretrain("plan", "--config", config, "--coordinate-check", *QUICK, "--json").json
    assert {*found["parametrizations"]} == {"standard", "mup"}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--widths", "16,32"], "--widths and --output are of the coordinate check: use --coordinate-check too"),
        (["--output", "x.svg"], "--widths and --output are of the coordinate check"),
        (["--coordinate-check", "--output", "x.png"], "--output: x.png must end in .svg"),
        (["--coordinate-check", "--widths", "32"], "--widths: expected two widths or more that rise"),
        (["--coordinate-check", "--widths", "32,33"], "model.heads: 2 does not divide model.width, 33"),
        (["--coordinate-check", "optimizer.optimizer_class=adafactor"], "how the learning rates of adafactor follow"),
        (["model.parametrization=mup", "optimizer.optimizer_class=sgd"], "model.parametrization: how the learning"),
        (["model.parametrization=muP"], "model.parametrization must be one of standard, mup; found 'muP'"),
        (["model.mup_base_width=1"], "model.mup_base_width must be a whole number from 2 to 131072"),
        (["data.train.letters.path=missing.txt"], "missing.txt: missing"),
    ],
)
def test_what_is_refused(config: Path, words: list[str], text: str) -> None:
    before = contents(config.parent)
    answer = pretrain("plan", "--config", config, *words)
    assert (answer.code, answer.out) == (2, ""), answer
    assert answer.err.startswith("pretrain: ")
    assert text in answer.err
    assert contents(config.parent) == before


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("no/x.svg", "/no is no folder; make it"),
        ("letters.txt/x.svg", "letters.txt is no folder"),
        ("y.svg", "a folder"),
    ],
)
def test_where_no_picture_can_lie_is_refused_before_a_step(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, text: str
) -> None:
    (tmp_path / "y.svg").mkdir()
    (tmp_path / "letters.txt").write_text("a")
    monkeypatch.setattr("pretrain.plan.widths.build_data", lambda _: pytest.fail("the check has begun"))
    answer = pretrain("plan", "--config", config, "--coordinate-check", *QUICK, "--output", tmp_path / place)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"pretrain: --output: {tmp_path / place}")
    assert text in answer.err


def test_where_nobody_may_write_is_refused_before_a_step(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pretrain.plan.asked.os.access", lambda path, *_, **__: Path(path) != tmp_path)
    monkeypatch.setattr("pretrain.plan.widths.build_data", lambda _: pytest.fail("the check has begun"))
    answer = pretrain("plan", "--config", config, "--coordinate-check", *QUICK, "--output", tmp_path / "x.svg")
    assert (answer.code, answer.out) == (2, "")
    assert f"{tmp_path} is not writable; choose another place" in answer.err


def test_a_disk_that_is_full_at_the_end_speaks_of_no_run(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(syscalls.System):
        def write(self, fd: int, data: memoryview) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(syscalls, "system", Full())
    answer = pretrain("plan", "--config", config, "--coordinate-check", *QUICK, "--output", tmp_path / "x.svg")
    assert (answer.code, answer.out) == (6, "")
    assert "the picture cannot be written: No space left on device; mend that or choose another place" in answer.err
    assert "resume" not in answer.err
    assert not (tmp_path / "x.svg").exists()
