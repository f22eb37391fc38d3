"""How much of a model GaLore and APOLLO project: counted, shown by the plan and at the start, and warned of."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain.attempt import start_attempt
from pretrain.config import RunConfig
from pretrain.machine.signals import StopRequest
from pretrain.optimizers import OPTIMIZERS, Projected, projected
from pretrain.plan import costs_of
from pretrain.telemetry.sink import Begin, Note
from tests.optimizers.parts import ROLES, SHAPES, parameters
from tests.tiny import Recorder, tiny

TALL, WIDE, SQUARE = 60, 84, 64
ALL = sum(torch.Size(shape).numel() for shape in SHAPES.values())
GALORE = ("optimizer.use_galore=true", "optimizer.galore_rank=4")


def found(name: str, **keys: Any) -> Projected | None:
    entry = OPTIMIZERS[name]
    settings, named = entry.settings(**keys), parameters(torch.float32)
    return projected(entry.build(settings, named, ROLES), settings, named, ROLES)


@pytest.mark.parametrize(
    ("name", "keys", "count"),
    [
        ("adamw", {"use_galore": True, "galore_rank": 3}, TALL + WIDE + SQUARE),
        ("adafactor", {"use_galore": True, "galore_rank": 6}, SQUARE),
        ("apollo", {}, TALL + WIDE + SQUARE),
        ("apollo", {"rank": 6}, SQUARE),
        ("apollo_mini", {}, TALL + WIDE + SQUARE),
        ("adamw", {}, None),
        ("sgd", {}, None),
        ("muon", {}, None),
    ],
)
def test_what_is_projected_is_counted(name: str, keys: dict[str, Any], count: int | None) -> None:
    low = found(name, **keys)
    assert low == (None if count is None else Projected(count, ALL))
    if low is not None:
        assert low.text == f"{low.count:,} of {ALL} parameters ({100 * low.count / ALL:.1f} %)"


@pytest.mark.parametrize(
    ("keys", "count", "warned"),
    [
        ({"galore_max_dim": 14}, TALL + WIDE + SQUARE, False),
        ({"galore_max_dim": 13}, TALL + SQUARE, False),  # 124 of 208
        ({"galore_max_dim": 9}, SQUARE, True),
        ({"galore_rank": 6}, SQUARE, False),  # it is the rank that leaves the others out
    ],
)
def test_a_limit_that_leaves_most_out_is_warned_of(keys: dict[str, Any], count: int, warned: bool) -> None:
    low = found("adamw", **{"use_galore": True, "galore_rank": 3, **keys})
    assert low is not None
    assert (low.count, low.warning is not None) == (count, warned)
    if warned:
        assert low.warning == (
            "optimizer.galore_max_dim (9) leaves out matrices with a side of up to 14: of the attention and "
            "feed-forward matrices GaLore projects 64 of 208 parameters (30.8 %); optimizer.galore_max_dim=14 projects "
            "them too, and their decompositions take longer"
        )


def told(config: RunConfig) -> tuple[str | None, list[str]]:
    recorder = Recorder()
    assert start_attempt(config, StopRequest(), [recorder]).verdict == "done"
    (begin,) = [event for event in recorder.events if isinstance(event, Begin)]
    warnings = [event.text for event in recorder.events if isinstance(event, Note) and event.kind == "warning"]
    return dict(begin.details).get("projected"), [text for text in warnings if "galore_max_dim" in text]


@pytest.mark.parametrize(
    ("words", "count", "warned"),
    [
        (GALORE, 2 * (2 * 16 * 16 + 2 * 8 * 16 + 3 * 16 * 64), False),
        ((*GALORE, "optimizer.galore_max_dim=16"), 2 * (2 * 16 * 16 + 2 * 8 * 16), True),
        (("optimizer.optimizer_class=apollo", "optimizer.rank=9"), 2 * (2 * 16 * 16 + 3 * 16 * 64), False),
        ((), None, False),
    ],
)
def test_the_start_and_the_plan_say_the_same(
    tmp_path: Path, words: tuple[str, ...], count: int | None, warned: bool
) -> None:
    config = tiny(tmp_path, "text", "training.max_steps=1", *words)
    costs = costs_of(config)
    line, warnings = told(config)
    assert len(warnings) == warned
    assert [text for text in costs.warnings if "galore_max_dim" in text] == warnings
    assert costs.answer()["parameters"].get("projected") == count
    if count is None:
        assert line is None
        assert "projected" not in costs.text()
    else:
        assert line is not None
        assert line.startswith(f"{count:,} of {costs.parameters:,} parameters (")
        assert f"\nprojected            {line}\n" in costs.text()


def test_the_default_leaves_most_of_llama_7b_out(tmp_path: Path) -> None:
    words = ["width=4096", "layers=32", "heads=32", "kv_heads=32", "size=llama-7b"]
    costs = costs_of(tiny(tmp_path, "text", *(f"model.{word}" for word in words), "optimizer.use_galore=true"))
    assert costs.projected is not None
    assert costs.projected.count == costs.roles["attention"]
    (warning,) = costs.warnings
    assert warning.startswith("optimizer.galore_max_dim (8192) leaves out matrices with a side of up to 11008: ")
