"""The commands of the cool-down in docs/operations.md, word for word but for the config and the place."""

import re
import shlex
from pathlib import Path

from tests.cli.calling import pretrain
from tests.tiny import write_config

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"


def test_the_example_of_a_cool_down(tmp_path: Path) -> None:
    section = DOCUMENT.read_text().partition("## Cooling down")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    small = ["model.layers=1", "model.width=8", "validation.validate_every_n_steps=20"]
    answers = []
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line.replace("runs/", f"{tmp_path}/"))
        assert words.pop(0) == "pretrain"
        if words[0] == "train":
            words[words.index("--config") + 1] = str(write_config(tmp_path))
            words += small
        answers.append(pretrain(*words))
    assert [answer.code for answer in answers] == [0, 0, 0, 0], answers
    assert "migrated at step 40, another run from there on: " in answers[2].out
    assert "scheduler.scheduler_total_steps 100000 -> 50" in answers[2].out
    assert "jumps" not in answers[1].err
    attempts = tmp_path / "stable" / "attempts"
    rates = {}
    for number in (1, 2, 3):
        lines = (attempts / f"{number:04d}" / "metrics.jsonl").read_text()
        rates[number] = [float(rate) for rate in re.findall(r'"learning_rate":([0-9.e-]+)', lines)]
    assert {number: len(found) for number, found in rates.items()} == {1: 40, 2: 50, 3: 60}
    assert set(rates[3][10:]) == {0.01}
    assert rates[2][:41] == rates[3][:41]
    assert rates[2][41:] == sorted(rates[2][41:], reverse=True)
    assert rates[2][42] < 0.006  # 1-sqrt: after two of ten steps less than six tenths are left
