"""The layers of the drill, in the order in which they are run."""

from tests.drill import kill_sweep, lineages, numbers, sensors, surroundings
from tests.drill.layer import Layer

LAYERS: tuple[Layer, ...] = (kill_sweep.LAYER, lineages.LAYER, numbers.LAYER, sensors.LAYER, surroundings.LAYER)
