"""Settings that are given and that nothing obeys, or less than they say; pure functions of the configuration."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from pretrain.config.canonical import value_text
from pretrain.config.settings import RunConfig
from pretrain.models import DecoderSettings, departures
from pretrain.optimizers import RoleGroups

_GALORE = "galore_"


def contradictions(config: RunConfig) -> Iterator[str]:
    """Yield the values of `optimizer.groups` for parts that the model does not have, one line each."""
    model, groups = config.model.settings, getattr(config.optimizer.settings, "groups", None)
    if not isinstance(model, DecoderSettings) or not isinstance(groups, RoleGroups):
        return
    absent = {}
    if model.experts is None:
        absent["router"] = "model.experts is null; set model.experts.count"
    if config.task.name == "text" and model.tie_embeddings:
        absent["head"] = (
            "the head is the matrix of the embedding (model.tie_embeddings); set it for optimizer.groups.embeddings, "
            "or model.tie_embeddings to false"
        )
    for role, why in absent.items():
        for key, value in _changed(getattr(groups, role), getattr(RoleGroups(), role)):
            yield f"optimizer.groups.{role}.{key} is {value}, but nothing obeys it: {why}, or leave it out"


def warnings(config: RunConfig) -> Iterator[str]:
    """Yield what has no effect, or half of it, and what is kept of checkpoints where two cadences do not meet."""
    model = config.model.settings
    if isinstance(model, DecoderSettings) and (found := departures(model)):
        differs = ", ".join(f"{key} is {value_text(own)} in place of {value_text(value)}" for key, own, value in found)
        yield f"model.size {model.size}: what is given beside it wins: {differs}"
    optimizer = config.optimizer.settings
    if not getattr(optimizer, "use_galore", True):
        for key, value in _changed(optimizer, type(optimizer)(), _GALORE):
            yield f"optimizer.{key} is {value}, and nothing obeys it while optimizer.use_galore is false"
    every, keep = config.checkpoint.checkpoint_every_n_steps, config.checkpoint.keep_every_n_steps
    if keep is not None and keep % every:
        yield (
            f"checkpoint.keep_every_n_steps ({keep}) is no multiple of checkpoint.checkpoint_every_n_steps ({every}), "
            f"and what is not saved is not kept: {_kept(math.lcm(every, keep), config.training.max_steps)}"
        )


def _kept(common: int, last: int) -> str:
    """Say which steps are multiples of both cadences."""
    if common > last:
        return f"only step 0 is; both meet at step {common} first, and training.max_steps is {last}"
    if common == last:
        return f"only steps 0 and {common} are, the multiples of both"
    shown = ", ".join(str(step) for step in range(0, last + 1, common)[:3])
    return f"only multiples of {common} are, steps {shown}" + (" and so on" if last // common > 2 else "")


def _changed(settings: Any, default: Any, begin: str = "") -> Iterator[tuple[str, str]]:
    """Yield key and value, as a config has it, of what is not the default, of the keys with this begin."""
    for one in (field for field in dataclasses.fields(settings) if field.name.startswith(begin)):
        value = getattr(settings, one.name)
        if value != getattr(default, one.name):
            yield one.name, value_text(list(value) if isinstance(value, tuple) else value)
