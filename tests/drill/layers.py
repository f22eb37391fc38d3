"""The layers of the drill, in the order in which they are run."""

from tests.drill import clock, concurrency, kill_sweep, memory, signals
from tests.drill.layer import Layer

LAYERS: tuple[Layer, ...] = (kill_sweep.LAYER, signals.LAYER, concurrency.LAYER, clock.LAYER, memory.LAYER)
