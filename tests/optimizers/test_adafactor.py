"""Adafactor: against the formulas that PyTorch's documentation gives, in float64, and against PyTorch's own."""

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pretrain.optimizers import flat_state
from pretrain.optimizers.adafactor import AdafactorSettings, build_adafactor
from tests.optimizers.parts import ROLES, SHAPES, assert_close, gradient, parameters, take_steps, values

Array = np.ndarray


def rms(values: Array) -> float:
    return float(np.sqrt(np.mean(values**2)))


def test_fifty_steps_are_those_of_the_formula() -> None:
    """With a rate of 0.2 the cap of 1 / sqrt(step) acts from step 25 on."""
    settings = AdafactorSettings(lr=0.2, eps=1e-4, parameter_eps=1e-2, weight_decay=0.1)
    named = parameters()
    weights: dict[str, Array] = {name: value.numpy() for name, value in values(named).items()}
    rows: dict[str, Array] = {}
    columns: dict[str, Array] = {}
    whole: dict[str, Array] = {}
    optimizer = build_adafactor(settings, named, ROLES)
    for step in range(50):
        take_steps(optimizer, named, range(step, step + 1))
        newest = (step + 1) ** -0.8
        for name in weights:
            g, weight = gradient(name, step).numpy(), weights[name]
            square = g * g
            if g.ndim > 1:
                row, column = square.mean(-1, keepdims=True), square.mean(-2, keepdims=True)
                rows[name] = (1 - newest) * rows.get(name, 0.0) + newest * row
                columns[name] = (1 - newest) * columns.get(name, 0.0) + newest * column
                mean = np.maximum(rows[name].mean(-2, keepdims=True), 1e-4)
                second = rows[name] * columns[name] / mean
            else:
                whole[name] = second = (1 - newest) * whole.get(name, 0.0) + newest * square
            update = g / np.maximum(np.sqrt(second), 1e-4)
            update = update / max(1.0, rms(update))
            size = max(1e-2, rms(weight)) * min(0.2, 1 / np.sqrt(step + 1))
            decay = 0.0 if ROLES[name] in ("norms", "embeddings") else 0.1
            weights[name] = weight * (1 - 0.2 * decay) - size * update
        for name, value in values(named).items():
            assert_close(value, torch.from_numpy(np.asarray(weights[name])), f"{name} at {step}")


def test_state_and_steps_are_those_of_pytorch() -> None:
    named, plain = parameters(torch.float32), parameters(torch.float32)
    optimizer = build_adafactor(AdafactorSettings(lr=0.01, eps=1e-8, weight_decay=0.0), named, ROLES)
    stock = torch.optim.Adafactor(plain, lr=0.01, eps=(1e-8, 1e-3), weight_decay=0.0)
    take_steps(optimizer, named, range(20))
    take_steps(stock, plain, range(20))
    ours, theirs = flat_state(optimizer), flat_state(stock)
    assert ours.keys() == theirs.keys()
    assert "optimizer.kernel.row_var" in ours
    for name, tensor in ours.items():
        assert (tensor.dtype, tensor.shape) == (theirs[name].dtype, theirs[name].shape), name
        assert_close(tensor, theirs[name], name)
    for name, value in values(named).items():
        assert_close(value, dict(plain)[name].detach(), name)


def test_the_moments_of_short_numbers_are_float32() -> None:
    """A weight of 1 / step in a running mean of bfloat16 would soon move nothing."""
    flat = flat_state(build_adafactor(AdafactorSettings(), parameters(torch.bfloat16), ROLES))
    assert {tensor.dtype for tensor in flat.values()} == {torch.float32}


def test_a_step_waits_for_no_device() -> None:
    """A fake tensor has no numbers: whoever asks for one to compute with in Python fails."""
    with FakeTensorMode():
        named = parameters(torch.float32)
        optimizer = build_adafactor(AdafactorSettings(), named, ROLES)
        for _, parameter in named:
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()


def test_a_vector_keeps_its_second_moment_and_a_matrix_two_sides_of_it() -> None:
    flat = flat_state(build_adafactor(AdafactorSettings(), parameters(torch.float32), ROLES))
    assert flat["optimizer.tall.row_var"].shape == (10, 1)
    assert flat["optimizer.tall.col_var"].shape == (1, 6)
    assert flat["optimizer.kernel.row_var"].shape == (2, 3, 2, 1)
    assert flat["optimizer.norm.variance"].shape == (6,)
    assert len(flat) == sum(2 if len(shape) < 2 else 3 for shape in SHAPES.values())
