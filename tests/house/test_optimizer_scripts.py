"""The two scripts that compare the optimizers: their bytes beside theory, and their losses at their best rates."""

import importlib.util
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pretrain.optimizers import OPTIMIZERS

SCRIPTS = Path(__file__).parents[2] / "scripts"
SMALL = ["model.width=64", "model.layers=1", "model.heads=2", "model.kv_heads=2", "model.ffn_width=96", "--rank=16"]


def script(name: str) -> Iterator[ModuleType]:
    """A script as a module, known by its name while a test runs, as its dataclasses need."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


@pytest.fixture
def of_bytes() -> Iterator[ModuleType]:
    yield from script("optimizer_bytes")


@pytest.fixture
def of_losses() -> Iterator[ModuleType]:
    yield from script("optimizer_losses")


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Call a script with these words; return its exit code and what it wrote to stdout."""

    def calling(module: ModuleType, *words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", [module.__name__, *words])
        code = module.main()
        return code, capsys.readouterr().out

    return calling


def test_the_bytes_of_every_optimizer_are_those_of_theory(of_bytes: ModuleType, call: Callable[..., Any]) -> None:
    code, text = call(of_bytes, *SMALL, "--json")
    answer = json.loads(text)
    assert (code, answer["same"]) == (0, True)
    assert {way.optimizer for way in of_bytes.ways(16).values()} == set(OPTIMIZERS)
    projected = {one["optimizer"]: one["projected"] for one in answer["rows"]}
    matrices = 4 * 64 * 64 + 2 * 64 * 96
    assert projected["galore rank 16"] == projected["apollo"] == projected["apollo_mini"] == matrices
    assert projected["adamw"] == 0


def test_bytes_that_are_not_those_of_theory_are_exit_code_1(
    of_bytes: ModuleType, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_bytes, "moments", lambda shape: shape.elements)
    code, text = call(of_bytes, *SMALL)
    assert code == 1
    assert text.endswith("WRONG: measured and theory differ\n")


def test_a_run_is_made_once_and_kept(of_losses: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = of_losses.Run("galore-half", of_losses.OPTIMIZERS["galore-half"][0], 3.0e-3, 1)
    figures = of_losses.measure(run, 2, tmp_path)
    assert 3 < figures.loss < math.log(256) + 0.1
    # Four matrices of attention and three of a gated feed-forward layer, in two layers.
    assert 2 * 4 * 64 * 64 < figures.projected < figures.parameters
    monkeypatch.setattr(of_losses, "start_attempt", None)
    assert of_losses.measure(run, 2, tmp_path) == figures


def test_every_optimizer_stands_at_its_best_rate(
    of_losses: ModuleType, call: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GaLore's is past the end of the grid of one of its settings, and is found there; SGD loses a seed."""
    made = []

    def measure(run: Any, steps: int, kept: Path) -> Any:
        made.append(run)
        best, floor = {"adamw": (3.0e-3, 1.9), "galore-half": (24.0e-3, 2.0), "sgd": (0.1, 3.0)}[run.name]
        later = 0.1 * of_losses.OPTIMIZERS[run.name].index(run.setting)
        loss = floor + later + abs(math.log2(run.lr / best)) + 0.01 * run.seed
        projected = 80 if run.name == "galore-half" else 0
        return of_losses.Figures(math.inf if (run.name, run.seed) == ("sgd", 2) else loss, 100, projected)

    monkeypatch.setattr(of_losses, "measure", measure)
    words = ["--workers=1", f"--kept={tmp_path}", "--only=adamw", "--only=galore-half", "--only=sgd"]
    code, text = call(of_losses, *words, "--seeds", "1", "2", "--json")
    adamw, galore, sgd = json.loads(text)["rows"]
    assert code == 1
    assert len(made) == len(set(made))
    assert (adamw["lr"], adamw["ratio"], adamw["bar"]) == (3.0e-3, 1.0, None)
    assert adamw["losses"] == pytest.approx([1.91, 1.92])
    assert galore["lr"] == pytest.approx(24.0e-3)
    assert [one["lr"] for one in galore["by_setting"]] == pytest.approx([24.0e-3] * 2)
    assert galore["ratio"] == pytest.approx(2.015 / 1.915)
    assert (galore["projected"], galore["bar"]) == (80, 1.03)
    assert (sgd["losses"], sgd["mean"], sgd["ratio"]) == ([3.01, None], None, None)

    code, text = call(of_losses, "--workers=1", f"--kept={tmp_path}", "--only=adamw")
    assert code == 0
    assert "adamw" in text
