"""Train one small model on real text by every optimizer, and compare their losses on the held-out tenth.

Every optimizer takes the same steps of the same batches, at the best of four rates, one twice the other, and of further
ones while the best is at an end of them. AdamW and GaLore are tried with the update of attention and feed-forward
matrices whole and at a quarter, by `optimizer.groups` and by `galore_scale`, and APOLLO with it whole and twice as
large. All of this is on the first seed; the other seeds are run at the best setting and rate alone. What has been run
is kept, so that the script can be stopped and started again, and is run again where its settings or the code of the
optimizers are others.
"""

import argparse
import json
import math
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from pretrain.attempt import start_attempt
from pretrain.build import build_data, build_run
from pretrain.config import RunSettings, parse, to_yaml
from pretrain.machine.signals import StopRequest

ROOT = Path(__file__).parents[1]
WIDTH = 64
CONFIG = f"""
run: {{dir: named-by-the-script}}
training: {{max_steps: 600, batch_size: 8, threads: 1}}
task: {{name: text}}
data:
  sequence_length: 64
  train: {{pydoc: {{source: text, path: "builtin:pydoc", span: [0.0, 0.9]}}}}
  validation: {{pydoc: {{source: text, path: "builtin:pydoc", span: [0.9, 1.0]}}}}
model: {{name: decoder, width: {WIDTH}, layers: 2, heads: 4, kv_heads: 4}}
scheduler: {{scheduler_type: cosine}}
"""
FACTORS = (0.5, 1.0, 2.0, 4.0)
FURTHEST = 5  # powers of two beyond these, on either side: a loss that still falls there is told as it is


@dataclass(frozen=True)
class Setting:
    """One way to use an optimizer: keys of `optimizer` beside the rate, and the rate that its grid begins from."""

    lr: float
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """One training: an optimizer by its name here, its setting, the rate and the seed."""

    name: str
    setting: Setting
    lr: float
    seed: int

    def overrides(self, steps: int) -> list[str]:
        """Return what of the configuration this run changes. It validates and saves once, at the end."""
        given = [f"optimizer_class={OPTIMIZER_CLASS.get(self.name, self.name)}", f"lr={self.lr!r}", *self.setting.keys]
        ends = ("training.max_steps", "validation.validate_every_n_steps", "checkpoint.checkpoint_every_n_steps")
        return [f"training.seed={self.seed}", *(f"optimizer.{one}" for one in given), *(f"{e}={steps}" for e in ends)]


@dataclass(frozen=True)
class Figures:
    """What a run came to. loss: nats per byte on held-out text; infinite where the run did not end well."""

    loss: float
    parameters: int
    projected: int


QUARTER = tuple(f"groups.{role}.lr_multiplier=0.25" for role in ("attention", "feed_forward"))


def _galore(part: int, interval: int = 200) -> tuple[Setting, ...]:
    keys = ("use_galore=true", f"galore_rank={WIDTH // part}", f"galore_update_interval={interval}")
    return Setting(3.0e-3, (*keys, "galore_scale=1.0")), Setting(1.2e-2, (*keys, "galore_scale=0.25"))


def _apollo(part: int, interval: int = 200) -> tuple[Setting, ...]:
    keys = (f"rank={WIDTH // part}", f"update_interval={interval}")
    return Setting(1.0e-2, (*keys, "scale=1.0")), Setting(1.0e-2, (*keys, "scale=2.0"))


OPTIMIZERS: Mapping[str, tuple[Setting, ...]] = {
    "adamw": (Setting(3.0e-3), Setting(1.2e-2, QUARTER)),
    "galore-half": _galore(2),
    "galore-quarter": _galore(4),
    "apollo-half": _apollo(2),
    "apollo-quarter": _apollo(4),
    "apollo_mini": (Setting(3.0e-3),),
    "muon": (Setting(3.0e-3),),
    "lion": (Setting(5.0e-4),),
    "adafactor": (Setting(3.0e-2),),
    "sgd": (Setting(0.1),),
}
OPTIMIZER_CLASS = {
    "galore-half": "adamw",
    "galore-quarter": "adamw",
    "apollo-half": "apollo",
    "apollo-quarter": "apollo",
}
BARS = {"galore-half": 1.03, "apollo-half": 1.03, "galore-quarter": 1.05, "apollo-quarter": 1.05}


