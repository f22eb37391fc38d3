"""docs/configuration.md says what the settings classes say, of every key."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from pretrain.config import document
from pretrain.config.settings import NAMED, SECTIONS, SOURCE, groups_of, plain_sections, settings_of
from pretrain.telemetry.trackers import TRACKERS

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_committed_document_is_the_generated_one() -> None:
    assert DOCUMENT.read_text() == document.text(), (
        "docs/configuration.md is behind the settings: python -m pretrain.config.document > docs/configuration.md"
    )


def test_every_key_and_every_entry_is_in_it() -> None:
    text = document.text()
    for section in SECTIONS:
        assert f"\n## {section}\n" in text
    for chooser in (*NAMED.values(), SOURCE):
        for name, entry in chooser.table.items():
            assert f"\n**{name}**: " in text
            for key in settings_of(entry.settings):
                assert f"| `{key}` | " in text
    for section, cls in plain_sections().items():
        for key in settings_of(cls):
            assert f"| `{key}` | " in text
        for name, group in groups_of(cls).items():
            _, _, own = text.partition(f"\n### {section}.{name}\n")
            for key in settings_of(group.settings):
                assert f"| `{key}` | " in own.partition("\n#")[0]


def test_every_tracker_is_in_it() -> None:
    own = document.text().partition("\n### telemetry.trackers.NAME\n")[2].partition("\n## ")[0]
    for name, entry in TRACKERS.items():
        assert f"\n**{name}**: " in own
        assert all(f"| `{key}` | " in own for key in settings_of(entry.settings))


def test_a_group_is_documented_with_the_defaults_of_its_place() -> None:
    text = document.text()
    for name, default in (("loss", "roll_back"), ("gradient", "skip"), ("update", "record")):
        own = text.partition(f"\n### spikes.{name}\n")[2].partition("\n#")[0]
        assert f"| `{default}` | `record` it" in own


@dataclass(frozen=True)
class Wrapped:
    """A sentence.

    first: an explanation that
        goes on.
    second: another.
    """

    first: int = 1
    second: int = 2


@dataclass(frozen=True)
class Forgetful:
    """A sentence.

    first: an explanation.
    """

    first: int = 1
    second: int = 2


def test_docstrings() -> None:
    assert document.explanations(Wrapped) == (
        "A sentence.",
        {"first": "an explanation that goes on.", "second": "another."},
    )
    with pytest.raises(ValueError, match="Forgetful: its docstring explains"):
        document.explanations(Forgetful)
