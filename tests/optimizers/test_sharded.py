"""Weights that are spread over two processes take the steps of whole ones."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.distributed.fsdp import fully_shard

from pretrain.optimizers import OPTIMIZERS

ROLES = {"0.weight": "feed_forward", "0.bias": "norms", "2.weight": "feed_forward", "2.bias": "norms"}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 3))


def after_ten_steps(name: str, model: nn.Module) -> dict[str, torch.Tensor]:
    entry = OPTIMIZERS[name]
    optimizer = entry.build(entry.settings(), list(model.named_parameters()), ROLES)
    inputs, wanted = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.ones(8, 3)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def compare(rank: int, name: str, folder: str) -> None:
    """In each of the two processes; the three rows of the last matrix cannot be halved."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    spread: Any = network()
    fully_shard(spread)
    found, expected = after_ten_steps(name, spread), after_ten_steps(name, network())
    for parameter, value in expected.items():
        torch.testing.assert_close(found[parameter].full_tensor(), value, rtol=1e-5, atol=1e-7)  # type: ignore[attr-defined]
    distributed.barrier()
    distributed.destroy_process_group()


@pytest.mark.parametrize("name", ["adafactor"])
def test_steps_of_spread_weights_are_those_of_whole_ones(name: str, tmp_path: Path) -> None:
    """Not so with PyTorch's Adafactor, which fails here."""
    multiprocessing.start_processes(compare, (name, str(tmp_path)), nprocs=2, start_method="fork")
