"""The run that faults are made in: the birth of an attempt, a few checkpoints, one that is removed, and a manifest."""

from pathlib import Path

from tests.loop.lineages import small_config

STEPS = 3
# Every checkpoint beyond the two that can be gone back to is removed.
FEW = ("checkpoint.max_rolling_checkpoints=1", "checkpoint.num_best_checkpoints=0")

DATA = "corpus.txt"


def cycle_config(folder: Path, steps: int = STEPS, *more: str) -> Path:
    """Write the config of such a run, with a checkpoint at every step."""
    return small_config(folder, "text", steps, 1, *FEW, *more)