@cache
def _code() -> str:
    """Return the hash of the optimizers' source, by which a run is known beside its settings."""
    texts = (path.read_bytes() for path in sorted((ROOT / "pretrain" / "optimizers").glob("*.py")))
    return sha256(b"\0".join(texts)).hexdigest()


def measure(run: Run, steps: int, kept: Path) -> Figures:
    """Return the figures of a run: those that are kept, or else by training it in a folder that is removed."""
    config = parse(CONFIG, "the script", run.overrides(steps))
    file = kept / f"{sha256((_code() + to_yaml(config)).encode()).hexdigest()[:20]}.json"
    if file.exists():
        return Figures(**json.loads(file.read_text())["figures"])
    folder = Path(tempfile.mkdtemp(prefix="losses-"))
    try:
        result = start_attempt(replace(config, run=RunSettings(dir=str(folder / "run"))), StopRequest(), [])
    finally:
        shutil.rmtree(folder)
    loss = result.validation["pydoc"]["loss"] if result.verdict == "done" else math.inf
    optimizer = build_run(config, build_data(config), torch.device("cpu")).state.optimizer
    held = [(one, optimizer.state[one]) for group in optimizer.param_groups for one in group["params"]]
    low = sum(one.numel() for one, state in held if state.keys() & {"basis", "projection"})
    figures = Figures(loss if math.isfinite(loss) else math.inf, sum(one.numel() for one, _ in held), low)
    written = file.with_suffix(f".{os.getpid()}")
    written.write_text(json.dumps({"run": asdict(run), "steps": steps, "figures": asdict(figures)}) + "\n")
    written.replace(file)
    return figures


Results = Mapping[Run, Figures]


def coarse(name: str, done: Results, seed: int) -> list[Run]:
    """Return the runs on the first seed that are still to be made: the four rates, or one past an end that is best."""
    wanted = []
    first = {(run.setting, run.lr): done[run].loss for run in done if (run.name, run.seed) == (name, seed)}
    for setting in OPTIMIZERS[name]:
        losses = {lr: loss for (of, lr), loss in first.items() if of == setting}
        rates = [setting.lr * factor for factor in FACTORS]
        if set(rates) <= losses.keys():
            best = min(losses, key=lambda lr: losses[lr])
            beyond = {min(losses): min(losses) / 2, max(losses): max(losses) * 2}
            far = beyond.get(best, setting.lr)
            rates = [far] if 2.0**-FURTHEST <= far / setting.lr <= 2.0**FURTHEST else []
        wanted += [Run(name, setting, lr, seed) for lr in rates if lr not in losses]
    return wanted


def best_of(name: str, done: Results, seed: int) -> Run:
    """Return the run of the lowest loss on the first seed."""
    return min((run for run in done if (run.name, run.seed) == (name, seed)), key=lambda run: done[run].loss)


def train_all(runs: Sequence[Run], steps: int, kept: Path, workers: int) -> dict[Run, Figures]:
    """Make these runs, `workers` at a time, and say on stderr what each came to."""
    done = {}

    def tell(run: Run, figures: Figures) -> None:
        done[run] = figures
        words = f"{run.name} {' '.join(run.setting.keys)} lr {run.lr:g} seed {run.seed}: {figures.loss:.4f}"
        print(words, file=sys.stderr, flush=True)

    if workers == 1:
        for run in runs:
            tell(run, measure(run, steps, kept))
        return done
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(measure, run, steps, kept): run for run in runs}
        for future in as_completed(futures):
            tell(futures[future], future.result())
    return done


