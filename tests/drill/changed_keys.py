"""Every key of the configuration, taken from the settings, each with another value; and what a resume may change."""

import re
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pretrain.config import RunConfig, leaves, load, parse, to_yaml, tree_of, value_text
from pretrain.config.settings import (
    DOMAIN_MAPS,
    NAMED,
    SOURCE,
    Setting,
    groups_of,
    maps_of,
    plain_sections,
    settings_of,
)
from pretrain.errors import ConfigError
from pretrain.telemetry.trackers import TRACKERS
from tests.tiny import write_config

DOCUMENT = Path(__file__).parents[2] / "docs/integrity.md"
TITLE = "## What a resume may change"
SHORT = "training.max_steps=6"
# Configurations in which every entry of every table is chosen once: overrides of the tiny ones.
ENTRIES: Mapping[str, tuple[str, ...]] = {
    "text": (),
    "iq": (),
    "recording": (),
    "experts": ("model.experts={count: 4, top_k: 2}",),
    "trackers": ("telemetry.trackers={tensorboard: {}, wandb: {}}",),
    **{name: (f"optimizer.optimizer_class={name}",) for name in NAMED["optimizer"].table},
    **{name: (f"scheduler.scheduler_type={name}",) for name in NAMED["scheduler"].table},
}
# What a key takes only together with others.
TOGETHER = {
    "thermal.gpu_temp_guard": ("telemetry.gpu_metrics_backend=nvml",),
    "thermal.switch_on_thermal": ("telemetry.gpu_metrics_backend=nvml", "thermal.gpu_temp_guard=true"),
}


def configuration(name: str, folder: Path, *overrides: str) -> RunConfig:
    """Return one of ENTRIES, whose data and run lie in `folder`, with these overrides."""
    path = write_config(folder, "iq" if name in ("iq", "recording") else "text")
    if name == "recording":
        (folder / "air.cu8").write_bytes(bytes((7 * at * at + 3 * at) % 251 for at in range(40_000)))
        text = path.read_text().replace("synthetic-iq, windows: 70", f"iq, path: {folder}/air.cu8")
        path.write_text(text)
    return load(path, [SHORT, *ENTRIES[name], *overrides])


@cache
def all_keys() -> Mapping[str, Setting]:
    """Return every key that a configuration can have, `DOMAIN` for the name of a domain, and what it takes."""
    found: dict[str, Setting] = {}
    for section, cls in plain_sections().items():
        found |= dict(_keys_of(cls, f"{section}."))
    for section, named in NAMED.items():
        found[f"{section}.{named.key}"] = Setting(named.key, str, named.default, {"choices": tuple(named.table)})
        for entry in named.table.values():
            found |= dict(_keys_of(entry.settings, f"{section}."))
    for kind in DOMAIN_MAPS:
        found[f"data.{kind}.DOMAIN.{SOURCE.key}"] = Setting(SOURCE.key, str, "text", {"choices": tuple(SOURCE.table)})
        for entry in SOURCE.table.values():
            found |= dict(_keys_of(entry.settings, f"data.{kind}.DOMAIN."))
    return found


def pattern_of(key: str) -> str:
    """Return a key of a configuration as `all_keys` has it."""
    return re.sub(r"^(data\.(?:train|validation))\.[^.]+\.", r"\1.DOMAIN.", key)


def keys_of(config: RunConfig) -> Mapping[str, Any]:
    """Return every key of a configuration with its value; one that holds further keys, and is null, is one of them."""
    return dict(leaves(tree_of(config)))


def another(config: RunConfig, key: str, folder: Path) -> tuple[tuple[str, ...], bool]:
    """Return overrides that give a key another value, its own the first, and whether the configuration takes them."""
    tried: tuple[str, ...] = ()
    for value in _candidates(config, key, folder):
        overrides = (f"{key}={value}", *TOGETHER.get(key, ()))
        try:
            other = parse(to_yaml(config), "config.yaml", overrides)
        except ConfigError:
            tried = tried or overrides
            continue
        if other != config:
            return overrides, True
    assert tried, f"{key}: no other value was found to try"
    return tried, False


def allow_list() -> Mapping[str, str]:
    """Return what the document says that a resume may change, and how; a `*` stands for any one name."""
    section = DOCUMENT.read_text().partition(TITLE)[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", section, re.MULTILINE))


def _keys_of(cls: type[Any], prefix: str) -> Iterator[tuple[str, Setting]]:
    for name, setting in settings_of(cls).items():
        yield prefix + name, setting
    for name, group in groups_of(cls).items():
        yield from _keys_of(group.settings, f"{prefix}{name}.")
    if "trackers" in maps_of(cls):
        for name, entry in TRACKERS.items():
            yield from _keys_of(entry.settings, f"{prefix}trackers.{name}.")


def _candidates(config: RunConfig, key: str, folder: Path) -> Iterator[str]:
    """Yield values, as they are written, that the key may take and does not have: the likeliest first."""
    old, setting = keys_of(config)[key], all_keys().get(pattern_of(key))
    if setting is None:  # A group that is null.
        yield "{count: 4, top_k: 2}"
        return
    for value in _values(key, old, setting, folder):
        if value != old:
            yield value_text(value)


def _values(key: str, old: Any, setting: Setting, folder: Path) -> Iterator[Any]:
    kinds = typing.get_args(setting.annotation) or (setting.annotation,)
    literals = [typing.get_args(one) for one in kinds if typing.get_origin(one) is typing.Literal]
    if key.endswith(".path"):
        yield str(folder / "elsewhere" / Path(old).name)
    yield from setting.limits.get("choices") or (literals[0] if literals else ())
    if isinstance(old, list) and old:
        yield from ([*old[:place], *old[place + 1 :]] for place in range(len(old)))
        if not isinstance(old[0], str):
            yield from ([old[0], (old[0] + old[-1]) / 2], [old[0], old[-1] + 1], [(old[0] + old[-1]) / 2, old[-1]])
    elif isinstance(old, list):
        yield ["nan_grad@1"]
    elif isinstance(old, bool):
        yield not old
    elif isinstance(old, int | float):
        yield from (old + 1, old * 2, old // 2, old / 2, old + 0.25, 0)
    elif isinstance(old, str):
        yield from ("letters", "other.csv", "other", f"{old}x")
    elif old is None:
        yield from (1, 2, 0.5, True, [0.5, 0.5], "x", "cf32_le")
    yield None
