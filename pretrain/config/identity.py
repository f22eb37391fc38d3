"""What makes two runs the same run, and what a resume may change."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pretrain.config.canonical import leaves, text_of, to_yaml, tree_of, value_text
from pretrain.config.load import parse
from pretrain.config.settings import DOMAIN_MAPS, TRACKER_MAP, RunConfig
from pretrain.errors import ConfigError

# A `*` stands for any one name, or for the name of a domain; all else is refused.
RESUMABLE: tuple[str, ...] = (
    "run.dir",
    "training.max_steps",
    "training.device",
    "training.threads",
    "data.train.*.path",
    "data.validation.*.path",
    "checkpoint.max_rolling_checkpoints",
    "checkpoint.keep_every_n_steps",
    "telemetry.*",
    "thermal.*",
)
ABSENT = "(absent)"


@dataclass(frozen=True)
class Change:
    """One key whose value differs between two configurations; ABSENT stands where one has no such key."""

    key: str
    old: Any
    new: Any


@dataclass(frozen=True)
class Difference:
    """What a child changes of its parent's configuration, by whether a resume may change it."""

    allowed: tuple[Change, ...]
    refused: tuple[Change, ...]


def is_resumable(key: str) -> bool:
    """Whether a resume may give a key another value (`max_steps`: a greater one; a path: the same data)."""
    return any(_matches(key, pattern) for pattern in RESUMABLE)


def identity_sha256(config: RunConfig, data_hashes: Mapping[str, str]) -> str:
    """SHA-256 of the canonical text without what a resume may change, data paths replaced by their SHA-256.

    data_hashes: SHA-256 of what each domain reads, by `train.DOMAIN` and `validation.DOMAIN`; it must hold
    every domain that has a path, and may hold the others. Raises ValueError for a domain too few or too many.
    """
    tree = tree_of(config)
    known = {f"{kind}.{domain}" for kind in DOMAIN_MAPS for domain in tree["data"][kind]}
    needed = {name for name in known if "path" in tree["data"][name.split(".", 1)[0]][name.split(".", 1)[1]]}
    if not needed <= set(data_hashes) <= known:
        wrong = sorted((needed - set(data_hashes)) | (set(data_hashes) - known))
        raise ValueError(f"data_hashes: expected one for each of {sorted(needed)}; wrong: {wrong}")
    for kind in DOMAIN_MAPS:
        for domain, settings in tree["data"][kind].items():
            settings.pop("path", None)
            if f"{kind}.{domain}" in data_hashes:
                settings["sha256"] = data_hashes[f"{kind}.{domain}"]
    section, trackers = TRACKER_MAP
    del tree[section][trackers]  # not even their names: a run is the same one whoever watches it
    return hashlib.sha256(text_of(_kept(tree)).encode()).hexdigest()


def difference(parent: RunConfig, child: RunConfig) -> Difference:
    """Every key that differs. A data path may; whether it leads to the same data, `identity_sha256` tells."""
    old, new = dict(leaves(tree_of(parent))), dict(leaves(tree_of(child)))
    changes = [
        Change(key, old.get(key, ABSENT), new.get(key, ABSENT))
        for key in {**old, **new}
        if old.get(key, ABSENT) != new.get(key, ABSENT)
    ]
    allowed = [change for change in changes if _may_change(change)]
    return Difference(tuple(allowed), tuple(change for change in changes if change not in allowed))


def resumed(parent: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """The child's configuration: the parent's with overrides; ConfigError lists what a resume must keep."""
    child = parse(to_yaml(parent), "the parent's config.yaml", overrides)
    refused = difference(parent, child).refused
    if refused:
        raise ConfigError(*map(_refusal, refused))
    return child


def _kept(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """The tree without what a resume may change."""
    return {
        name: _kept(value, f"{above}{name}.") if isinstance(value, dict) else value
        for name, value in tree.items()
        if isinstance(value, dict) or not is_resumable(f"{above}{name}")
    }


def _refusal(change: Change) -> str:
    values = f"resume: {change.key} was {_shown(change.old)} and would become {_shown(change.new)}"
    if change.key == "training.max_steps":
        return f"{values}; a resume can only raise it"
    return f"{values}; a resume keeps it. Start another run for that, or change only {', '.join(RESUMABLE)}"


def _may_change(change: Change) -> bool:
    if change.key == "training.max_steps":
        return bool(change.new > change.old)
    # A domain that comes or goes, or a source that has no path, is no change of place; a tracker may come and go.
    is_tracker = change.key.startswith(".".join((*TRACKER_MAP, "")))
    return is_resumable(change.key) and (is_tracker or ABSENT not in (change.old, change.new))


def _matches(key: str, pattern: str) -> bool:
    before, star, after = pattern.partition("*")
    if not star:
        return key == pattern
    return key.startswith(before) and key.endswith(after) and len(key) > len(before) + len(after)


def _shown(value: Any) -> str:
    return ABSENT if value is ABSENT else value_text(value)
