"""`${section.key}`: a setting that takes its value from another, and nothing else a dollar could mean."""

import re
from collections.abc import Mapping
from typing import Any

from pretrain.config.values import TEXT_LIMIT, near

Path = tuple[str, ...]
UNSET = "???"
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_CHAIN_LIMIT = 20


class ReferenceFaultError(ValueError):
    """A reference that cannot be followed; the text goes on from the key that holds it."""


class UnsetTargetError(ReferenceFaultError):
    """A reference to a setting that still has to be given; that one is reported in its own place."""


class References:
    """Every setting by path, as written or by default, and each of them with its references followed.

    A value that is one reference takes the type of its target; a reference inside other text becomes text.
    """

    def __init__(self, leaves: Mapping[Path, Any]) -> None:
        self._leaves = leaves
        self._names = {".".join(path): path for path in leaves}
        self._resolved: dict[Path, Any] = {}

    def value(self, path: Path, above: tuple[Path, ...] = ()) -> Any:
        """The value of one setting.

        Raises ReferenceFaultError for a cycle, an unknown target, a resolver such as `${oc.env:HOME}`, a chain
        or a text without end, and text that only looks like a reference, UnsetTargetError for a target of `???`.
        """
        if path in above:
            circle = " -> ".join(".".join(one) for one in (*above[above.index(path) :], path))
            raise ReferenceFaultError(f"refers to itself: {circle}")
        if len(above) > _CHAIN_LIMIT:
            raise ReferenceFaultError(f"is a chain of more than {_CHAIN_LIMIT} references")
        if path not in self._resolved:
            self._resolved[path] = self._follow(self._leaves[path], (*above, path))
        return self._resolved[path]

    def _follow(self, raw: Any, above: tuple[Path, ...]) -> Any:
        if isinstance(raw, list):
            return [self._follow(one, above) for one in raw]
        if not isinstance(raw, str) or "${" not in raw:
            return raw
        whole = _REFERENCE.fullmatch(raw)
        if whole:
            return self._target(whole[1], above)
        if "${" in _REFERENCE.sub("", raw):
            raise ReferenceFaultError(f"holds an unfinished or nested reference in {raw!r}; expected ${{section.key}}")
        if len(raw) > TEXT_LIMIT:
            raise ReferenceFaultError(f"is longer than {TEXT_LIMIT} characters")
        text = _REFERENCE.sub(lambda found: _text(found[1], self._target(found[1], above)), raw)
        if len(text) > TEXT_LIMIT:
            raise ReferenceFaultError(f"grows to more than {TEXT_LIMIT} characters")
        return text

    def _target(self, name: str, above: tuple[Path, ...]) -> Any:
        if ":" in name:
            raise ReferenceFaultError(
                f"asks for the resolver {name.partition(':')[0]} (${{{name}}}); resolvers are not run, so "
                "that a configuration means the same everywhere: write the value, or give it as KEY=VALUE"
            )
        if name not in self._names:
            guess = near(name, list(self._names))
            hint = f"; did you mean ${{{guess}}}?" if guess else "; expected ${section.key}"
            raise ReferenceFaultError(f"refers to ${{{name}}}, which is not a setting{hint}")
        value = self.value(self._names[name], above)
        if isinstance(value, str) and value == UNSET:
            raise UnsetTargetError(f"refers to {name}, which must be given")
        return value


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return value if isinstance(value, str) else repr(value)
    raise ReferenceFaultError(f"puts ${{{name}}} into text, but it is {'null' if value is None else 'not one value'}")
