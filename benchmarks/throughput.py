"""The loop with everything on against a bare PyTorch loop, in turns within one process."""

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from benchmarks.bare_loop import BareLoop
from pretrain.attempt import start_attempt
from pretrain.config import RunConfig, load
from pretrain.console import Screen
from pretrain.machine.signals import StopRequest
from pretrain.telemetry.sink import Event, StepRow

CONFIG = Path(__file__).parents[1] / "configs" / "quickstart-text.yaml"
TURN_STEPS = 10


@dataclass(frozen=True)
class Spread:
    """How a ratio comes out from turn to turn."""

    median: float
    lower_quartile: float
    upper_quartile: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, ratios: list[float]) -> "Spread":
        """Return the spread of at least two ratios."""
        lower, _, upper = quantiles(ratios, n=4, method="inclusive")
        return cls(median(ratios), lower, upper, min(ratios), max(ratios))


@dataclass(frozen=True)
class Comparison:
    """The two loops side by side.

    ratio: tokens per second of the loop over those of the bare one, all turns and their checkpoints in it.
    by_turn: the same of each turn against the mean of the bare turns before and after it. bare_by_turn: of each
    bare turn against the mean of the bare turns before and after it, which is what this machine can tell apart.
    loss_difference: largest distance between the losses of the two at the same step.
    """

    tokens_per_step: int
    parameters: int
    steps: int
    turn_steps: int
    checkpoint_every_n_steps: int
    bare_tokens_per_second: float
    loop_tokens_per_second: float
    ratio: float
    by_turn: Spread
    bare_by_turn: Spread
    loss_difference: float


class _Turns:
    """The last sink of the loop: at the end of each of its turns the bare loop has one, on the loop's time off."""

    def __init__(self, bare: BareLoop, stop: StopRequest, rounds: int) -> None:
        self.losses: list[float] = []
        self.bare_seconds: list[float] = []
        self.loop_seconds: list[float] = []
        self._bare, self._stop, self._rounds = bare, stop, rounds
        self._begun = 0.0

    def emit(self, event: Event) -> None:
        """Count the loop's steps; its first turn, like the first of the bare loop, only warms the caches."""
        now = time.perf_counter()
        if not isinstance(event, StepRow):
            return
        self.losses.append(event.loss)
        if len(self.losses) % TURN_STEPS:
            return
        if len(self.losses) == TURN_STEPS:
            self._bare.run(TURN_STEPS)
        else:
            self.loop_seconds.append(now - self._begun)
        self.bare_seconds.append(self._bare.run(TURN_STEPS))
        if len(self.loop_seconds) == self._rounds:
            self._stop.name = "SIGTERM"
        self._begun = time.perf_counter()

    def close(self) -> None:
        """Nothing is open."""


def run_config(folder: Path, steps: int, threads: int) -> RunConfig:
    """Return the quickstart on text with `steps` steps; validation, which is work asked for, at the end alone."""
    return load(
        CONFIG,
        [
            f"run.dir={folder}",
            f"training.max_steps={steps}",
            f"training.threads={threads}",
            f"validation.validate_every_n_steps={steps}",
        ],
    )


def compare(folder: Path, rounds: int, threads: int) -> Comparison:
    """Run `rounds` turns of each loop."""
    config = run_config(folder, (rounds + 2) * TURN_STEPS, threads)
    bare, stop = BareLoop(config), StopRequest()
    turns = _Turns(bare, stop, rounds)
    with open("/dev/null", "w", encoding="utf-8") as nowhere:
        start_attempt(config, stop, [Screen(nowhere), turns])

    between = _between(turns.bare_seconds)
    tokens = config.training.batch_size * config.data.sequence_length
    loop_pace = tokens * TURN_STEPS * rounds / sum(turns.loop_seconds)
    bare_pace = tokens * TURN_STEPS * rounds / sum(between)
    return Comparison(
        tokens_per_step=tokens,
        parameters=sum(parameter.numel() for parameter in bare.model.parameters()),
        steps=TURN_STEPS * rounds,
        turn_steps=TURN_STEPS,
        checkpoint_every_n_steps=config.checkpoint.checkpoint_every_n_steps,
        bare_tokens_per_second=bare_pace,
        loop_tokens_per_second=loop_pace,
        ratio=loop_pace / bare_pace,
        by_turn=Spread.of([b / own for b, own in zip(between, turns.loop_seconds, strict=True)]),
        bare_by_turn=Spread.of(
            [b / own for b, own in zip(_between(turns.bare_seconds, 2), turns.bare_seconds[1:-1], strict=True)]
        ),
        loss_difference=max(abs(a - b) for a, b in zip(turns.losses, bare.losses, strict=False)),
    )


def _between(seconds: list[float], distance: int = 1) -> list[float]:
    """Return the mean of each pair that lies `distance` apart: a drift of the machine cancels out in it."""
    return [(before + after) / 2 for before, after in zip(seconds, seconds[distance:], strict=False)]
