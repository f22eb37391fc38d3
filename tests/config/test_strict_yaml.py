"""What an unquoted word means, and what is refused with its line."""

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.config import strict_yaml
from pretrain.errors import ConfigError

SCALARS: list[tuple[str, Any]] = [
    ("1", 1),
    ("-17", -17),
    ("+3", 3),
    ("0", 0),
    ("1.5", 1.5),
    (".5", 0.5),
    ("5.", 5.0),
    ("1e3", 1000.0),
    ("1e-3", 0.001),
    ("3.0E+2", 300.0),
    ("-0.0", -0.0),
    ("true", True),
    ("false", False),
    ("null", None),
    ("~", None),
    ("", None),
    # From here on YAML 1.1 would read something else than the text.
    ("010", "010"),
    ("0o7", "0o7"),
    ("0x1F", "0x1F"),
    ("0b1", "0b1"),
    ("1_000", "1_000"),
    ("12:30:00", "12:30:00"),
    ("2026-01-01", "2026-01-01"),
    ("no", "no"),
    ("yes", "yes"),
    ("on", "on"),
    ("Off", "Off"),
    ("True", "True"),
    ("FALSE", "FALSE"),
    (".nan", ".nan"),
    ("nan", "nan"),
    (".inf", ".inf"),
    ("-.Inf", "-.Inf"),
    ("1e999", "1e999"),
    ("1e-999", "1e-999"),
    ("0e5", 0.0),
    ("1" * 41, "1" * 41),
    ("=", "="),
    ("'1'", "1"),
    ('"true"', "true"),
    ("??? # needed", "???"),
    ("${a.b}", "${a.b}"),
    ("builtin:pydoc", "builtin:pydoc"),
]


@pytest.mark.parametrize(("text", "value"), SCALARS)
def test_s38_scalar_is_what_its_writer_meant(text: str, value: Any) -> None:
    found = strict_yaml.parse(f"key: {text}", "f")["key"]
    assert (found, type(found)) == (value, type(value))
    assert repr(found) == repr(value)


REFUSED = [
    ("a: 1\nb: 2\na: 3", "f: line 3: key a is given twice, in line 1 too"),
    ("a: {b: 1, b: 2}", "f: line 1: key b is given twice"),
    ("a: &x 1\nb: *x", "f: line 1: anchors (&x) are not read"),
    ("b: *x", "f: line 1: aliases (*x) are not read"),
    ("a: !!int 3", "f: line 1: tags"),
    ("a: !!python/object/apply:os.system [ls]", "f: line 1: tags"),
    ("a: ! 3", "f: line 1: tags (!)"),
    ("a:\n  <<: {b: 1}", "f: line 2: merge keys (<<)"),
    ("a: 1\n---\nb: 2", "f: line 2: a second document begins here"),
    ("%YAML 1.1\n---\na: 1", "f: line 1: directives"),
    ("a:\n\tb: 1", "f: line 2: a tab stands where"),
    ("a: 1\n b: 2", "f: line 2: a second `:`"),
    ("a: b: c", "f: line 1: a second `:`"),
    ("a: @x", "f: line 1: found character '@' that cannot start any token; put the value in quotes"),
    ("a: {b: ${c.d}}", 'stands in quotes, "${section.key}"'),
    ("a: {b: ???}", "found '?'; between braces ??? stands in quotes"),
    ("a: [1, 2", "f: line 1: while parsing a flow sequence"),
    ("a: 'x", "f: line 1: "),
    ("a: x\0y", "f: line 1: character 0x0 does not belong in YAML"),
    ("a: 1\nb: \x1b[2J", "f: line 2: character 0x1b"),
    ("? [1]\n: 2", "f: line 1: a key is a plain word"),
    ("{a: 1}: 2", "f: line 1: a key is a plain word"),
    ("a: " + "[" * 20 + "]" * 20, "f: line 1: nested more than"),
    ("a: " + "[" * 5000, "f: line 1: nested more than"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        strict_yaml.parse(text, "f")
    assert message in str(caught.value)


def test_every_repeated_key_is_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        strict_yaml.parse("a: 1\na: 2\nb: {c: 1, c: 2}\n", "f")
    assert len(str(caught.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "found"), [("", "nothing"), ("# only\n", "nothing"), ("- a", "a list"), ("word", "a single value")]
)
def test_the_top_is_a_mapping(text: str, found: str) -> None:
    with pytest.raises(ConfigError, match=rf"^f: expected sections .* found {found}$"):
        strict_yaml.parse_mapping(text, "f")


def test_keys_are_text_as_written() -> None:
    assert strict_yaml.parse("010: 1\n1: 2\nnull: 3\n", "f") == {"010": 1, "1": 2, "null": 3}


def test_windows_line_ends_and_byte_order_mark() -> None:
    assert strict_yaml.parse(strict_yaml.decode("\ufeffa: 1\r\nb: é\r\n".encode(), "f"), "f") == {"a": 1, "b": "é"}


def test_bytes_that_are_no_utf_8() -> None:
    with pytest.raises(ConfigError, match=r"^f: .* UTF-8 text; byte 3 is not"):
        strict_yaml.decode(b"a: \xff", "f")


def test_size_limit() -> None:
    strict_yaml.decode(b" " * strict_yaml.SIZE_LIMIT, "f")
    with pytest.raises(ConfigError, match="is larger"):
        strict_yaml.decode(b" " * (strict_yaml.SIZE_LIMIT + 1), "f")


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.text(alphabet=st.sampled_from("ab:-[]{}#&*!|>%@`'\"?,\n\t 01.~<=\\x\0"), max_size=40))
def test_any_text_is_a_value_or_a_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        value = strict_yaml.parse(text, "f")
        assert value is None or isinstance(value, dict | list | str | int | float)
