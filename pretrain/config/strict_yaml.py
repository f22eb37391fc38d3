"""YAML as its writer meant it: one mapping of plain values, with the line of everything that is odd."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from pretrain.errors import ConfigError

SIZE_LIMIT = 256 * 1024
DEPTH_LIMIT = 12
_DIGITS_LIMIT = 40

INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
FLOAT = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")


def decode(data: bytes, where: str) -> str:
    """The text of a file; ConfigError where it is larger than SIZE_LIMIT or not UTF-8, with the offset."""
    if len(data) > SIZE_LIMIT:
        raise ConfigError(f"{where}: a configuration is at most {SIZE_LIMIT} bytes; this one is larger")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where}: a configuration is UTF-8 text; byte {error.start} is not (save the file as UTF-8)"
        ) from None


def parse_mapping(text: str, where: str) -> dict[str, Any]:
    """One document whose top is a mapping; ConfigError names `where` and the line otherwise."""
    value = parse(text, where)
    if not isinstance(value, dict):
        found = "nothing" if value is None else f"a {'list' if isinstance(value, list) else 'single value'}"
        raise ConfigError(f"{where}: expected sections (`training:`, `model:`, ...) at the top; found {found}")
    return value


def parse(text: str, where: str) -> Any:
    """A value made of dict, list, str, int, float, bool and None.

    Scalars follow the core schema of YAML 1.2, and only where they cannot be misread: `true` and `false`,
    decimal integers, decimal floats. All else that is not quoted (`010`, `1_000`, `12:30:00`, `no`, `.nan`)
    stays the text it is, so that the check of a number's type meets it. Keys are text as written. Anchors,
    aliases, merge keys, tags, directives, repeated keys and a second document are ConfigErrors with the line.
    """
    builder = _Builder(where)
    try:
        for event in _events(text, where):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _error(where, mark, _reason(error)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(
            f"{where}: line {line}: character {error.character:#x} does not belong in YAML; remove it"
        ) from None
    if builder.problems:
        raise ConfigError(*builder.problems)
    return builder.root


def _events(text: str, where: str) -> Iterator[Any]:
    """The parser's events, which hold no Python object yet: no tag has been obeyed and no alias followed."""
    documents = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise _error(where, event.start_mark, "a second document begins here; a configuration is one document")
            if event.version or event.tags:
                raise _error(where, event.start_mark, "directives (%) are not read here; remove the line")
        elif isinstance(event, yaml.AliasEvent):
            raise _error(where, event.start_mark, f"aliases (*{event.anchor}) are not read; write ${{section.key}}")
        else:
            anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
            if anchor:
                raise _error(where, event.start_mark, f"anchors (&{anchor}) are not read; write ${{section.key}}")
            if tag:
                raise _error(where, event.start_mark, f"tags ({tag}) are not read; remove it")
        yield event


@dataclass
class _Open:
    """A mapping or list that is still being read."""

    value: dict[str, Any] | list[Any]
    key: str | None = None
    lines: dict[str, int] = field(default_factory=dict)


class _Builder:
    """Puts the events together without recursion, so that no nesting can exhaust the stack."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.root: Any = None
        self.stack: list[_Open] = []
        self.problems: list[str] = []

    def take(self, event: Any) -> None:
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._open(event)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._put(self.stack.pop().value)

    def _open(self, event: Any) -> None:
        if len(self.stack) >= DEPTH_LIMIT:
            raise _error(self.where, event.start_mark, f"nested more than {DEPTH_LIMIT} deep")
        if self._expects_key():
            raise _error(self.where, event.start_mark, "a key is a plain word, not a list or a mapping")
        self.stack.append(_Open({} if isinstance(event, yaml.MappingStartEvent) else []))

    def _expects_key(self) -> bool:
        return bool(self.stack) and isinstance(self.stack[-1].value, dict) and self.stack[-1].key is None

    def _scalar(self, event: Any) -> None:
        if not self._expects_key():
            self._put(plain(event.value) if event.style is None else event.value)
            return
        key, line, top = event.value, event.start_mark.line + 1, self.stack[-1]
        if event.style is None and key == "<<":
            raise _error(self.where, event.start_mark, "merge keys (<<) are not read; write the keys out")
        if key in top.lines:
            self.problems.append(f"{self.where}: line {line}: key {key} is given twice, in line {top.lines[key]} too")
        top.lines.setdefault(key, line)
        top.key = key

    def _put(self, value: Any) -> None:
        if not self.stack:
            self.root = value
            return
        top = self.stack[-1]
        if isinstance(top.value, list):
            top.value.append(value)
        elif top.key is not None:
            top.value[top.key] = value
            top.key = None


def plain(text: str) -> Any:
    """The value of an unquoted scalar; whatever is not surely null, a boolean or a number stays text."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if len(text) > _DIGITS_LIMIT:
        return text
    if INTEGER.fullmatch(text):
        return int(text)
    if FLOAT.fullmatch(text):
        number = float(text)
        underflowed = number == 0.0 and re.search(r"[1-9]", re.split("[eE]", text)[0]) is not None
        return text if underflowed or math.isinf(number) else number
    return text


def _reason(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or error.context or "this is not YAML"
    if "'\\t'" in problem:
        return "a tab stands where YAML takes spaces; indent with spaces"
    if "mapping values are not allowed" in problem:
        return "a second `:` in one line, or an indentation that does not fit; quote the text or indent the key"
    if "got '{'" in problem or "got '${" in problem:
        return f'{problem}; between braces a reference stands in quotes, "${{section.key}}"'
    if "found '?'" in problem:
        return f"{problem}; between braces ??? stands in quotes"
    if "cannot start any token" in problem:
        return f"{problem}; put the value in quotes"
    return f"{error.context}: {problem}" if error.context and error.problem else problem


def _error(where: str, mark: Any, reason: str) -> ConfigError:
    return ConfigError(f"{where}: line {mark.line + 1}: {reason}" if mark is not None else f"{where}: {reason}")
