"""Parameters of every kind that an optimizer meets, with roles, and gradients that are the same in every run."""

import torch
from torch import nn

Named = list[tuple[str, nn.Parameter]]

# Tall, wide and square matrices; vectors, a scalar and a kernel of four dimensions take the plain path everywhere.
SHAPES = {
    "embed": (11, 6),
    "tall": (10, 6),
    "wide": (6, 14),
    "square": (8, 8),
    "kernel": (2, 3, 2, 2),
    "norm": (6,),
    "scalar": (),
    "router": (4, 6),
    "head": (11, 6),
}
ROLES = {
    "embed": "embeddings",
    "tall": "feed_forward",
    "wide": "feed_forward",
    "square": "attention",
    "kernel": "feed_forward",
    "norm": "norms",
    "scalar": "norms",
    "router": "router",
    "head": "head",
}
HIDDEN = ("tall", "wide", "square")


def parameters(dtype: torch.dtype = torch.float64, seed: int = 0) -> Named:
    generator = torch.Generator().manual_seed(seed)
    return [
        (name, nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)))
        for name, shape in SHAPES.items()
    ]


def gradient(name: str, step: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """The gradient of a parameter at a step: its size changes from step to step, and element to element."""
    generator = torch.Generator().manual_seed(1000 * step + list(SHAPES).index(name))
    drawn = torch.randn(SHAPES[name], generator=generator, dtype=torch.float64)
    return (drawn * (1 + step % 5) * 0.1).to(dtype)


def take_steps(optimizer: torch.optim.Optimizer, named: Named, steps: range) -> None:
    for step in steps:
        for name, parameter in named:
            parameter.grad = gradient(name, step, parameter.dtype)
        optimizer.step()


def values(named: Named) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in named}


def assert_close(found: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    """To 1e-6 of the largest element: what the oracles are held to."""
    assert found.shape == expected.shape, name
    difference = (found.double() - expected.double()).abs().max()
    assert difference <= 1e-6 * expected.double().abs().max(), (name, float(difference))
