"""How a thing is chosen by name: its settings and the function that builds it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class Entry(Generic[S, T]):
    """One row of a room's table: the frozen dataclass of its settings, and `build(settings, ...)`."""

    settings: type[S]
    build: Callable[..., T]


@dataclass(frozen=True)
class Choice(Generic[S]):
    """A section of the config that picked an entry by name; `settings` is an instance of its settings."""

    name: str
    settings: S


def limited(
    default: Any,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: Sequence[str] | None = None,
) -> Any:
    """A dataclass field with the limits that the config check applies to it, element by element in a list.

    The field's `metadata` holds exactly the limits that were given, under the names used here.
    """
    given = {"at_least": at_least, "at_most": at_most, "above": above, "below": below, "choices": choices}
    metadata = {name: limit for name, limit in given.items() if limit is not None}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)
