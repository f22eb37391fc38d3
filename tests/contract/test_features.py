"""What every feature of a model and a task owes, under each task and precision: it learns; `test_pairs.py` has more."""

import dataclasses
import itertools
from typing import Any

import pytest
import torch

from pretrain.config.settings import TrainingSettings
from pretrain.models import MODELS, ExpertSettings
from pretrain.tasks import TASKS
from tests.contract.rows import Feature, Run, build

FEATURES: dict[str, Feature] = {
    "post": Feature(model={"norm_position": "post", "init_std": 0.05}),
    "layernorm": Feature(model={"norm": "layernorm"}),
    "gelu": Feature(model={"activation": "gelu"}),
    "squared_relu": Feature(model={"activation": "squared_relu"}),
    "learned": Feature(model={"positions": "learned"}),
    "rope_base": Feature(model={"rope_base": 500.0}),
    "qk_norm": Feature(model={"qk_norm": True}),
    "soft_cap": Feature(model={"logit_soft_cap": 20.0}),
    "window": Feature(model={"sliding_window": 9}),
    "grouped": Feature(model={"kv_heads": 2}),
    "dropout": Feature(model={"dropout": 0.05}),
    "untied": Feature(model={"tie_embeddings": False}),
    "experts": Feature(model={"experts": ExpertSettings(5, balance=0.01)}),
    "shared_experts": Feature(
        model={
            "experts": ExpertSettings(3, top_k=1, shared=1, auxiliary_weight=0.01, router_z_weight=0.001),
            "dropout": 0.05,
        },
        built={"activation_checkpointing": "selective"},
    ),
    "mup": Feature(model={"parametrization": "mup", "mup_base_width": 64}),
    "documents": Feature(built={"document_boundary": 0}),
    "full": Feature(model={"dropout": 0.05}, built={"activation_checkpointing": "full"}),
    "selective": Feature(model={"dropout": 0.05}, built={"activation_checkpointing": "selective"}),
    "chunks": Feature(text={"chunk_tokens": 50}),
    "z_loss": Feature(text={"z_loss": 1e-3}),
    "together": Feature(
        model={
            "norm": "layernorm",
            "activation": "gelu",
            "positions": "learned",
            "qk_norm": True,
            "sliding_window": 20,
        },
        text={"chunk_tokens": 100, "z_loss": 1e-4},
        built={"activation_checkpointing": "selective"},
    ),
}
PRECISIONS = ("float32", "bfloat16", "float16")


def fits(task: str, feature: Feature) -> bool:
    """A feature of tokens is none of patches."""
    is_of_text = "logit_soft_cap" in feature.model or "document_boundary" in feature.built
    return task == "text" or not (is_of_text or (feature.text and not feature.model))


# Pairwise: every feature meets every task it fits and every precision, but not all three together.
ROWS = [
    (name, task, PRECISIONS[(at + turn) % 3])
    for at, (name, feature) in enumerate(FEATURES.items())
    for turn, task in enumerate(("text", "iq", "text"))
    if fits(task, feature)
]
every_row = pytest.mark.parametrize(("name", "task", "precision"), ROWS, ids=map("-".join, ROWS))


def made(name: str, task: str, precision: str, seed: int = 3, optimizer: str = "adamw") -> Run:
    feature = FEATURES[name]
    # Half the usual width, since float16 is slow on a CPU.
    feature = dataclasses.replace(feature, model={"width": 32, **feature.model})
    return build((task, "decoder", optimizer), seed, precision, feature)


def test_every_pair_is_there() -> None:
    tasks = {(name, task) for name, task, _ in ROWS}
    assert tasks == {(name, task) for name, task in itertools.product(FEATURES, TASKS) if fits(task, FEATURES[name])}
    assert {(task, precision) for _, task, precision in ROWS} == set(itertools.product(TASKS, PRECISIONS))


def test_no_setting_is_without_a_feature() -> None:
    """A size is its numbers, which have rows of their own."""
    sizes = {"size", "width", "layers", "heads", "ffn_width"}
    given: set[str] = set()
    for feature in FEATURES.values():
        given |= feature.model.keys() | feature.text.keys()
    wanted: list[Any] = [MODELS["decoder"].settings, TASKS["text"].settings]
    assert given == {one.name for cls in wanted for one in dataclasses.fields(cls)} - sizes
    assert {field.metadata.get("choices") for field in dataclasses.fields(TrainingSettings)} >= {
        ("none", *(name for name in FEATURES if name in ("full", "selective")))
    }


@every_row
def test_it_lowers_a_loss(name: str, task: str, precision: str) -> None:
    torch.manual_seed(1)
    run = made(name, task, precision)
    losses = [run.step(index, micro_batches=1) for index in range(25)]
    assert losses[-1] < 0.8 * losses[0]
