"""A quick part of every layer of the drill: nothing is lost at any of its points."""

from pathlib import Path

import pytest

from tests.drill.layer import Layer
from tests.drill.layers import LAYERS
from tests.drill.run import drill


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS, ids=[layer.name for layer in LAYERS])
def test_nothing_is_lost(layer: Layer, tmp_path: Path) -> None:
    found = drill(layer, tmp_path, seed=0, whole=False)
    if found.skipped:
        pytest.skip(found.skipped)
    assert not found.wrong, "\n\n".join(f"{one.point}: {one.what}\nagain: {one.command}" for one in found.wrong)
    if found.left_out:  # All that could be made here was, and held; what could not is not passed over.
        pytest.skip("; ".join(found.not_tested()))
