"""A deep post-norm model explodes where a pre-norm one does not, and the incident names the cause: exploding_depth.

Trains both under the same settings, prints what became of them and each incident with its cause, and ends with 1 where
the post-norm run has no incident of that cause or the pre-norm run has any.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from pretrain.attempt import start_attempt
from pretrain.config import parse
from pretrain.machine.signals import StopRequest

CONFIG = """
run: {dir: runs/depth}
training: {max_steps: 100, batch_size: 8, threads: 1}
task: {name: text}
data:
  sequence_length: 32
  train: {pydoc: {source: text, path: "builtin:pydoc", span: [0.0, 0.9]}}
  validation: {pydoc: {source: text, path: "builtin:pydoc", span: [0.99, 1.0]}}
model: {name: decoder, width: 32, layers: 32, heads: 2, kv_heads: 2, init_std: 0.15}
optimizer: {optimizer_class: adamw, lr: 1.0e-2}
scheduler: {scheduler_type: linear_warmup_then_constant, scheduler_warmup_ratio: 0.75}
spikes: {warmup_steps: 16}
checkpoint: {checkpoint_every_n_steps: 20}
validation: {validate_every_n_steps: 100}
"""
POSITIONS = ("post", "pre")
CAUSE = "exploding_depth"


def train(folder: Path, position: str, overrides: list[str]) -> dict[str, Any]:
    """Train with the norms at `position`; return the verdict, the losses and norms by row, and the incidents."""
    config = parse(
        CONFIG,
        "depth",
        [*overrides, f"run.dir={json.dumps(str(folder / position))}", f"model.norm_position={position}"],
    )
    result = start_attempt(config, StopRequest(), [])
    attempt = folder / position / "attempts" / "0001"
    rows = [json.loads(line) for line in (attempt / "metrics.jsonl").read_text().splitlines()]
    taken = [row for row in rows if row["event"] == "step"]
    norms = [float(row["gradient_norm"]) for row in rows if row["event"] in ("step", "skipped")]
    incidents = [json.loads(path.read_text()) for path in sorted((attempt / "incidents").glob("*.json"))]
    return {
        "verdict": result.verdict,
        "steps": result.step,
        "loss": statistics.mean(row["loss"] for row in taken[-10:]),
        "median_norm": statistics.median(norms),
        "largest_norm": max(norms),
        "incidents": [
            {"step": one["step"], "trigger": one["trigger"]["name"], "cause": one["cause"], "remedy": one["remedy"]}
            for one in incidents
        ],
    }


def main() -> int:
    """Read the words of the command line, train twice, and say whether both claims hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings for both runs")
    parser.add_argument("--run-dir", type=Path, help="where the two runs are left; else they are removed")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.run_dir or Path(temporary)
        found = {position: train(folder, position, arguments.overrides) for position in POSITIONS}
    causes = {position: [one["cause"] for one in found[position]["incidents"]] for position in POSITIONS}
    holds = CAUSE in causes["post"] and not causes["pre"]
    if arguments.json:
        print(json.dumps({"runs": found, "holds": holds}))
    else:
        for position, run in found.items():
            print(
                f"{position}-norm: {run['verdict']} at step {run['steps']}, loss of the last steps {run['loss']:.3f}, "
                f"gradient norm {run['median_norm']:.3g} in the middle and {run['largest_norm']:.3g} at most"
            )
            for one in run["incidents"]:
                print(f"  step {one['step']}: {one['trigger']}, cause {one['cause']}: {one['remedy']}")
        print(
            "both claims hold" if holds else f"NOT shown: expected {CAUSE} for post-norm, and no incident for pre-norm"
        )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
