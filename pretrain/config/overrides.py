"""`KEY=VALUE` of the command line laid over a configuration, each value read by the rules of the file."""

import copy
import re
from collections.abc import Sequence
from typing import Any

from pretrain.config import strict_yaml
from pretrain.config.settings import DOMAIN_MAPS, TRACKER_MAP, depth_of
from pretrain.errors import ConfigError

Path = tuple[str, ...]
_DOMAINS = tuple(("data", name) for name in DOMAIN_MAPS)


class Document:
    """What the user wrote: nested plain values, and for each of them the file or override that said it."""

    def __init__(self, tree: dict[str, Any], where: str) -> None:
        self.tree = copy.deepcopy(tree)
        self._sections = frozenset(tree)
        self.where = where
        self._origins: dict[Path, str] = {}

    def origin(self, path: Path) -> str:
        """The file, or `override KEY=VALUE`, that a value or the nearest mapping around it comes from."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._origins:
                return self._origins[path[:length]]
        if len(path) == 1 and path[0] not in self._sections:
            return next((origin for inner, origin in self._origins.items() if inner[0] == path[0]), self.where)
        return self.where

    def is_from_file(self, path: Path) -> bool:
        return self.origin(path) == self.where

    def apply(self, overrides: Sequence[str]) -> None:
        """Lay overrides over the tree in their order; ConfigError lists every one that cannot be read."""
        problems = []
        for override in overrides:
            try:
                self._apply(override)
            except ConfigError as error:
                problems.append(str(error))
        if problems:
            raise ConfigError(*problems)

    def _apply(self, override: str) -> None:
        where = f"override {override}"
        key, equals, text = override.partition("=")
        if not equals:
            raise ConfigError(f"{where}: expected KEY=VALUE, as in training.max_steps=20")
        if not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", key):
            example = "; give a list as a whole, as in optimizer.betas=[0.9, 0.95]" if "[" in key else ""
            raise ConfigError(f"{where}: {key!r} is not a key; expected names joined by points{example}")
        value = strict_yaml.parse(text, where)
        path = self._path(key, isinstance(value, dict))
        if len(path) > (4 if path[:2] in (*_DOMAINS, TRACKER_MAP) else depth_of(path[0])):
            raise ConfigError(f"{where}: {key} goes deeper than any setting; give a list or a mapping as a whole")
        node = self.tree
        for length, name in enumerate(path[:-1], start=1):
            if node.get(name) is None:
                node[name] = {}  # null is what a group of settings may be that is not used
            node = node[name]
            if not isinstance(node, dict):
                raise ConfigError(f"{where}: {'.'.join(path[:length])} is not a section, so it has no settings")
        self._merge(node, path, value, where)

    def _merge(self, node: dict[str, Any], path: Path, value: Any, where: str) -> None:
        """A mapping is merged key by key, anything else takes the place of what was there."""
        old = node.get(path[-1])
        if isinstance(value, dict) and isinstance(old, dict):
            if not value:
                raise ConfigError(
                    f"{where}: an empty mapping is merged into {'.'.join(path)} and changes nothing; "
                    "take the keys out of the file instead"
                )
            for name, inner in value.items():
                self._merge(old, (*path, name), inner, where)
            return
        node[path[-1]] = value
        self._origins[path] = where

    def _path(self, key: str, is_mapping: bool) -> Path:
        """The names a key is made of; the name of a domain may hold points itself."""
        names = key.split(".")
        if len(names) < 4 or tuple(names[:2]) not in _DOMAINS:
            return tuple(names)
        domains = self.tree.get("data") or {}
        known = domains.get(names[1]) if isinstance(domains, dict) else None
        whole, parent = ".".join(names[2:]), ".".join(names[2:-1])
        known = known if isinstance(known, dict) else {}
        if whole in known or (is_mapping and parent not in known):
            return ("data", names[1], whole)
        return ("data", names[1], parent, names[-1])
