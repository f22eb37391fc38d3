"""An optimizer is one file and one row: shown in a copy of the package, trained, stopped, resumed."""

import difflib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.tiny import write_config

PACKAGE = Path(__file__).parents[2] / "pretrain"
TABLE = "optimizers/__init__.py"
FILE = "optimizers/plain_sgd.py"
SOURCE = '''"""Plain stochastic gradient descent, with momentum."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import Parameter

from pretrain.registry import limited


@dataclass(frozen=True)
class PlainSgdSettings:
    """Stochastic gradient descent.

    lr: peak learning rate; the scheduler multiplies it.
    momentum: decay rate of the running sum of gradients.
    """

    lr: float = limited(0.1, above=0)
    momentum: float = limited(0.9, above=0, below=1)


def build_plain_sgd(
    settings: PlainSgdSettings, named_parameters: Sequence[tuple[str, Parameter]], roles: Mapping[str, str]
) -> torch.optim.Optimizer:
    """One group; the momentum of every parameter exists from here on."""
    group = {"params": list(named_parameters), "lr_multiplier": 1.0}
    optimizer = torch.optim.SGD([group], lr=settings.lr, momentum=settings.momentum)
    for _, parameter in named_parameters:
        optimizer.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter, requires_grad=False)}
    return optimizer
'''
IMPORT = "from pretrain.optimizers.plain_sgd import PlainSgdSettings, build_plain_sgd\n"
ROW = '    "plain_sgd": Entry(PlainSgdSettings, build_plain_sgd),\n'
# Trains 8 steps in one go, and again with a stop after 3; prints the two ends.
PROGRAM = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
import pretrain
from pretrain.attempt import resume_attempt, start_attempt
from pretrain.config import load
from pretrain.evidence import inspection
from pretrain.machine.signals import StopRequest
from pretrain.telemetry.sink import StepRow

class StopAfter:
    def __init__(self, stop, step):
        self.stop, self.step = stop, step
    def emit(self, event):
        if isinstance(event, StepRow) and event.step == self.step:
            self.stop.name = "SIGTERM"
    def close(self):
        pass

def settings(name):
    words = [f"run.dir={name}", "training.max_steps=8", "optimizer.optimizer_class=plain_sgd", "optimizer.lr=0.05"]
    return load("text.yaml", words)

whole = start_attempt(settings("whole"), StopRequest(), [])
stop = StopRequest()
stopped = start_attempt(settings("stopped"), stop, [StopAfter(stop, 3)])
resumed = resume_attempt(Path("stopped"), [], StopRequest(), [])
held = inspection.inspect(Path("whole/attempts/0001/checkpoints/step_00000008"))
print(json.dumps({
    "package": pretrain.__file__,
    "verdicts": [whole.verdict, stopped.verdict, resumed.verdict],
    "ends": [whole.checkpoint.record_sha256, resumed.checkpoint.record_sha256],
    "tensors": [row["name"] for row in held["tensors"]],
    "losses": [json.loads(line).get("loss") for line in open("whole/attempts/0001/metrics.jsonl")],
}))
"""


def test_one_file_and_one_row(tmp_path: Path) -> None:
    copy = shutil.copytree(PACKAGE, tmp_path / "pretrain", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / FILE).write_text(SOURCE)
    before = (copy / TABLE).read_text()
    row = next(line for line in before.splitlines(keepends=True) if line.startswith('    "adamw": '))
    imported = next(line for line in before.splitlines(keepends=True) if line.startswith("from pretrain.optimizers."))
    (copy / TABLE).write_text(before.replace(row, row + ROW).replace(imported, imported + IMPORT))
    assert changed_files(copy) == {TABLE, FILE}
    changes = difflib.ndiff(before.splitlines(keepends=True), (copy / TABLE).read_text().splitlines(keepends=True))
    assert [line for line in changes if line[0] in "+-"] == [f"+ {IMPORT}", f"+ {ROW}"]

    config = write_config(tmp_path)
    config.write_text(config.read_text().replace("optimizer: {optimizer_class: adamw, lr: 1.0e-2}\n", ""))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["package"] == str(copy / "__init__.py")
    assert answer["verdicts"] == ["done", "interrupted", "done"]
    assert answer["ends"][0] == answer["ends"][1]
    assert "optimizer.model.norm.weight.momentum_buffer" in answer["tensors"]
    losses = [loss for loss in answer["losses"] if loss is not None]
    assert losses[-1] < losses[0]


def changed_files(copy: Path) -> set[str]:
    """The files of the copy that are not those of the package, byte for byte."""
    names = {path.relative_to(folder).as_posix() for folder in (PACKAGE, copy) for path in folder.rglob("*.py")}
    return {name for name in names if read(PACKAGE / name) != read(copy / name)}


def read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
