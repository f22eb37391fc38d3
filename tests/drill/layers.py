"""The layers of the drill, in the order in which they are run."""

from tests.drill import kill_sweep, storage
from tests.drill.layer import Layer

LAYERS: tuple[Layer, ...] = (kill_sweep.LAYER, storage.LAYER)
"""L1: SIGKILL before every change of the disk, and in the middle of every write; then resumed to the end.
L6: a full, read-only or limited disk; then mended and resumed to the end."""
