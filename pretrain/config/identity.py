"""What makes two runs the same run, and what a resume may change."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pretrain.config.canonical import leaves, text_of, tree_of, value_text
from pretrain.config.load import parse
from pretrain.config.overrides import Document
from pretrain.config.settings import DOMAIN_MAPS, NAMED, TRACKER_MAP, InitSettings, RunConfig, settings_of
from pretrain.errors import ConfigError

# A `*` stands for any one name, or for the name of a domain; all else is refused.
RESUMABLE: tuple[str, ...] = (
    "run.dir",
    "training.max_steps",
    "training.device",
    "training.threads",
    "training.watchdog_timeout_seconds",
    "init.from_checkpoint",
    "init.from_huggingface",
    "data.train.*.path",
    "data.validation.*.path",
    "checkpoint.max_rolling_checkpoints",
    "checkpoint.keep_every_n_steps",
    "checkpoint.storage_wait_seconds",
    "checkpoint.on_low_disk",
    "telemetry.*",
    "thermal.*",
)
# What `resume --migrate` may change besides: the run is another one from there on, and a row says so.
MIGRATABLE: tuple[str, ...] = ("scheduler.*", "training.max_steps")
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


def identity_sha256(config: RunConfig, data_hashes: Mapping[str, str], init_sha256: str | None = None) -> str:
    """SHA-256 of the canonical text without what a resume may change, data paths replaced by their SHA-256.

    init_sha256: of the weights that the run starts from, where `init` names any; it takes the place of their path.

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
    if (init_sha256 is None) != (config.init == InitSettings()):
        raise ValueError(f"init_sha256: expected one where init names weights, and only there; found {init_sha256}")
    kept = _kept(tree)
    if init_sha256 is not None:
        kept["init"] = {"sha256": init_sha256}
    return hashlib.sha256(text_of(kept).encode()).hexdigest()


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


def resumed(parent: RunConfig, overrides: Sequence[str], *, migrate: bool = False) -> RunConfig:
    """The child's configuration: the parent's with overrides; ConfigError lists what a resume must keep.

    migrate: the child may be another run, in what MIGRATABLE names.
    """
    written = tree_of(parent)
    if migrate:
        _drop_strange_keys(written["scheduler"], overrides)
    child = parse(text_of(written), "the parent's config.yaml", overrides)
    refused = [change for change in difference(parent, child).refused if not (migrate and is_migratable(change.key))]
    if refused:
        raise ConfigError(*map(_refusal, refused))
    return child


def is_migratable(key: str) -> bool:
    """Whether `resume --migrate` may give a key another value that a resume otherwise keeps."""
    return any(_matches(key, pattern) for pattern in MIGRATABLE)


def _drop_strange_keys(scheduler: dict[str, Any], overrides: Sequence[str]) -> None:
    """Take out what the schedule that the overrides choose does not know: it was the parent's schedule that had it."""
    written = Document({}, "the overrides")
    written.apply(overrides)
    chosen = written.tree.get("scheduler")
    name = chosen.get(NAMED["scheduler"].key) if isinstance(chosen, dict) else None
    entry = NAMED["scheduler"].table.get(name) if isinstance(name, str) else None
    if entry is not None:
        for key in set(scheduler) - set(settings_of(entry.settings)) - {NAMED["scheduler"].key}:
            del scheduler[key]


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
        return f"{values}; a resume can only raise it, and with --migrate lower it"
    if is_migratable(change.key):
        return f"{values}; a resume keeps it. With --migrate it may change, and the run is another one from there on"
    return f"{values}; a resume keeps it. Start another run for that, or change only {', '.join(RESUMABLE)}"


def _may_change(change: Change) -> bool:
    if change.key == "training.max_steps":
        return bool(change.new > change.old)
    if change.key.startswith("init."):  # other weights, or none, are another run; where they lie is not
        return None not in (change.old, change.new)
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
