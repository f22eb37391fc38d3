"""When validation data may be called held out: compared file by file, and by span where that says something."""

import json
import shutil

import pytest

from pretrain.build import build_data
from pretrain.config import load
from pretrain.errors import ConfigError

CONFIG = """
run: {{dir: run}}
training: {{max_steps: 2, batch_size: 1}}
task: {{name: {task}}}
data:
  sequence_length: 8
  train: {train}
  validation: {validation}
model: {{name: decoder, width: 16, layers: 1, heads: 2, kv_heads: 1}}
optimizer: {{optimizer_class: adamw, lr: 1.0e-2}}
"""


@pytest.fixture
def folder(tmp_path):
    """Three texts and a copy of one; three recordings, a copy of one, and two pairs with the same metadata."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "air").mkdir()
    for number, name in enumerate("abc"):
        (tmp_path / "texts" / name).write_bytes(bytes([65 + number]) * 200)
        (tmp_path / "air" / f"{name}.cu8").write_bytes(bytes([65 + number]) * 400)
    (tmp_path / "other" / "d").write_bytes(b"d" * 200)
    for name in ("texts", "other"):
        (tmp_path / name / "empty").write_bytes(b"")
    shutil.copy(tmp_path / "texts" / "a", tmp_path / "copy")
    shutil.copy(tmp_path / "air" / "b.cu8", tmp_path / "copy.cu8")
    shutil.copy(tmp_path / "air" / "b.cu8", tmp_path / "copy.ci16")
    for name in ("p", "q"):
        (tmp_path / f"{name}.sigmf-meta").write_text('{"global": {"core:datatype": "ci8"}}')
        (tmp_path / f"{name}.sigmf-data").write_bytes(name.encode() * 400)
    return tmp_path


def held_out(folder, train, validation, source):
    def domains(settings):
        found = {}
        for number, setting in enumerate(settings if isinstance(settings, list) else [settings]):
            placed = {"source": source} | setting
            if "path" in placed and not placed["path"].startswith("builtin:"):
                placed["path"] = str(folder / placed["path"])
            found[f"d{number}"] = placed
        return json.dumps(found)

    path = folder / "config.yaml"
    task = "text" if source == "text" else "iq, patch_samples: 4"
    path.write_text(CONFIG.format(task=task, train=domains(train), validation=domains(validation)))
    return build_data(load(path, [])).held_out


FIRST, LAST, MIDDLE = {"span": [0.0, 0.5]}, {"span": [0.5, 1.0]}, {"span": [0.4, 0.6]}
TEXTS, A, B, COPY = ({"path": path} for path in ("texts", "texts/a", "texts/b", "copy"))


@pytest.mark.parametrize(
    ("train", "validation", "expected"),
    [
        (TEXTS | FIRST, TEXTS | LAST, True),
        (TEXTS | FIRST, TEXTS | MIDDLE, False),
        (TEXTS, TEXTS, False),
        (A | FIRST, A | LAST, True),
        (A | FIRST, COPY | LAST, True),
        (A | FIRST, COPY | MIDDLE, False),
        (A, B, True),
        (TEXTS, A, False),
        (A, TEXTS, False),
        (TEXTS | FIRST, COPY | LAST, False),
        (TEXTS | LAST, A | FIRST, False),
        (TEXTS, {"path": "other"}, True),  # nothing but an empty file in common
        ([B, A], [COPY], False),
        ([A | FIRST, B], [A | LAST], True),
        ([A | FIRST, B], [A | LAST, B | LAST], False),
        ({"path": "builtin:pydoc"} | FIRST, {"path": "builtin:pydoc"} | LAST, True),
        ({"path": "builtin:pydoc"} | MIDDLE, {"path": "builtin:pydoc"} | LAST, False),
    ],
)
def test_text(folder, train, validation, expected):
    assert held_out(folder, train, validation, "text") is expected


AIR, AIR_B, AIR_COPY = ({"path": path} for path in ("air", "air/b.cu8", "copy.cu8"))
WHOLE = {"split": "recording"}


@pytest.mark.parametrize(
    ("train", "validation", "expected"),
    [
        (AIR | FIRST, AIR | LAST, True),
        (AIR | FIRST, AIR | MIDDLE, False),
        (AIR_B | FIRST, AIR_COPY | LAST, True),
        ({"path": "air/a.cu8"}, AIR_B, True),
        (AIR, AIR_COPY, False),
        (AIR | FIRST, AIR_B | LAST, False),
        (AIR | WHOLE | {"span": [0.0, 0.7]}, AIR | WHOLE | {"span": [0.7, 1.0]}, True),
        (AIR | WHOLE | {"span": [0.0, 0.7]}, AIR | WHOLE | {"span": [0.3, 1.0]}, False),
        (AIR | WHOLE | {"span": [0.0, 0.4]}, AIR_B, True),
        (AIR | WHOLE | {"span": [0.3, 0.7]}, AIR_B | LAST, False),
        (AIR | WHOLE | {"span": [0.3, 0.7]}, AIR_COPY, False),
        (AIR_B | FIRST, AIR_B | LAST | {"datatype": "cu8"}, True),
        (AIR_B | FIRST, {"path": "copy.ci16"} | LAST, False),  # the same bytes, cut by another size of sample
        ({"path": "p.sigmf-meta"}, {"path": "q.sigmf-meta"}, True),  # nothing but the metadata in common
        ({"path": "p.sigmf-meta"} | FIRST, {"path": "p.sigmf-data"} | LAST, True),
        ({"path": "p.sigmf-meta"} | FIRST, {"path": "p.sigmf-meta"}, False),
    ],
)
def test_iq(folder, train, validation, expected):
    assert held_out(folder, train, validation, "iq") is expected


@pytest.mark.parametrize(
    ("train", "validation", "expected"),
    [
        ({"windows": 70} | FIRST, {"windows": 70} | LAST, True),
        ({"windows": 70} | FIRST, {"windows": 70} | MIDDLE, False),
        ({"windows": 70}, {"windows": 71}, False),
        ({"windows": 70}, {"windows": 140} | FIRST, False),
        ({"windows": 70}, {"windows": 140} | LAST, True),
        ({"windows": 70} | LAST, {"windows": 35}, True),
        ({"windows": 70} | LAST, {"windows": 36}, False),
        ({"windows": 70}, {"windows": 70, "carrier_offset": 0.1}, True),
    ],
)
def test_synthetic(folder, train, validation, expected):
    assert held_out(folder, train, validation, "synthetic-iq") is expected


def test_training_data_that_is_validated_on_is_not_held_out(folder):
    path = folder / "config.yaml"
    text = CONFIG.format(task="text", train="{t: {source: text}}", validation="{}")
    path.write_text(text)
    assert build_data(load(path, [])).held_out is False


@pytest.mark.parametrize(("key", "limit"), [("prefetch_steps", 1024), ("loader_threads", 64)])
def test_read_ahead_is_limited(folder, key, limit):
    path = folder / "config.yaml"
    path.write_text(CONFIG.format(task="text", train="{t: {source: text}}", validation="{}"))
    assert getattr(load(path, [f"data.{key}={limit}"]).data, key) == limit
    with pytest.raises(ConfigError, match=rf"data\.{key}.* to {limit}; found"):
        load(path, [f"data.{key}={limit + 1}"])
