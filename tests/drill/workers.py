"""Layers gone through by several processes at a time, told in their own order."""

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

from tests.drill.layer import Layer, Wrong
from tests.drill.run import Drilled, drill


def drill_all(
    layers: Sequence[Layer], folder: Path, seed: int, workers: int, *, whole: bool, only: Sequence[str], keep: bool
) -> Iterator[Drilled]:
    """Yield every layer as `drill` finds it, in order; so many are gone through at a time, each by its own process."""
    how = {"whole": whole, "only": only, "keep": keep}
    if workers == 1 or len(layers) == 1:
        for layer in layers:
            yield drill(layer, folder / layer.name, seed, **how)  # type: ignore[arg-type]
        return
    pool = ThreadPoolExecutor(workers)
    try:
        asked: list[Future[Drilled]] = []
        for layer in layers:
            work = partial(drill, layer, folder / layer.name, seed, **how)  # type: ignore[arg-type]
            asked.append(pool.submit(_apart, work, layer, seed, whole))
        for answer in asked:
            yield answer.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _apart(work: "partial[Drilled]", layer: Layer, seed: int, whole: bool) -> Drilled:
    """Drill a layer in a process of its own, so that the end of one is not that of those after it."""
    # A fork would inherit what this process has open.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as one:
        try:
            return one.submit(work).result()
        except BrokenProcessPool as error:
            wrong = Wrong(layer.name, seed, "", f"the process that went through it has died: {error}", whole)
            return Drilled(layer.name, layer.title, seed, 0, (wrong,), 0.0)
