"""The canonical text: every key, one order, the same bits when it is read again, by any YAML reader."""

import dataclasses
import math
import struct
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.config import parse, strict_yaml, to_yaml, tree_of, warnings
from pretrain.config.canonical import text_of, value_text
from pretrain.config.settings import NAMED, SECTIONS, groups_of, plain_sections, settings_of
from tests.config.random_configs import TRICKY, texts
from tests.config.written import IQ, config

MANY = settings(derandomize=True, deadline=None, max_examples=200)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(texts())
def test_text_loads_to_an_equal_configuration_by_any_reader(text: str) -> None:
    one = parse(text, "x.yaml")
    canonical = to_yaml(one)
    again = parse(canonical, "y.yaml")
    assert again == one
    assert to_yaml(again) == canonical
    assert yaml.safe_load(canonical) == tree_of(one)
    assert all(isinstance(line, str) for line in warnings(one)), "whatever is accepted can be warned of"


@MANY
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_keeps_its_bits(number: float) -> None:
    for read in (strict_yaml.plain, lambda text: yaml.safe_load(f"a: {text}")["a"]):
        found = read(value_text(number))
        assert isinstance(found, float)
        assert struct.pack("d", found) == struct.pack("d", number)


@pytest.mark.parametrize(
    "number", [5e-324, math.nextafter(0.1, 1), 1e16, 1e22, 1.7976931348623157e308, -0.0, 1e-8, 123456789.0]
)
def test_floats_at_the_edges(number: float) -> None:
    assert repr(strict_yaml.plain(value_text(number))) == repr(number)
    assert "." in value_text(number)


@MANY
@given(st.one_of(st.sampled_from(TRICKY), st.text(st.characters(exclude_categories=("Cs",)))))
def test_text_stays_text_as_key_and_as_value(text: str) -> None:
    written = text_of({"a": {text: text, "list": [text, text]}})
    for read in (lambda text: strict_yaml.parse(text, "x"), yaml.safe_load):
        found: Any = read(written)
        assert found == {"a": {text: text, "list": [text, text]} if text != "list" else {"list": ["list", "list"]}}


def test_every_key_is_written_in_order() -> None:
    tree = tree_of(config(text=IQ))
    assert tuple(tree) == SECTIONS
    for section, cls in plain_sections().items():
        keys = [one.name for one in dataclasses.fields(cls)]
        assert list(tree[section]) == keys
        for name, group in groups_of(cls).items():
            assert list(tree[section][name]) == list(settings_of(group.settings))
    for section, chooser in NAMED.items():
        name = tree[section][chooser.key]
        keys = [one.name for one in dataclasses.fields(chooser.table[name].settings)]
        assert list(tree[section]) == [chooser.key, *keys]
    assert list(tree["data"]["train"]["air"])[:2] == ["source", "path"]
    assert tree["data"]["validation"] == {}


def test_the_order_of_keys_in_a_file_does_not_matter() -> None:
    one = "training: {max_steps: 3, seed: 2}\nrun: {dir: r}\ndata: {train: {a: {span: [0, 1], source: text}}}\n"
    other = "data: {train: {a: {source: text, span: [0.0, 1.0]}}}\nrun: {dir: r}\ntraining: {seed: 2, max_steps: 3.0}\n"
    assert to_yaml(parse(one, "x")) == to_yaml(parse(other, "y"))
