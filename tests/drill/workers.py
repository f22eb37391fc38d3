"""Layers gone through by several processes at a time, told in their own order."""

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.drill.layer import Layer, Wrong
from tests.drill.layers import LAYERS
from tests.drill.run import Drilled, drill

Found = tuple[int, tuple[Wrong, ...], float, str]


def drill_all(
    layers: Sequence[Layer], folder: Path, seed: int, workers: int, *, whole: bool, only: Sequence[str], keep: bool
) -> Iterator[Drilled]:
    """Yield every layer as `drill` finds it, in order; so many processes take one layer each."""
    if workers == 1 or len(layers) == 1:
        for layer in layers:
            yield drill(layer, folder / layer.name, seed, whole=whole, only=only, keep=keep)
        return
    # A fork would inherit what this process has open; a layer is known by its name in another one.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        asked = [(layer, pool.submit(_drill, layer.name, folder, seed, whole, keep)) for layer in layers]
        for layer, answer in asked:
            points, wrong, seconds, skipped = answer.result()
            yield Drilled(layer, seed, points, wrong, seconds, skipped)


def _drill(name: str, folder: Path, seed: int, whole: bool, keep: bool) -> Found:
    (layer,) = (one for one in LAYERS if one.name == name)
    found = drill(layer, folder / name, seed, whole=whole, keep=keep)
    return found.points, found.wrong, found.seconds, found.skipped
