"""The layers of the drill, in the order in which they are run."""

from tests.drill import (
    broken_savers,
    calls,
    clock,
    concurrency,
    corruption,
    fuzz,
    hostile,
    kill_sweep,
    lineages,
    memory,
    numbers,
    power_cut,
    sensors,
    signals,
    storage,
    surroundings,
    syscalls,
)
from tests.drill.layer import Layer

LAYERS: tuple[Layer, ...] = (
    calls.LAYER,
    kill_sweep.LAYER,
    lineages.LAYER,
    signals.LAYER,
    syscalls.LAYER,
    power_cut.LAYER,
    broken_savers.LAYER,
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
