"""The FLOPs of a model are those that PyTorch's own counter finds, to the last one."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pretrain.batch import InputSpec
from pretrain.models import MODELS, ExpertSettings, flops_per_position, grouped

SPECS = (InputSpec("tokens", 256), InputSpec("tokens", 50257), InputSpec("patches", 32), InputSpec("patches", 6))
# The keys that a model of the table lacks are left out for it.
SIZES: tuple[dict[str, Any], ...] = (
    {},
    {"tie_embeddings": False},
    {"norm_position": "post", "norm": "layernorm", "qk_norm": True},
    {"activation": "gelu", "positions": "learned", "tie_embeddings": False},
    {"activation": "squared_relu", "positions": "learned", "dropout": 0.1, "qk_norm": True, "kv_heads": 2},
    {"sliding_window": 7, "kv_heads": 1, "logit_soft_cap": 30.0},
    {"width": 48, "layers": 3, "heads": 6, "kv_heads": 2, "ffn_width": 100},
    {"width": 48, "layers": 3, "heads": 6, "kv_heads": 1, "tie_embeddings": False},
    {"width": 768, "layers": 12, "heads": 12, "kv_heads": 12},
    {"experts": ExpertSettings(count=4), "qk_norm": True},
    {"experts": ExpertSettings(count=5, top_k=1, shared=2, width=24, balance=0.0), "activation": "gelu"},
    {"experts": ExpertSettings(count=3, top_k=3, shared=1, auxiliary_weight=0.1, router_z_weight=0.1)},
)


def counted(model: torch.nn.Module, spec: InputSpec, rows: int, positions: int) -> int:
    """What a forward and backward pass takes; the meta device has attention in plain products, which are counted."""
    if spec.kind == "tokens":
        inputs = torch.zeros(rows, positions, dtype=torch.long, device="meta")
    else:
        inputs = torch.zeros(rows, positions, spec.size, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(inputs).sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_the_count_is_that_of_pytorch(
    name: str, spec: InputSpec, size: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The meta device knows no autocast, and a count is of shapes, which no type changes.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    # Nor what a router chooses: all rows go to the first expert, which is as much work as any other choice.
    monkeypatch.setattr(grouped, "row_counts", lambda ends, rows: [rows, *[0] * (len(ends) - 1)])
    row = MODELS[name]
    known = {key: value for key, value in size.items() if key in row.settings.__dataclass_fields__}
    if spec.kind == "patches":
        known.pop("logit_soft_cap", None)
    for positions, rows in ((31, 3), (96, 1)):
        with torch.device("meta"):
            model = row.build(row.settings(**known), spec, 128, 0)
            if spec.kind == "tokens" and "sliding_window" in known:
                model = row.build(row.settings(**known), spec, 128, 0, document_boundary=0)
        assert flops_per_position(model, positions) * rows * positions == counted(model, spec, rows, positions)


def test_the_formula_by_hand() -> None:
    settings = MODELS["decoder"].settings(width=64, layers=2, heads=4, kv_heads=4, ffn_width=160)
    block = 4 * 64 * 64 + 3 * 64 * 160
    attention = 12 * 2 * 64 * 128
    tied = MODELS["decoder"].build(settings, InputSpec("tokens", 256), 128, 0)
    assert flops_per_position(tied, 128) == 6 * (2 * block + 256 * 64) + attention
