"""Whether the best learning rate of a narrow model is that of a wide one: under muP it is, under standard it is not.

Trains both parametrizations at both widths over a grid of rates that are a factor of 2 apart, from the same data and
seeds, prints the losses and the best rates, and ends with 1 where one of the two claims does not hold.
"""

import argparse
import contextlib
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from pretrain import files
from pretrain.build import build_data, build_run
from pretrain.config import RunConfig, parse
from pretrain.gradients import accumulate, clip
from pretrain.optimizers import set_learning_rate
from pretrain.plan.chart import Panel, svg

CONFIG = """
run: {dir: runs/transfer}
training: {max_steps: 1, batch_size: 4}
task: {name: text}
data:
  sequence_length: 64
  train: {pydoc: {source: text, path: "builtin:pydoc", span: [0.0, 0.9]}}
  validation: {pydoc: {source: text, path: "builtin:pydoc", span: [0.9, 1.0]}}
model: {name: decoder, layers: 2, heads: 4, kv_heads: 4, init_std: 0.1, mup_base_width: 64}
optimizer: {optimizer_class: adamw}
scheduler: {scheduler_type: cosine, scheduler_warmup_ratio: 0.1}
"""
DEVICE = torch.device("cpu")
PARAMETRIZATIONS = ("mup", "standard")


def final_loss(config: RunConfig, last: int) -> float:
    """Return the mean training loss of the last steps of a run, in nats; infinity where it is not finite any more."""
    run = build_run(config, build_data(config), DEVICE)
    parameters = list(run.state.model.parameters())
    losses = []
    with contextlib.closing(run.state.loader):
        for step in range(config.training.max_steps):
            set_learning_rate(run.state.optimizer, run.learning_rate(step))
            batch = run.state.loader.next_step()
            loss, _ = accumulate(run.state.model, run.task, batch, DEVICE, contextlib.nullcontext())
            losses.append(float(loss))
            if not math.isfinite(losses[-1]):
                return math.inf
            clip(parameters, config.training.grad_clip_max_norm)
            run.state.optimizer.step()
    return sum(losses[-last:]) / last


def measure(arguments: argparse.Namespace) -> dict[str, dict[int, dict[int, float]]]:
    """Return the loss by parametrization, width and exponent of the rate, a mean over the seeds."""
    found: dict[str, dict[int, dict[int, float]]] = {}
    for parametrization in PARAMETRIZATIONS:
        for width in arguments.widths:
            curve = found.setdefault(parametrization, {}).setdefault(width, {})
            for exponent in range(arguments.lowest, arguments.highest + 1):
                started = time.monotonic()
                losses = [
                    final_loss(
                        parse(
                            CONFIG,
                            "transfer",
                            [
                                f"training.max_steps={arguments.steps}",
                                f"training.seed={seed}",
                                f"model.parametrization={parametrization}",
                                f"model.width={width}",
                                f"optimizer.lr={2.0**exponent}",
                            ],
                        ),
                        arguments.last,
                    )
                    for seed in range(1, arguments.seeds + 1)
                ]
                curve[exponent] = sum(losses) / len(losses)
                print(
                    f"{parametrization} width {width} rate 2^{exponent}: {curve[exponent]:.4f} nats, "
                    f"{time.monotonic() - started:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
    return found


def best(curve: dict[int, float]) -> int:
    """Return the exponent of the rate with the lowest loss."""
    return min(curve, key=lambda exponent: curve[exponent])


def table(found: dict[str, dict[int, dict[int, float]]], widths: Sequence[int]) -> str:
    """Return the losses as a table in Markdown, the best of each column in bold."""
    columns = [(name, width) for name in PARAMETRIZATIONS for width in widths]
    rows = ["| rate | " + " | ".join(f"{name}, {width}" for name, width in columns) + " |", "|---" * 5 + "|"]
    for exponent in found[PARAMETRIZATIONS[0]][widths[0]]:
        cells = []
        for name, width in columns:
            curve = found[name][width]
            cells.append(f"**{curve[exponent]:.3f}**" if best(curve) == exponent else f"{curve[exponent]:.3f}")
        rows.append(f"| 2^{exponent} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def picture(found: dict[str, dict[int, dict[int, float]]]) -> str:
    """Return the curves as an SVG picture, a panel for each parametrization, both to one scale."""
    losses = [loss for widths in found.values() for curve in widths.values() for loss in curve.values()]
    limits = (min(losses) - 0.05, min(losses) + 1.5)
    return svg(
        [
            Panel(
                title=name,
                x_label="learning rate",
                y_label="training loss, nats",
                lines={
                    f"width {width}": [(2.0**exponent, loss) for exponent, loss in curve.items()]
                    for width, curve in widths.items()
                },
                log_y=False,
                limits=limits,
            )
            for name, widths in found.items()
        ]
    )


def main() -> int:
    """Read the words of the command line, measure, and say whether both claims hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs=2, default=[64, 512])
    parser.add_argument("--lowest", type=int, default=-11, help="exponent of the lowest rate")
    parser.add_argument("--highest", type=int, default=-4, help="exponent of the highest rate")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--last", type=int, default=10, help="steps at the end whose mean loss counts")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--output", type=Path, help="an SVG file to leave the curves in")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(arguments)
    rates = {name: [best(found[name][width]) for width in arguments.widths] for name in PARAMETRIZATIONS}
    steps = {name: abs(wide - narrow) for name, (narrow, wide) in rates.items()}
    holds = steps["mup"] <= 1 < steps["standard"]
    if arguments.output is not None:
        files.publish(arguments.output, picture(found).encode())
    if arguments.json:
        print(json.dumps({"losses": found, "best": rates, "holds": holds}))
    else:
        print(table(found, arguments.widths))
        for name, (narrow, wide) in rates.items():
            print(
                f"{name}: best 2^{narrow} at width {arguments.widths[0]}, 2^{wide} at width {arguments.widths[1]}: "
                f"{steps[name]} steps of the grid apart"
            )
        print("both claims hold" if holds else "NOT shown: expected at most 1 step for mup, and more for standard")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