def row(name: str, done: Results, seeds: Sequence[int]) -> dict[str, Any]:
    """Return what the table says of an optimizer."""
    best = best_of(name, done, seeds[0])
    losses = [done[replace(best, seed=seed)].loss for seed in seeds]
    on_first = [(run, figures.loss) for run, figures in done.items() if (run.name, run.seed) == (name, seeds[0])]
    by_setting = []
    for setting in OPTIMIZERS[name]:
        loss, lr = min((loss, run.lr) for run, loss in on_first if run.setting == setting)
        by_setting.append({"settings": list(setting.keys), "lr": lr, "loss": loss})
    return {
        "optimizer": name,
        "settings": list(best.setting.keys),
        "parameters": done[best].parameters,
        "projected": done[best].projected,
        "lr": best.lr,
        "losses": losses,
        "mean": fmean(losses),
        "spread": max(losses) - min(losses),
        "trials": len(on_first),
        "by_setting": by_setting,
    }


def compare(rows: list[dict[str, Any]]) -> bool:
    """Add to each row its ratio to AdamW, and its bar where it has one; return whether every bar is met."""
    (base,) = [one["mean"] for one in rows if one["optimizer"] == "adamw"] or [None]
    for one in rows:
        one["ratio"] = None if base is None else one["mean"] / base
        one["bar"] = BARS.get(one["optimizer"])
    return all(one["ratio"] <= one["bar"] for one in rows if one["bar"] and one["ratio"])


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as lines of one width, and under them the best of every setting that was tried."""
    lines = ["optimizer        projected of parameters    best rate  loss, mean  spread  to AdamW    bar  settings"]
    for one in rows:
        ratio, bar = ("-" if one[key] is None else f"{one[key]:.3f}" for key in ("ratio", "bar"))
        lines.append(
            f"{one['optimizer']:15}  {one['projected']:9,} of {one['parameters']:10,}  {one['lr']:11.3g}  "
            f"{one['mean']:10.4f}  {one['spread']:6.4f}  {ratio:>8}  {bar:>5}  {' '.join(one['settings'])}"
        )
    lines.append("\non the first seed alone, the best rate of each setting:")
    for one in rows:
        for tried in one["by_setting"]:
            words = " ".join(tried["settings"]) or "as by default"
            lines.append(f"{one['optimizer']:15}  {tried['loss']:.4f} at {tried['lr']:<9.3g} {words}")
    return "\n".join(lines)


def main() -> int:
    """Run what is missing, print the table, and return the exit code: 1 where a bar is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", action="append", choices=list(OPTIMIZERS), help="may be given more than once")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kept", type=Path, default=Path("runs/optimizer-losses"), help="where runs are kept")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    arguments = parser.parse_args()
    arguments.kept.mkdir(parents=True, exist_ok=True)
    names, seeds = arguments.only or list(OPTIMIZERS), arguments.seeds

    done: dict[Run, Figures] = {}
    wanted = [run for name in names for run in coarse(name, done, seeds[0])]
    while wanted:
        done |= train_all(wanted, arguments.steps, arguments.kept, arguments.workers)
        wanted = [run for name in names for run in coarse(name, done, seeds[0])]
        if not wanted:
            chosen = [replace(best_of(name, done, seeds[0]), seed=seed) for name in names for seed in seeds]
            wanted = [run for run in chosen if run not in done]
    rows = [row(name, done, seeds) for name in names]
    met = compare(rows)
    if arguments.json:
        answer = json.dumps({"steps": arguments.steps, "seeds": seeds, "bars_met": met, "rows": rows})
        # JSON has no word for what is not finite.
        print(json.dumps(json.loads(answer, parse_constant=lambda word: None)))
    else:
        print(f"{arguments.steps} steps, seeds {seeds}, nats per byte on held-out text\n\n{table(rows)}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
