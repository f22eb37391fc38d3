"""The layers of the drill, in the order in which they are run."""

from tests.drill import kill_sweep
from tests.drill.layer import Layer

LAYERS: tuple[Layer, ...] = (kill_sweep.LAYER,)
