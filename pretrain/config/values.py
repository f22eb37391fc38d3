"""Whether a plain value fits a setting: its type, its limits, and what to write instead."""

import difflib
import math
import operator
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pretrain.config.settings import Setting
from pretrain.config.strict_yaml import FLOAT, INTEGER, plain

TEXT_LIMIT = 4096
_EXACT = 2**53
_RANGE = 2**63
_LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "at_least": ("of at least", operator.ge),
    "at_most": ("of at most", operator.le),
    "above": ("above", operator.gt),
    "below": ("below", operator.lt),
}
_TRUE = ("true", "yes", "on", "y")
_FALSE = ("false", "no", "off", "n")


class UnfitError(ValueError):
    """A value that a setting cannot take; the text goes on from the key: `must be ...; found ...`."""


def fit(setting: Setting, value: Any) -> Any:
    """The value as the setting holds it, or UnfitError.

    A float without a fraction becomes an int where an int is wanted (1e3 is 1000), and an int becomes a float
    where that is wanted, both only when nothing is lost. Nothing else is converted: a bool is no number, nor
    is text.
    """
    return _fit(setting.annotation, value, setting.limits, _length(setting))


def expected_of(setting: Setting) -> str:
    """What a setting takes, in words: `a whole number of at least 1, or null`."""
    return expectation(setting.annotation, setting.limits, _length(setting))


def expectation(annotation: Any, limits: Mapping[str, Any], length: int | None = None) -> str:
    """`expected_of` by the parts of a setting; length: how many values a list holds, None = any number."""
    choices = limits.get("choices") or (typing.get_args(annotation) if _is_literal(annotation) else None)
    options = _options(annotation)
    if type(None) in options:
        rest = [option for option in options if option is not type(None)]
        return " or ".join(expectation(option, limits, length) for option in rest) + ", or null"
    if len(options) > 1:
        return " or ".join(expectation(option, limits, length) for option in options)
    if _is_list(annotation):
        inner = expectation(_element(annotation), limits)
        count = "any number of values" if length is None else f"{length} values"
        return f"a list of {count}, each {inner}"
    if choices:
        return "one of " + ", ".join(choices) if len(choices) > 1 else f"`{choices[0]}`"
    noun = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}[annotation]
    if annotation not in (int, float):
        return noun
    if "at_least" in limits and "at_most" in limits:
        return f"{noun} from {limits['at_least']} to {limits['at_most']}"
    bounds = [f"{words} {limits[name]}" for name, (words, _) in _LIMITS.items() if name in limits]
    return f"{noun} {' and '.join(bounds)}" if bounds else noun


# What other tools call it, or what is nearer by its letters than by its meaning.
_MEANT = {"gpu": "cuda", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "gpt2": "gpt2-124m"}


def near(word: str, words: Sequence[str]) -> str | None:
    """The word that was probably meant, or None."""
    lowered = {one.lower(): one for one in reversed(words)}
    if (meant := _MEANT.get(word.lower())) in words:
        return meant
    found = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    return lowered[found[0]] if found else None


