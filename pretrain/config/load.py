"""From what the user wrote to a RunConfig: the entries by name first, then the settings of each."""

import dataclasses
import os
import re
import stat
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

from omegaconf import OmegaConf

from pretrain.config import check, strict_yaml
from pretrain.config.overrides import Document
from pretrain.config.parts import Part, parts_of
from pretrain.config.references import UNSET, ReferenceFaultError, References, UnsetTargetError
from pretrain.config.settings import DOMAIN_MAPS, NAMED, SECTIONS, TRACKER_MAP, RunConfig, groups_of, settings_of
from pretrain.config.values import UnfitError, expected_of, fit
from pretrain.errors import ConfigError
from pretrain.models import sizes
from pretrain.registry import Choice

Path = tuple[str, ...]

_KEY = re.compile(r"[a-z_]\w*(?:\.[a-z_]\w*)+")


def load(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> RunConfig:
    """The configuration of a file under `KEY=VALUE` overrides; ConfigError lists all that is wrong."""
    where = os.fspath(path)
    return parse(strict_yaml.decode(_read(where), where), where, overrides)


def parse(text: str, where: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Like `load`, for a text that has been read already; `where` names it in errors."""
    document = Document(strict_yaml.parse_mapping(text, where), where)
    document.apply(overrides)
    _name_default_data(document.tree)
    _fill_in_size(document.tree, where)
    parts, problems = parts_of(document)
    values, found = _values(document, parts)
    problems += found
    if problems:
        raise ConfigError(*problems)
    config = _assemble(parts, values)
    contradictions = check.contradictions(config, precision_is_given="precision" in document.tree["training"])
    if contradictions:
        raise ConfigError(*(f"{_where(document, one)}: {one}" for one in contradictions))
    return check.resolve(config)


def _where(document: Document, contradiction: str) -> str:
    """The file, and the overrides of the keys that a contradiction names."""
    origins = (document.origin(tuple(key.split("."))) for key in _KEY.findall(contradiction))
    given = sorted({origin.removeprefix("override ") for origin in origins if origin.startswith("override ")})
    return f"{document.where} with {', '.join(given)}" if given else document.where


def _name_default_data(tree: dict[str, Any]) -> None:
    """A text run that names no data at all trains on the corpus that every Python has, its last tenth held out."""
    task, data = tree.get("task") or {}, tree.setdefault("data", {})
    is_text = isinstance(task, dict) and task.get("name", "text") == "text"
    if is_text and isinstance(data, dict) and not data.keys() & {*DOMAIN_MAPS}:
        data["train"] = {"pydoc": {"source": "text", "path": "builtin:pydoc", "span": [0.0, 0.9]}}
        data["validation"] = {"pydoc": {"source": "text", "path": "builtin:pydoc", "span": [0.9, 1.0]}}


def _fill_in_size(tree: dict[str, Any], where: str) -> None:
    """A model that is named by its size has that size's numbers, in the place of defaults."""
    model = tree.get("model")
    if not isinstance(model, dict) or "size" not in model:
        return
    if isinstance(model["size"], str) and "${" in model["size"]:
        # The size decides what other keys are by default, and those are needed before references are followed.
        raise ConfigError(f"{where}: model.size must be a name, not a reference; found {model['size']!r}")
    sizes.fill(model)


def _read(where: str) -> bytes:
    """The bytes of a regular file, one more than is allowed at most; a pipe or a device is not waited for."""
    try:
        descriptor = os.open(where, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{where}: cannot be opened: {reason}; expected a YAML file") from None
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            raise ConfigError(f"{where}: is {kind}; expected a YAML file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(strict_yaml.SIZE_LIMIT + 1)
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def _values(document: Document, parts: Sequence[Part]) -> tuple[dict[Path, Any], list[str]]:
    """Every setting by path, references followed, type and limits checked; and what is wrong with them."""
    leaves: dict[Path, Any] = {}
    for part in parts:
        if part.chooser is not None:
            leaves[(*part.path, part.chooser.key)] = part.name
        for setting in part.own.values():
            default = UNSET if setting.default is dataclasses.MISSING else setting.default
            leaves[(*part.path, setting.name)] = part.given.get(setting.name, default)
    references, values, problems = References(leaves), {}, []
    for part in parts:
        for setting in part.own.values():
            path = (*part.path, setting.name)
            key, origin = ".".join(path), document.origin(path)
            try:
                value = references.value(path)
                if isinstance(value, str) and value == UNSET:
                    problems.append(
                        f"{origin}: {key} must be given: {expected_of(setting)}; add it, or pass {key}=VALUE"
                    )
                    continue
                values[path] = fit(setting, value)
            except UnsetTargetError:
                continue
            except (UnfitError, ReferenceFaultError) as error:
                problems.append(f"{origin}: {key} {error}")
    return values, problems


def _assemble(parts: Sequence[Part], values: dict[Path, Any]) -> RunConfig:
    by_path = {part.path: part for part in parts}
    maps: dict[str, dict[str, dict[str, Any]]] = {"data": {name: {} for name in DOMAIN_MAPS}}
    maps[TRACKER_MAP[0]] = {TRACKER_MAP[1]: {}}
    for part in parts:
        if part.is_domain:
            maps["data"][part.path[1]][part.path[2]] = Choice(part.name, _instance(part, by_path, values))
        elif part.is_tracker:
            maps[part.path[0]][part.path[1]][part.path[2]] = _instance(part, by_path, values)
    sections: dict[str, Any] = {}
    for section in SECTIONS:
        part = by_path[(section,)]
        frozen = {name: MappingProxyType(entries) for name, entries in maps.get(section, {}).items()}
        made = _instance(part, by_path, values, **frozen)
        sections[section] = Choice(part.name, made) if section in NAMED else made
    return RunConfig(**sections)


def _instance(part: Part, by_path: Mapping[Path, Part], values: dict[Path, Any], **maps: Any) -> Any:
    """A settings object by way of OmegaConf's schema of its keys, the second gate behind `fit`; its groups first."""
    parts = {name: by_path.get((*part.path, name)) for name in groups_of(part.settings)}
    groups = {name: None if one is None else _instance(one, by_path, values) for name, one in parts.items()}
    own = settings_of(part.settings)
    given = {name: values[(*part.path, name)] for name in own}
    fields = tuple((setting.name, setting.annotation) for setting in own.values())
    merged = OmegaConf.to_object(OmegaConf.merge(_schema(part.settings.__name__, fields), given))
    return part.settings(**{name: getattr(merged, name) for name in given}, **groups, **maps)


@cache
def _schema(name: str, fields: tuple[tuple[str, Any], ...]) -> Any:
    """The keys of a settings class that hold a value, with their types.

    OmegaConf cannot type a map whose entries are of several classes; each of those has a schema of its own.
    """
    return OmegaConf.structured(dataclasses.make_dataclass(name, fields))
