"""The layers of the drill, in the order in which they are run."""

from tests.drill import (
    clock,
    concurrency,
    corruption,
    fuzz,
    hostile,
    kill_sweep,
    lineages,
    memory,
    numbers,
    sensors,
    signals,
    storage,
    surroundings,
)
from tests.drill.layer import Layer

LAYERS: tuple[Layer, ...] = (
    kill_sweep.LAYER,
    lineages.LAYER,
    signals.LAYER,
    storage.LAYER,
    corruption.LAYER,
    hostile.LAYER,
    fuzz.LAYER,
    numbers.LAYER,
    sensors.LAYER,
    concurrency.LAYER,
    clock.LAYER,
    surroundings.LAYER,
    memory.LAYER,
)
