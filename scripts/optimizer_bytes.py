"""Measure the bytes of every optimizer's state on one model, beside what the formulas of docs/design.md come to.

The model is that of configs/gpt2-124m.yaml with all numbers of GPT-2 small, which are `model.size=gpt2-124m`. With
bytes for tokens, as the program has them, its embedding is small; the 124 million count `--vocabulary 50257`.
Measured is the memory behind the tensors that a checkpoint would hold, one optimizer after the other.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from pretrain.batch import InputSpec
from pretrain.config import load
from pretrain.models import MODELS, roles
from pretrain.optimizers import OPTIMIZERS, flat_state

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "gpt2-124m.yaml"
# The config asks for data and a GPU, and neither is needed here.
OVERRIDES = ("model.size=gpt2-124m", "training.device=cpu", "training.precision=float32", "data.train.text.path=none")
BYTES = 4  # of an element: parameters are float32, and so is all of the state


@dataclass(frozen=True)
class Shape:
    """A parameter. hidden: it is a matrix of an attention or feed-forward layer."""

    size: tuple[int, ...]
    hidden: bool

    @property
    def elements(self) -> int:
        """Return how many there are."""
        count = 1
        for length in self.size:
            count *= length
        return count


def moments(shape: Shape) -> int:
    """Return the elements of AdamW's two moments and its count of steps."""
    return 2 * shape.elements + 1


def factored(shape: Shape) -> int:
    """Return the elements of Adafactor's row and column means, or of the variance of a vector, and the count."""
    return (sum(shape.size) if len(shape.size) == 2 else shape.elements) + 1


def in_rank(rank: int, shape: Shape) -> int:
    """Return the elements of two moments of rank x longer side, a basis of rank x shorter side, and the count."""
    return 2 * rank * max(shape.size) + rank * min(shape.size) + 1


@dataclass(frozen=True)
class Way:
    """A way to use an optimizer: its row, what is given to it, the formula of theory in words and over a shape.

    projects: whether it keeps the moments of this parameter in a space of lower dimension.
    """

    optimizer: str
    words: str
    elements: Callable[[Shape], int]
    given: Mapping[str, Any]
    projects: Callable[[Shape], bool] = lambda shape: False


def ways(rank: int) -> dict[str, Way]:
    """Return every way that is measured, GaLore of this rank; m x n is a matrix and m its longer side."""

    def wide(shape: Shape, least: int) -> bool:
        return shape.hidden and min(shape.size) > least

    def quarter(shape: Shape) -> int:
        return min(shape.size) // 4

    def galore(shape: Shape) -> bool:
        return wide(shape, rank)

    def over_adamw(shape: Shape) -> int:
        return in_rank(rank, shape) if galore(shape) else moments(shape)

    def over_adafactor(shape: Shape) -> int:
        low = max(shape.size) + rank + rank * min(shape.size) + 1
        return low if galore(shape) else factored(shape)

    def apollo(shape: Shape) -> int:
        return in_rank(quarter(shape), shape) + 1 if shape.hidden else moments(shape)

    def apollo_mini(shape: Shape) -> int:
        return in_rank(1, shape) + 1 if wide(shape, 1) else moments(shape)

    low = {"use_galore": True, "galore_rank": rank}
    return {
        "adamw": Way("adamw", "8 m n + 4", moments, {}),
        "sgd": Way("sgd", "4 m n", lambda shape: shape.elements, {}),
        "lion": Way("lion", "4 m n", lambda shape: shape.elements, {}),
        "muon": Way("muon", "hidden 4 m n, others adamw", lambda one: one.elements if one.hidden else moments(one), {}),
        "adafactor": Way("adafactor", "4 (m + n) + 4", factored, {}),
        f"galore rank {rank}": Way("adamw", "hidden 8 r m + 4 r n + 4, others adamw", over_adamw, low, galore),
        f"galore rank {rank} over adafactor": Way(
            "adafactor", "hidden 4 (m + r) + 4 r n + 4, others adafactor", over_adafactor, low, galore
        ),
        "apollo": Way(
            "apollo", "hidden 8 r m + 4 r n + 8, r = n/4, others adamw", apollo, {}, lambda shape: shape.hidden
        ),
        "apollo_mini": Way(
            "apollo_mini", "hidden 8 m + 4 n + 8, others adamw", apollo_mini, {}, lambda shape: wide(shape, 1)
        ),
    }


def state_bytes(optimizer: Any) -> int:
    """Return the bytes of memory behind the state, that of tensors which share it once."""
    storages = (tensor.untyped_storage() for tensor in flat_state(optimizer).values())
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def measure(model: nn.Module, rank: int) -> list[dict[str, Any]]:
    """Return a row for every way to use an optimizer on this model: the bytes of its state, measured and in theory."""
    named, parts = list(model.named_parameters()), roles(model)
    shapes = [Shape(tuple(one.shape), parts[name] in ("attention", "feed_forward")) for name, one in named]
    rows = []
    for title, way in ways(rank).items():
        entry = OPTIMIZERS[way.optimizer]
        found = state_bytes(entry.build(entry.settings(**way.given), named, parts))
        rows.append(
            {
                "optimizer": title,
                "projected": sum(shape.elements for shape in shapes if way.projects(shape)),
                "measured": found,
                "theory": BYTES * sum(way.elements(shape) for shape in shapes),
                "of_parameters": found / (BYTES * sum(shape.elements for shape in shapes)),
                "formula": way.words,
            }
        )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as lines of one width."""
    lines = [
        f"{'optimizer':30}  {'projected':>11}  {'measured':>13}  {'theory':>13}  {'of weights':>10}  a matrix m x n"
    ]
    for one in rows:
        lines.append(
            f"{one['optimizer']:30}  {one['projected']:11,}  {one['measured']:13,}  {one['theory']:13,}  "
            f"{one['of_parameters']:10.4f}  {one['formula']}"
        )
    return "\n".join(lines)


def main() -> int:
    """Print the table and return the exit code: 1 where a measured figure is not that of theory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the config, such as model.layers=2")
    parser.add_argument("--vocabulary", type=int, default=256, help="tokens that the embedding has (%(default)s)")
    parser.add_argument("--rank", type=int, default=128, help="of GaLore (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    arguments = parser.parse_intermixed_args()

    config = load(CONFIG, [*OVERRIDES, *arguments.overrides])
    spec = InputSpec("tokens", arguments.vocabulary)
    model = MODELS[config.model.name].build(config.model.settings, spec, config.data.sequence_length, 1)
    parameters = sum(one.numel() for one in model.parameters())
    rows = measure(model, arguments.rank)
    same = all(one["measured"] == one["theory"] for one in rows)
    if arguments.json:
        print(json.dumps({"vocabulary": arguments.vocabulary, "parameters": parameters, "same": same, "rows": rows}))
    else:
        print(f"{parameters:,} parameters, a vocabulary of {arguments.vocabulary:,}; bytes of state in float32\n")
        print(table(rows))
        print("\nmeasured is theory in every row" if same else "\nWRONG: measured and theory differ")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