def shown(value: Any) -> str:
    """A found value in an error message, short."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return f"[{', '.join(shown(one) for one in value)}]"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _fit(annotation: Any, value: Any, limits: Mapping[str, Any], length: int | None) -> Any:
    options = _options(annotation)
    if value is None and type(None) in options:
        return None
    wanted = expectation(annotation, limits, length)
    kinds = [option for option in options if option is not type(None)]
    if len(kinds) > 1:
        return _first(kinds, value, limits, length, wanted)
    kind = kinds[0]
    if _is_list(kind):
        if not isinstance(value, list | tuple):
            raise UnfitError(f"must be {wanted}; found {shown(value)}")
        if length is not None and len(value) != length:
            raise UnfitError(f"must be {wanted}; found {len(value)}: {shown(value)}")
        made = [_fit_element(_element(kind), one, limits, wanted) for one in value]
        return tuple(made) if typing.get_origin(kind) is tuple else made
    made = _scalar(kind, value, wanted)
    for name, (_, holds) in _LIMITS.items():
        if name in limits and not isinstance(made, str | bool) and not holds(made, limits[name]):
            raise UnfitError(f"must be {wanted}; found {shown(made)}")
    choices = limits.get("choices") or (typing.get_args(kind) if _is_literal(kind) else None)
    if choices and made not in choices:
        guess = near(str(made), [str(one) for one in choices])
        raise UnfitError(f"must be {wanted}; found {shown(made)}" + (f"; did you mean {guess}?" if guess else ""))
    return made


def _fit_element(annotation: Any, value: Any, limits: Mapping[str, Any], wanted: str) -> Any:
    try:
        return _fit(annotation, value, limits, None)
    except UnfitError as error:
        raise UnfitError(f"must be {wanted}; found{str(error).partition('; found')[2]}") from None


def _first(kinds: list[Any], value: Any, limits: Mapping[str, Any], length: int | None, wanted: str) -> Any:
    """The value as the first of several types that takes it."""
    for kind in kinds:
        try:
            return _fit(kind, value, limits, length)
        except UnfitError:
            continue
    raise UnfitError(f"must be {wanted}; found {shown(value)}")


def _scalar(kind: Any, value: Any, wanted: str) -> Any:
    found = f"must be {wanted}; found {shown(value)}"
    if kind is bool:
        if isinstance(value, bool):
            return value
        raise UnfitError(found + _bool_hint(value))
    if kind is str or _is_literal(kind):
        if not isinstance(value, str):
            raise UnfitError(found + ("; put it in quotes if it is meant as text" if _is_plain(value) else ""))
        return _clean(value, found)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnfitError(found + _number_hint(value))
    if kind is int:
        return _whole(value, found)
    if not math.isfinite(value) if isinstance(value, float) else float_is_lossy(value):
        raise UnfitError(found)
    return float(value)


def float_is_lossy(value: int) -> bool:
    """Whether a whole number has no float of the same value."""
    try:
        return int(float(value)) != value
    except OverflowError:
        return True


def _whole(value: int | float, found: str) -> int:
    if isinstance(value, float):
        if not value.is_integer():
            raise UnfitError(found)
        if abs(value) > _EXACT:
            raise UnfitError(f"{found}; write a whole number of this size digit by digit")
    if not -_RANGE <= value < _RANGE:
        raise UnfitError(f"{found}, which does not fit in 64 bits")
    return int(value)


def _clean(text: str, found: str) -> str:
    """Text without what a file name, a terminal or UTF-8 would choke on."""
    if len(text) > TEXT_LIMIT:
        raise UnfitError(f"{found}; it is longer than {TEXT_LIMIT} characters")
    for character in text:
        if ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0:
            raise UnfitError(f"{found}; it holds the control character {ord(character):#04x}")
        if 0xD800 <= ord(character) <= 0xDFFF:
            raise UnfitError(f"{found}; it is not valid UTF-8")
    return text


def _bool_hint(value: Any) -> str:
    word = str(value).lower() if isinstance(value, str) else ""
    if word in _TRUE or word in _FALSE:
        return f"; write {'true' if word in _TRUE else 'false'} without quotes"
    return ""


def _number_hint(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    text = value.strip()
    if text.lower().lstrip("+-.") in ("nan", "inf", "infinity"):
        return "; a setting is a finite number"
    if INTEGER.fullmatch(text) or FLOAT.fullmatch(text):
        readable = not isinstance(plain(text), str)
        return f"; write {text} without quotes" if readable else "; that is larger or smaller than a float can be"
    if FLOAT.fullmatch(text.replace("_", "")):
        return f"; write {text.replace('_', '')} without underscores"
    unpadded = re.sub(r"^([-+]?)0+(?=[0-9])", r"\1", text)
    if FLOAT.fullmatch(unpadded):
        return f"; write {unpadded}: a leading zero can mean base eight"
    if re.fullmatch(r"[-+]?0[xob][0-9a-fA-F]+", text):
        return "; write the number in base ten"
    if FLOAT.fullmatch(text.replace(",", ".")) and not text.endswith(","):
        return f"; write {text.replace(',', '.')} with a point"
    return ""


def _options(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return typing.get_args(annotation)
    return (annotation,)


def _is_literal(annotation: Any) -> bool:
    return typing.get_origin(annotation) is typing.Literal


def _is_list(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (list, tuple)


def _is_plain(value: Any) -> bool:
    return value is not None and not isinstance(value, dict | list | tuple)


def _element(annotation: Any) -> Any:
    return typing.get_args(annotation)[0]


def _length(setting: Setting) -> int | None:
    """How many values a list must hold: as many as its type names, or as its default when they are numbers."""
    for option in _options(setting.annotation):
        if typing.get_origin(option) is tuple and typing.get_args(option)[-1] is not Ellipsis:
            return len(typing.get_args(option))
    if not isinstance(setting.default, list | tuple) or not setting.default:
        return None
    for option in _options(setting.annotation):
        if _is_list(option) and (_element(option) is str or typing.get_args(option)[-1] is Ellipsis):
            return None
    return len(setting.default)
