"""What a run says of its data before its first step: type, folder, and what is probably not meant."""

import json
from pathlib import Path

import numpy as np
import pytest

from pretrain.attempt import start_attempt
from pretrain.build import build_data
from pretrain.config import RunConfig, identity_sha256, load
from pretrain.errors import DataError
from pretrain.machine.signals import StopRequest
from pretrain.telemetry.sink import Begin, Note
from tests.tiny import Recorder, go_on, tiny, train, write_config


def beginning(config: RunConfig) -> tuple[dict[str, str], list[str]]:
    """Return the lines at the start of a run, by label, and its warnings."""
    seen = Recorder()
    assert start_attempt(config, StopRequest(), [seen]).verdict == "done"
    (begin,) = [event for event in seen.events if isinstance(event, Begin)]
    return dict(begin.details), [one.text for one in seen.events if isinstance(one, Note) and one.kind == "warning"]


def books(folder: Path) -> list[str]:
    """Return the overrides that make the tiny run read a folder of two documents."""
    place = folder / "books"
    place.mkdir()
    for name in ("a.txt", "b.txt"):
        (place / name).write_text(f"{name}: ten green bottles hanging on the wall\n" * 20)
    return [f"data.{kind}.letters.path={place}" for kind in ("train", "validation")] + ["training.max_steps=1"]


def test_a_folder_is_named_as_the_config_names_it(tmp_path: Path) -> None:
    config = tiny(tmp_path, "text", *books(tmp_path))
    (tmp_path / "books" / "c.txt").write_bytes(b"\x89PNG\0\0")
    details, warnings = beginning(config)
    assert f" windows of 3 files in {tmp_path / 'books'} (bytes), " in details["train.letters"]
    assert len([text for text in warnings if "NUL bytes in 1 of 3 files, the first of them" in text]) == 1
    record = json.loads((tmp_path / "run" / "attempts" / "0001" / "environment.json").read_text())
    assert [row["path"] for row in record["data"]] == [f"3 files in {tmp_path / 'books'}"] * 2


def test_what_a_folder_is_called_is_no_part_of_the_identity(tmp_path: Path) -> None:
    config = tiny(tmp_path, "text", *books(tmp_path))
    before = identity_sha256(config, build_data(config).hashes())
    (tmp_path / "books").rename(tmp_path / "moved")
    paths = [f"data.{kind}.letters.path={tmp_path / 'moved'}" for kind in ("train", "validation")]
    moved = load(write_config(tmp_path), [*paths, "training.max_steps=1"])
    assert identity_sha256(moved, build_data(moved).hashes()) == before


def test_the_type_of_a_recording_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "capture.bin"
    path.write_bytes(np.random.default_rng(1).integers(0, 256, 16000, dtype=np.uint8).tobytes())
    config = write_config(tmp_path, "iq")
    text = config.read_text()
    for span in ("[0.0, 0.9]", "[0.9, 1.0]"):
        old = f"{{source: synthetic-iq, windows: 70, span: {span}}}"
        assert old in text
        text = text.replace(old, f"{{source: iq, path: {path}, datatype: ci16_le, span: {span}}}")
    config.write_text(text)
    details, _ = beginning(load(config, ["training.max_steps=1"]))
    assert f" windows of {path} (ci16_le), " in details["train.signals"]


def test_data_that_is_gone_is_named_by_its_key(tmp_path: Path) -> None:
    config = tiny(tmp_path, "text", *books(tmp_path), "training.max_steps=4")
    assert train(config, stop_after=1).verdict == "interrupted"
    (tmp_path / "books").rename(tmp_path / "moved")
    said = rf"data\.train\.letters\.path: {tmp_path / 'books'}: .*takes data\.train\.letters\.path=NEW"
    with pytest.raises(DataError, match=said):
        go_on(tmp_path / "run")
    paths = [f"data.{kind}.letters.path={tmp_path / 'moved'}" for kind in ("train", "validation")]
    assert go_on(tmp_path / "run", *paths).verdict == "done"


def test_validation_on_data_that_is_trained_on_is_a_warning(tmp_path: Path) -> None:
    _, warnings = beginning(tiny(tmp_path, "text", "data.validation.letters.span=[0.8,1.0]", "training.max_steps=1"))
    assert len([text for text in warnings if text.startswith("data.validation shares data with data.train")]) == 1
