"""What the hostile layer forges is refused for what it is."""

import math
from pathlib import Path

import pytest

from pretrain.errors import ConfigError
from tests.drill.hostile_starts import not_finite
from tests.tiny import tiny, train


def test_weights_that_are_not_finite_start_no_run(tmp_path: Path) -> None:
    few = ("model.layers=1", "training.max_steps=1")
    train(tiny(tmp_path, "text", *few))
    place = tmp_path / "run/attempts/0001/checkpoints/step_00000001"
    not_finite(place, math.nan)
    config = tiny(tmp_path, "text", *few, f"init.from_checkpoint={place}", run="other")
    with pytest.raises(ConfigError, match="holds a number that is not finite"):
        train(config)
    assert not (tmp_path / "other/attempts").exists() or not list((tmp_path / "other/attempts").iterdir())
