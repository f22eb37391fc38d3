"""incident_NNNN.json: the same numbers back, and the same cause from them; torn, flipped and foreign ones refused."""

import json
import math
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain import lineage
from pretrain.batch import SampleIdentity
from pretrain.errors import IntegrityError
from pretrain.evidence import incident
from pretrain.evidence.canonical import encode, seal
from pretrain.evidence.incident import Incident, parse_incident, read_incident, read_incidents
from pretrain.policy.diagnosis import diagnose
from pretrain.policy.incident import IncidentNumbers, Replay, Report, loss_scales, series
from tests.evidence import attempts

FIELDS = (
    "schema incident step batch trigger samples blocks activations moments learning_rate phase context history "
    "experiments action cause evidence remedy self_sha256"
)
HISTORY = [
    Report("step", 1, 0, 5.5, 1.0, 0.001, None),
    Report("skipped", 1, 1, math.nan, math.inf),
    Report("overflow", 1, 2, 5.4, math.inf),
    Report("step", 2, 3, 5.4, 0.9, 0.002, 0.25),
]
LOSSES, NORMS, UPDATES = series(HISTORY)
NUMBERS = IncidentNumbers(
    trigger="loss",
    value=11.0,
    threshold=6.0,
    step=2,
    warmup_steps=1,
    learning_rate=0.002,
    peak_learning_rate=0.003,
    loss=11.0,
    gradient_norm=7.0,
    losses=LOSSES,
    gradient_norms=NORMS,
    update_norms=UPDATES,
    update_norm=110.0,
    sample_losses=(5.0, math.inf),
    uniform_loss=math.log(256),
    block_gradient_norms=(3.0, 2.0),
    block_activations=(1.0, math.nan),
    moment_ratio=1.25,
    clip_max_norm=None,
    precision="float16",
    loss_scales=loss_scales(32768.0, HISTORY),
    bad_input_share=0.5,
    same_batch_from_safe=Replay(10.0, 6.0, None, 0, (2.5, 2.0)),
    fresh_moments=Replay(math.nan, math.inf, 12.0, 2, (1.0, math.inf)),
)


def file_of(numbers: IncidentNumbers, history: list[Report], number: int = 1) -> bytes:
    return incident.encode(
        number=number,
        batch=4,
        numbers=numbers,
        samples=[SampleIdentity("a.txt", 17 * row, row) for row in range(len(numbers.sample_losses))],
        blocks=[f"model.layers.{block}" for block in range(len(numbers.block_gradient_norms))],
        history=history,
        phase="peak",
        action="skip",
        diagnosis=diagnose(numbers),
    )


def same(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)  # NaN equals itself here


def test_the_numbers_come_back_and_lead_to_the_same_cause() -> None:
    found = parse_incident(file_of(NUMBERS, HISTORY), "x")
    assert same(found.numbers, NUMBERS)
    assert found.cause == diagnose(found.numbers).cause
    assert (found.number, found.batch, found.phase, found.action) == (1, 4, "peak", "skip")
    assert found.blocks == ("model.layers.0", "model.layers.1")
    assert found.samples[1] == {"source": "a.txt", "offset": 17, "position": 1, "loss": math.inf}
    assert set(found.record) == set(FIELDS.split())


def test_an_overflow_is_no_report_but_doubles_the_scale_before_it() -> None:
    assert len(LOSSES) == len(NORMS) == 3
    assert UPDATES == (125.0,)
    assert loss_scales(32768.0, HISTORY) == (65536.0, 32768.0)


values = st.floats(allow_nan=True, allow_infinity=True)


@given(
    st.lists(values, max_size=5),
    st.lists(values, max_size=5),
    st.one_of(st.none(), values),
    st.sampled_from(["loss", "gradient", "update", "non_finite_loss", "post_clip", "non_finite_state"]),
)
def test_any_numbers_come_back(losses: list[float], norms: list[float], update: float | None, trigger: str) -> None:
    numbers = replace(
        NUMBERS,
        trigger=trigger,
        sample_losses=tuple(losses),
        block_gradient_norms=tuple(norms),
        update_norm=update,
        loss_scales=(),
    )
    found = parse_incident(file_of(numbers, HISTORY), "x")
    assert same(found.numbers, numbers)
    assert found.cause == diagnose(numbers).cause


