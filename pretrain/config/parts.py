"""Which settings class answers for each stretch of a configuration, and the keys that nothing answers for."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pretrain.config.later import LATER
from pretrain.config.overrides import Document
from pretrain.config.references import ReferenceFaultError, References
from pretrain.config.settings import (
    DOMAIN_MAPS,
    NAMED,
    SECTIONS,
    SOURCE,
    TRACKER_MAP,
    Group,
    NamedSection,
    Setting,
    groups_of,
    maps_of,
    plain_sections,
    settings_of,
)
from pretrain.config.values import UnfitError, fit, near, shown
from pretrain.optimizers import MOMENT_KEYS
from pretrain.telemetry.trackers import TRACKERS

Path = tuple[str, ...]
_DOMAIN_MAPS = tuple(("data", kind) for kind in DOMAIN_MAPS)
_GROUPS = ("optimizer", "groups")
_DOMAIN = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


@dataclass(frozen=True)
class Part:
    """A section, a group in one, one domain of `data` or one tracker: the class that types it, and the values given.

    path: ("training",), ("spikes", "loss"), ("data", "train", DOMAIN) or ("telemetry", "trackers", NAME). chooser,
    name: how it picked its entry and which; None and "" where the class is always the same, None for a tracker, whose
    key is its name. defaults: see `settings_of`.
    """

    path: Path
    settings: type[Any]
    given: Mapping[str, Any]
    chooser: NamedSection | None = None
    name: str = ""
    defaults: Any = None

    @property
    def is_domain(self) -> bool:
        return self.chooser is SOURCE

    @property
    def is_tracker(self) -> bool:
        return self.path[:2] == TRACKER_MAP and len(self.path) == 3

    @property
    def own(self) -> Mapping[str, Setting]:
        """The settings that hold a value here, with the defaults that hold here."""
        return settings_of(self.settings, self.defaults)

    @property
    def keys(self) -> list[str]:
        """The keys that may stand in it."""
        own = [] if self.chooser is None else [self.chooser.key]
        return [*own, *self.own, *groups_of(self.settings), *maps_of(self.settings)]


def parts_of(document: Document) -> tuple[list[Part], list[str]]:
    """The parts of what the user wrote, every section among them; and what is wrong with names and shapes."""
    survey = _Survey(document)
    for section in SECTIONS:
        survey.section(section)
    for part in survey.parts:
        survey.unknown_keys(part)
    survey.unknown_sections()
    return survey.parts, survey.problems


@dataclass
class _Survey:
    document: Document
    parts: list[Part] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._names = References(self._choosers())

    def section(self, section: str) -> None:
        given = self._mapping((section,), self.document.tree.get(section, {}))
        if section in NAMED:
            self._named((section,), NAMED[section], given)
            return
        self._add(Part((section,), plain_sections()[section], given))
        for kind in DOMAIN_MAPS if section == "data" else ():
            self._domains(kind, self._mapping((section, kind), given.get(kind, {})))
        if section == TRACKER_MAP[0]:
            self._trackers(self._mapping(TRACKER_MAP, given.get(TRACKER_MAP[1], {})))

    def unknown_keys(self, part: Part) -> None:
        for key in part.given:
            if key not in part.keys:
                path = (*part.path, key)
                self._report(path, f"is not a setting of {part.name or '.'.join(part.path)}{self._hint(part, key)}")

    def unknown_sections(self) -> None:
        for name in self.document.tree:
            if name in SECTIONS:
                continue
            elsewhere = self._elsewhere(name)
            guess = near(name, SECTIONS)
            hint = (
                f"; did you mean {elsewhere or guess}?" if elsewhere or guess else f"; expected {', '.join(SECTIONS)}"
            )
            later = next((key for key in LATER if name == key or key.endswith(f".{name}")), None)
            if later is not None:
                hint = f"; {'it' if later == name else later} is not in this version"
            self._report((name,), f"is not a section{hint}")

    def _domains(self, kind: str, domains: Mapping[str, Any]) -> None:
        if kind == "train" and not domains:
            self._report(("data", kind), "must name at least one domain, as in {corpus: {source: text, path: FILE}}")
        for domain, value in domains.items():
            path = ("data", kind, domain)
            if not _DOMAIN.fullmatch(domain):
                self._report(path, "is no name for a domain; expected letters, digits, `_`, `-` and single points")
            elif isinstance(value, dict):
                self._named(path, SOURCE, value)
            else:
                self._mapping(path, value)

    def _trackers(self, given: Mapping[str, Any]) -> None:
        for name in given.keys() - TRACKERS.keys():
            guess = near(name, list(TRACKERS))
            hint = f"did you mean {guess}?" if guess else f"expected {', '.join(TRACKERS)}"
            self._report((*TRACKER_MAP, name), f"is not a tracker; {hint}")
        for name, entry in TRACKERS.items():  # in one order, whatever the user's
            value = given.get(name)  # null: without it, so that a resume can do without one that its parent had
            if value is not None:
                path = (*TRACKER_MAP, name)
                self._add(Part(path, entry.settings, self._mapping(path, value), name=name))

    def _named(self, path: Path, chooser: NamedSection, given: Mapping[str, Any]) -> None:
        key = (*path, chooser.key)
        try:
            name = self._names.value(key)
        except ReferenceFaultError as fault:
            self._report(key, str(fault))
            return
        if not isinstance(name, str) or name not in chooser.table:
            guess = near(name, list(chooser.table)) if isinstance(name, str) else None
            hint = f"; did you mean {guess}?" if guess else ""
            self._report(key, f"must be one of {', '.join(chooser.table)}; found {shown(name)}{hint}")
            return
        self._add(Part(path, chooser.table[name].settings, given, chooser, name))

    def _add(self, part: Part) -> None:
        """Take a part in, and after it the groups in it."""
        self.parts.append(part)
        for name, group in groups_of(part.settings, part.defaults).items():
            path = (*part.path, name)
            value = part.given.get(name)
            if group.is_optional and value is None:
                continue
            if group.is_optional and not isinstance(value, dict):
                self._not_a_group(path, group, value)
                continue
            given = self._mapping(path, part.given.get(name, {}))
            self._add(Part(path, group.settings, given, defaults=group.defaults))

    def _not_a_group(self, path: Path, group: Group, value: Any) -> None:
        """Report a value in the place of an optional group; where one key must be given, it is probably that one's."""
        needed = [one for one in settings_of(group.settings, group.defaults).values() if one.is_required]
        example = ""
        if len(needed) == 1:
            with contextlib.suppress(UnfitError):
                example = f", as in {'.'.join(path)}={{{needed[0].name}: {shown(fit(needed[0], value))}}}"
        self._report(path, f"must be a group of settings, a mapping of keys to values{example}; found {shown(value)}")

    def _choosers(self) -> dict[Path, Any]:
        """What is written anywhere, and the default of every name, for the names that are references."""
        leaves: dict[Path, Any] = {}
        for section, value in self.document.tree.items():
            leaves.update(_written((section,), value))
            for kind in DOMAIN_MAPS if section == "data" and isinstance(value, dict) else ():
                domains = value.get(kind)
                for domain in domains if isinstance(domains, dict) else ():
                    leaves.setdefault(("data", kind, domain, SOURCE.key), SOURCE.default)
        for section, chooser in NAMED.items():
            leaves.setdefault((section, chooser.key), chooser.default)
        return leaves

    def _hint(self, part: Part, key: str) -> str:
        """What may have been meant by a key that a part does not have."""
        generic = ".".join((*part.path[:2], "*") if part.is_domain else part.path)
        if f"{generic}.{key}".replace("data.validation", "data.train") in LATER:
            return "; it is not in this version"
        chosen = (*part.path, part.chooser.key) if part.chooser else part.path
        if part.chooser and self.document.is_from_file((*part.path, key)) and not self.document.is_from_file(chosen):
            return f", which {self.document.origin(chosen)} chose; take the key out of {self.document.where}"
        longer = next((name for name in part.keys if "_" in key and name.endswith(f"_{key}")), None)
        elsewhere, guess = None if longer else self._elsewhere(key), longer or near(key, part.keys)
        if elsewhere and not (guess and guess.lower() == key.lower()):
            return f"; did you mean {elsewhere}?"
        if guess:
            return f"; did you mean {guess}?"
        return f"; expected {', '.join(part.keys)}" if part.keys else "; it has none"

    def _elsewhere(self, key: str) -> str | None:
        """The full name of a setting of this name in some section, one that is not refused there."""
        for part in self.parts:
            if key in part.keys and not part.is_domain and not self._is_moment_of_none(part.path, key):
                return ".".join((*part.path, key))
        return None

    def _is_moment_of_none(self, path: Path, key: str) -> bool:
        """Whether a group of the optimizer has a key that the optimizer refuses, since it has no such moments."""
        whole = next((part for part in self.parts if part.path == path[:1]), None)
        return path[:2] == _GROUPS and key in MOMENT_KEYS and whole is not None and key not in whole.keys

    def _mapping(self, path: Path, value: Any) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        what = "a section" if len(path) == 1 else "a group of settings"
        if path[:2] in _DOMAIN_MAPS:
            what = "a domain" if len(path) == 3 else "domains by name"
        if path[:2] == TRACKER_MAP:
            what = "the settings of a tracker" if len(path) == 3 else "trackers by name"
        self._report(path, f"must be {what}, a mapping of keys to values; found {shown(value)}")
        return {}

    def _report(self, path: Path, text: str) -> None:
        self.problems.append(f"{self.document.origin(path)}: {'.'.join(path)} {text}")


def _written(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    """Every value in what was written below a path."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _written((*path, name), inner)
    else:
        yield path, value
