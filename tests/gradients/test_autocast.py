"""The precisions: what they compute in, and that a context can be used again and again."""

import pytest
import torch

from pretrain.errors import ConfigError
from pretrain.machine.precision import autocast

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("precision", "kind"), [("float32", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float16)]
)
def test_matrices_are_multiplied_in_the_precision(precision: str, kind: torch.dtype) -> None:
    context = autocast(CPU, precision)
    matrix = torch.ones(2, 2)
    for _ in range(3):
        with context:
            assert (matrix @ matrix).dtype == kind
        assert (matrix @ matrix).dtype == torch.float32


def test_another_precision_is_refused_with_the_choices() -> None:
    with pytest.raises(
        ConfigError, match=r"training\.precision: expected one of float32, bfloat16, float16, found 'int8'"
    ):
        autocast(CPU, "int8")