def test_every_flipped_bit_and_every_cut_is_refused() -> None:
    data = file_of(NUMBERS, HISTORY)
    drawn = random.Random(1)
    for _ in range(300):
        spoiled = bytearray(data)
        spoiled[drawn.randrange(len(data))] ^= 1 << drawn.randrange(8)
        with pytest.raises(IntegrityError, match="x"):
            parse_incident(bytes(spoiled), "x")
    for length in range(0, len(data), 97):
        with pytest.raises(IntegrityError):
            parse_incident(data[:length], "x")


def changed(**values: Any) -> bytes:
    record = json.loads(file_of(NUMBERS, HISTORY))
    del record["self_sha256"]
    for path, value in values.items():
        inner, *names = [record, *path.split("__")]
        for name in names[:-1]:
            inner = inner[int(name) if isinstance(inner, list) else name]
        inner[names[-1]] = value
    return encode(seal(record))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"schema": 2}, "expected schema 1, found 2"),
        ({"incident": 0}, "an integer of at least 1"),
        ({"cause": "gremlins"}, "cause: expected one of"),
        ({"action": "pray"}, "action: expected one of"),
        ({"learning_rate": 1}, "learning_rate: expected a float"),
        ({"trigger__value": "much"}, "trigger.value: expected a float"),
        ({"samples__0__offset": -1}, "offset: expected an integer"),
        ({"samples__0__more": 1}, "unknown fields"),
        ({"history__0__event": "dreamt"}, "event: expected one of"),
        ({"experiments__same_batch_from_safe": {}}, "missing fields"),
        ({"evidence__for": [{"name": "x"}]}, "missing fields"),
        ({"context__precision": None}, "precision: expected a text"),
    ],
)
def test_a_hostile_record_is_refused_by_its_field(values: dict[str, Any], message: str) -> None:
    with pytest.raises(IntegrityError, match=message):
        parse_incident(changed(**values), "x")


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("incidents/incident_0001.json", 1),
        ("incidents/incident_12345.json", 12345),
        ("incidents/incident_01234.json", None),
        ("incidents/incident_001.json", None),
        ("incident_0001.json", None),
        ("incidents/more/incident_0001.json", None),
        ("incidents/incident_0001.json.bak", None),
    ],
)
def test_a_path_says_its_number_in_one_way(path: str, number: int | None) -> None:
    assert incident.number_of(path) == number
    assert number is None or incident.name_of(number) == path


# --- in an attempt -------------------------------------------------------------------------------------


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    folder, _ = attempts.finished_attempt(tmp_path)
    (folder / "incidents").mkdir()
    for number in (1, 2):
        (folder / incident.name_of(number)).write_bytes(file_of(NUMBERS, HISTORY, number))
    (folder / "manifest.json").unlink()
    return folder


def test_an_unfinished_attempt_answers_for_its_incidents(attempt: Path) -> None:
    assert lineage.verify(attempt).sound
    path = attempt / incident.name_of(2)
    path.write_bytes(path.read_bytes().replace(b'"batch":4', b'"batch":5'))
    assert lineage.verify(attempt).changed == (incident.name_of(2),)
    shutil.copy(attempt / incident.name_of(1), path)
    assert lineage.verify(attempt).changed == (incident.name_of(2),)  # whole, but another one's
    path.rename(path.with_name("notes.json"))
    assert lineage.verify(attempt).extra == ("incidents/notes.json",)


def test_a_child_takes_over_those_up_to_its_cursor(attempt: Path) -> None:
    assert [number for number, _ in read_incidents(attempt, 1)] == [1]
    assert [number for number, _ in read_incidents(attempt, 9)] == [1, 2]
    (attempt / incident.name_of(2)).write_bytes(file_of(NUMBERS, HISTORY, 3))
    with pytest.raises(IntegrityError, match="another incident"):
        list(read_incidents(attempt, 2))
    assert isinstance(read_incident(attempt / incident.name_of(1)), Incident)
