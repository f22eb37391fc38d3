"""The coordinate check: a few steps at several widths under both parametrizations, and what they move."""

import contextlib
import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from pretrain.build import BuiltRun, RunData, build_data, build_run
from pretrain.config import RunConfig
from pretrain.errors import ConfigError
from pretrain.gradients import accumulate, clip
from pretrain.machine.device import select_device, set_determinism
from pretrain.models import PARAMETRIZATIONS, DecoderSettings, attentions, blocks
from pretrain.optimizers import set_learning_rate, width_contradictions
from pretrain.plan.coordinates import ATTENTION, CoordinateCheck, Place
from pretrain.registry import Choice

WIDTHS = (64, 128, 256, 512)
STEPS = 6
SEEDS = 4
# Windows of a step: what is looked at is the size of numbers, and not what is learned.
_WINDOWS = 2
# Positions of each window whose attention logits are looked at.
_QUERIES = 64


def widths_asked(text: str | None) -> tuple[int, ...]:
    """Read the WIDTHS of `--widths`, two or more that rise; ConfigError for any other text."""
    if text is None:
        return WIDTHS
    widths = tuple(int(word) for word in text.split(",") if re.fullmatch(r"[0-9]{1,6}", word))
    if len(widths) != text.count(",") + 1 or len(widths) < 2 or sorted({*widths}) != list(widths) or widths[0] < 2:
        raise ConfigError(f"--widths: expected two widths or more that rise, such as 64,128,256; found {text!r}")
    return widths


def check_coordinates(
    config: RunConfig, widths: Sequence[int] = WIDTHS, steps: int = STEPS, seeds: int = SEEDS
) -> CoordinateCheck:
    """Train the model of a config under both parametrizations at these widths, and write nothing.

    Every step takes the peak learning rate, in float32, on 2 windows of the config's data. The number of heads stays
    as it is, their size and `ffn_width` follow the width. Raises ConfigError where a width does not fit the heads, or
    the optimizer not muP.
    """
    if not isinstance(config.model.settings, DecoderSettings):
        raise ConfigError(f"--coordinate-check: model.name={config.model.name} has no parametrization; take decoder")
    found = width_contradictions(config.optimizer.name, config.optimizer.settings)
    if found:
        raise ConfigError(*found)
    device = select_device(config.training.device)
    set_determinism(config.training.deterministic, config.training.threads)
    data = build_data(config)
    places = {}
    for parametrization in PARAMETRIZATIONS:
        runs = {
            width: [
                _trained(_at_width(config, parametrization, width, config.training.seed + number), data, device, steps)
                for number in range(seeds)
            ]
            for width in widths
        }
        places[parametrization] = {
            name: Place(
                *({width: _mean(run[name][which] for run in runs[width]) for width in widths} for which in (0, 1))
            )
            for name in runs[widths[0]][0]
        }
    return CoordinateCheck(
        learning_rate=config.optimizer.settings.lr,
        optimizer=config.optimizer.name,
        base_width=config.model.settings.mup_base_width,
        steps=steps,
        seeds=seeds,
        places=places,
    )


def _at_width(config: RunConfig, parametrization: str, width: int, seed: int) -> RunConfig:
    settings = config.model.settings
    hidden = settings.ffn_width
    settings = dataclasses.replace(
        settings,
        width=width,
        ffn_width=None if hidden is None else max(1, round(hidden * width / settings.width)),
        parametrization=parametrization,
    )
    training = dataclasses.replace(
        config.training,
        seed=seed,
        precision="float32",
        batch_size=min(config.training.batch_size, _WINDOWS),
        gradient_accumulation_steps=1,
    )
    return dataclasses.replace(config, model=Choice(config.model.name, settings), training=training)


Measured = dict[str, tuple[list[float], list[float]]]


def _trained(config: RunConfig, data: RunData, device: torch.device, steps: int) -> Measured:
    """Return scale and movement by place, each by step from 0 to `steps`."""
    run = build_run(config, data, device)
    parameters = list(run.state.model.parameters())
    set_learning_rate(run.state.optimizer, config.optimizer.settings.lr)
    found: Measured = {}
    with contextlib.closing(run.state.loader):
        batch = run.state.loader.next_step()
        first = _activations(run, batch.micro_batches[0], device)
        for step in range(steps + 1):
            if step:
                accumulate(run.state.model, run.task, batch, device, contextlib.nullcontext())
                clip(parameters, config.training.grad_clip_max_norm)
                run.state.optimizer.step()
            seen = _activations(run, batch.micro_batches[0], device)
            for name, values in seen.items():
                scale, moved = found.setdefault(name, ([], []))
                scale.append(float(values.abs().mean()))
                moved.append(float((values - first[name]).abs().mean()))
    return found


@torch.no_grad()
def _activations(run: BuiltRun, batch: Any, device: torch.device) -> dict[str, torch.Tensor]:
    """Return what the model computes at each place for a batch, without dropout."""
    model: Any = run.state.model
    seen: dict[str, torch.Tensor] = {}
    model.eval()
    with _watched(model, seen):
        run.task.loss_sum(model, batch, device)
    model.train()
    return seen


@contextlib.contextmanager
def _watched(model: Any, seen: dict[str, torch.Tensor]) -> Iterator[None]:
    """Put into `seen` what passes the places of a decoder in one forward pass."""
    with contextlib.ExitStack() as hooks:

        def enters(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            seen["embedding"] = inputs[0]

        hooks.callback(model.model.layers[0].register_forward_pre_hook(enters).remove)
        for number, (_, block) in enumerate(blocks(model)):
            hooks.callback(block.register_forward_hook(_keep(seen, f"block {number}")).remove)
        for number, (_, layer) in enumerate(attentions(model)):
            hooks.callback(layer.register_forward_hook(_keep_scores(seen, f"{ATTENTION} {number}")).remove)

        def ends(module: nn.Module, inputs: tuple[Any, ...], hidden: torch.Tensor) -> None:
            seen["logits"] = model.logits(hidden)

        hooks.callback(model.model.register_forward_hook(ends).remove)
        yield


def _keep(seen: dict[str, torch.Tensor], name: str) -> Any:
    def keep(module: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        seen[name] = output

    return keep


def _keep_scores(seen: dict[str, torch.Tensor], name: str) -> Any:
    def keep(layer: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        hidden = inputs[0]
        queries = torch.arange(min(hidden.shape[1], _QUERIES), device=hidden.device)
        scores = layer.scores(hidden, *inputs[1:], queries)
        seen[name] = scores[scores != -math.inf]

    return keep


def _mean(rows: Iterable[Sequence[float]]) -> tuple[float, ...]:
    """Return the geometric mean of each column of rows of one length: a seed that stands out does not decide it."""
    return tuple(math.prod(column) ** (1 / len(column)) for column in zip(*rows, strict=True))
