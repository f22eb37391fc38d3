"""How fast the loader hands out steps on its own, beside what the model of the same config takes."""

import argparse
import dataclasses
import json
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch

from pretrain.build import build_data, build_run
from pretrain.config import RunConfig, load
from pretrain.data.loader import StatefulLoader
from pretrain.gradients import accumulate, clip, read
from pretrain.machine.device import set_determinism
from pretrain.machine.precision import autocast

CONFIGS = Path(__file__).parents[1] / "configs"
MODEL_STEPS = 15
RECORDING_BYTES = 4 << 20


@dataclass(frozen=True)
class LoaderRate:
    """Tokens (or samples) per second of one pass; start_seconds: opening, hashing or making the data before it."""

    data: str
    unit: str
    prefetch_steps: int
    first_pass: bool
    loader_per_second: float
    model_per_second: float
    start_seconds: float

    @property
    def ratio(self) -> float:
        """How many times faster than the model the loader is."""
        return self.loader_per_second / self.model_per_second


def measure(folder: Path, threads: int | None) -> list[LoaderRate]:
    """Measure text, synthetic IQ and a recording of noise written to `folder`.

    threads: PyTorch's, while the model is measured; None = those of the config.
    """
    recording = folder / "noise.cu8"
    recording.write_bytes(np.random.default_rng(1).integers(0, 256, RECORDING_BYTES, dtype=np.uint8).tobytes())
    of_recording = [f"data.train.adsb.path={recording}"]
    rates = []
    for data, config in (
        ("text", load(CONFIGS / "quickstart-text.yaml")),
        ("synthetic iq", load(CONFIGS / "quickstart-iq.yaml")),
        ("recorded iq", load(CONFIGS / "iq-adsb.yaml", of_recording)),
    ):
        rates += _measure(data, config, threads or config.training.threads or 1)
    return rates


def _measure(name: str, config: RunConfig, threads: int) -> list[LoaderRate]:
    set_determinism(config.training.deterministic, threads)
    unit, units, model_pace = _model_pace(config)
    rates = []
    for prefetch_steps in (0, config.data.prefetch_steps):
        begun = time.perf_counter()
        data = build_data(config)
        start_seconds = time.perf_counter() - begun
        loader = StatefulLoader(
            data.train,
            seed=config.training.seed,
            batch_size=config.training.batch_size,
            gradient_accumulation_steps=config.training.gradient_accumulation_steps,
            prefetch_steps=prefetch_steps,
            loader_threads=config.data.loader_threads,
        )
        for first_pass in (True, False):
            begun = time.perf_counter()
            for _ in range(loader.steps_per_epoch):
                loader.next_step()
            pace = units * loader.steps_per_epoch / (time.perf_counter() - begun)
            rates.append(LoaderRate(name, unit, prefetch_steps, first_pass, pace, model_pace, start_seconds))
        loader.close()
    return rates


def _model_pace(config: RunConfig) -> tuple[str, int, float]:
    """Return the unit, how many of them a step has, and how many the model trains on in a second, data at hand."""
    device = torch.device("cpu")
    built = build_run(config, build_data(config), device)
    state, arithmetic = built.state, autocast(device, config.training.precision)
    parameters = list(state.model.parameters())
    batch = state.loader.next_step()
    state.loader.close()
    seconds, units = [], 0
    for _ in range(MODEL_STEPS):
        begun = time.perf_counter()
        loss, units = accumulate(state.model, built.task, batch, device, arithmetic)
        read(loss, clip(parameters, config.training.grad_clip_max_norm))
        state.optimizer.step()
        seconds.append(time.perf_counter() - begun)
    return built.task.unit, units, units / median(seconds)


def table(rates: list[LoaderRate]) -> str:
    """Return the rates as a plain table."""
    head = f"{'the loader alone':<16}{'pass':>8}{'prefetch':>10}{'units/s':>14}{'the model takes':>18}"
    lines = [f"{head}{'ratio':>9}{'start-up':>11}"]
    for rate in rates:
        which = "first" if rate.first_pass else "later"
        ahead = str(rate.prefetch_steps or "none")
        lines.append(
            f"{rate.data:<16}{which:>8}{ahead:>10}{rate.loader_per_second:>14,.0f}"
            f"{rate.model_per_second:>11,.0f} {rate.unit + '/s':<9}{rate.ratio:>6.0f}x{rate.start_seconds:>9.2f} s"
        )
    return "\n".join(lines)


def answer(rates: list[LoaderRate]) -> list[dict[str, object]]:
    """Return the rates as plain objects."""
    return [{**dataclasses.asdict(rate), "ratio": rate.ratio} for rate in rates]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loader_rate", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--threads", type=int, help="PyTorch's threads, for the model; default: the config's")
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        rates = measure(Path(folder), arguments.threads)
    print(json.dumps({"loader": answer(rates)}) if arguments.json else table(rates))


if __name__ == "__main__":
    main()
