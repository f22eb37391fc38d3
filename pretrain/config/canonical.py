"""A configuration as text: every key, one order, and floats that load back to the same bits."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from pretrain.config import strict_yaml
from pretrain.config.settings import NAMED, SECTIONS, SOURCE, RunConfig
from pretrain.registry import Choice

# What readers of YAML 1.1 take for something else than text, by its first character.
_YAML_1_1: Mapping[str, Any] = yaml.SafeLoader.yaml_implicit_resolvers
_BARE = re.compile(r"[A-Za-z0-9_./-]+")


def tree_of(config: RunConfig) -> dict[str, Any]:
    """Every section and key as nested plain values, in the order in which they are written."""
    tree: dict[str, Any] = {}
    for section in SECTIONS:
        value = getattr(config, section)
        tree[section] = _chosen(value, NAMED[section].key) if section in NAMED else _plain(value)
    return tree


def leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every key with its value, the names joined by points."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def to_yaml(config: RunConfig) -> str:
    """The canonical text of a configuration; it loads to an equal one, and equal ones have equal text."""
    return text_of(tree_of(config))


def text_of(tree: Mapping[str, Any]) -> str:
    """Nested plain values as YAML that any reader, of version 1.1 or 1.2, understands alike."""
    return "".join(_lines(tree, 0))


def _lines(tree: Mapping[str, Any], depth: int) -> Iterator[str]:
    for name, value in tree.items():
        head = f"{'  ' * depth}{_word(name)}:"
        if isinstance(value, dict) and value:
            yield f"{head}\n"
            yield from _lines(value, depth + 1)
        else:
            yield f"{head} {value_text(value)}\n"


def value_text(value: Any) -> str:
    """One value as it is written behind its key."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        # YAML 1.1 takes 1e-08 for text: a float has a point.
        text = repr(value)
        return text if "." in text else text.replace("e", ".0e")
    if isinstance(value, list | tuple):
        return f"[{', '.join(value_text(one) for one in value)}]"
    if isinstance(value, dict):
        return "{}"
    return _word(value)


def _word(text: str) -> str:
    """Text bare where no YAML reader takes it for anything else, and in double quotes elsewhere."""
    if (
        _BARE.fullmatch(text)
        and not text.startswith("-")
        and text.strip(".")
        and isinstance(strict_yaml.plain(text), str)
        and not any(pattern.match(text) for _, pattern in _YAML_1_1.get(text[0], ()))
    ):
        return text
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable() and character != "\ufeff":
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _chosen(choice: Choice[Any], key: str) -> dict[str, Any]:
    return {key: choice.name, **_plain(choice.settings)}


def _plain(settings: Any) -> dict[str, Any]:
    """The keys of a settings object, its groups too; a mapping in it has sources by domain, or trackers' settings."""
    tree: dict[str, Any] = {}
    for one in dataclasses.fields(settings):
        value = getattr(settings, one.name)
        if isinstance(value, Mapping):
            tree[one.name] = {
                name: _chosen(inner, SOURCE.key) if isinstance(inner, Choice) else _plain(inner)
                for name, inner in value.items()
            }
        elif dataclasses.is_dataclass(value):
            tree[one.name] = _plain(value)
        else:
            tree[one.name] = list(value) if isinstance(value, tuple) else value
    return tree
