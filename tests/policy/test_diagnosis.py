"""Causes as tables of hand-made numbers: a sound run, and what each cause changes in it."""

import math
import random
import re
from dataclasses import fields, replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.config.settings import NAMED, SECTIONS, groups_of, plain_sections, settings_of
from pretrain.policy.diagnosis import Cause, diagnose
from pretrain.policy.figures import figures_of
from pretrain.policy.incident import IncidentNumbers, Replay

NAN, INF = math.nan, math.inf
UNIFORM = math.log(256)
DRAWN = random.Random(1)
CALM = [2.5 * (1 + 0.05 * DRAWN.gauss(0, 1)) for _ in range(50)]
NORMS = [DRAWN.lognormvariate(-0.5, 0.2) for _ in range(50)]
RESTLESS = [norm * (4 if index % 3 == 0 else 1) for index, norm in enumerate(NORMS)]
USUAL = Replay(2.5, 0.6)

# A loss that doubled at the peak of the schedule, in a run that was sound until then; no experiment was made.
BARE = IncidentNumbers(
    trigger="loss",
    value=5.0,
    threshold=3.4,
    step=700,
    warmup_steps=50,
    learning_rate=2e-3,
    peak_learning_rate=3e-3,
    loss=5.0,
    gradient_norm=6.0,
    losses=tuple(CALM),
    gradient_norms=tuple(NORMS),
    update_norms=(60.0,) * 50,
    update_norm=62.0,
    sample_losses=(5.0, 4.8, 5.2, 5.1, 4.9, 5.0, 5.3, 4.7),
    uniform_loss=UNIFORM,
    block_gradient_norms=(3.0, 2.5, 2.6, 2.0, 2.2, 1.9),
    block_activations=(1.0, 1.2, 1.5, 1.6, 1.7, 1.9),
    moment_ratio=1.4,
    clip_max_norm=1.0,
    bad_input_share=0.0,
)
# The same with every experiment made, and nothing found: only the incident itself stood out.
PLAIN = replace(BARE, same_batch_from_safe=USUAL, other_batch=USUAL, fresh_moments=Replay(5.0, 6.0, 220.0))
BATCH = {"same_batch_from_safe": Replay(4.9, 5.5)}  # the batch brings it along
STATE = {"other_batch": Replay(4.9, 5.5)}  # the state does it to any batch
FEW = {"sample_losses": (2.5, 2.4, 2.6, 12.0, 2.3, 2.5, 2.7, 13.0)}
NO_LOSS = {"trigger": "gradient", "loss": 2.5, "fresh_moments": Replay(2.5, 6.0, 220.0)}
NOT_FINITE = {"trigger": "non_finite_loss", "loss": NAN, "gradient_norm": NAN, "sample_losses": (NAN,) * 8}
DEEP = {"block_gradient_norms": (54.0, 30.0, 20.0, 11.0, 2.3, 0.5)}
HALF = {"precision": "float16", "loss_scales": (65536.0,) * 50}

CASES: list[tuple[str, Cause, dict[str, object]]] = [
    # An outlier: it comes back with its batch, and nowhere else.
    ("a few samples", "outlier_batch", BATCH | FEW),
    ("a whole batch of something else", "outlier_batch", BATCH),
    ("seen by the gradient first", "outlier_batch", BATCH | FEW | {"trigger": "gradient", "gradient_norm": 30.0}),
    ("a few samples that cannot be learnt", "outlier_batch", BATCH | FEW | {"update_norms": (), "update_norm": None}),
    ("without experiments", "outlier_batch", FEW | {"same_batch_from_safe": None, "other_batch": None}),
    # Corrupt data: the same, and it is not data.
    (
        "every sample worse than guessing",
        "data_corruption",
        BATCH | {"sample_losses": (6.4, 6.6, 6.5, 6.0, 6.7, 6.6, 6.1, 6.5)},
    ),
    ("samples of one value", "data_corruption", BATCH | FEW | {"bad_input_share": 0.375}),
    ("one sample of dashes is no corruption", "outlier_batch", BATCH | FEW | {"bad_input_share": 0.125}),
    (
        "one sample that is not finite",
        "data_corruption",
        NOT_FINITE
        | {"sample_losses": (0.7, 0.8, NAN, 0.7), "uniform_loss": 1.0, "bad_input_share": 0.25}
        | {"losses": (0.7,) * 50, "same_batch_from_safe": Replay(NAN, NAN), "fresh_moments": Replay(NAN, NAN)},
    ),
    (
        "two samples of many that are not finite",
        "data_corruption",
        NOT_FINITE
        | {"sample_losses": (*(0.7,) * 30, NAN, NAN), "uniform_loss": 1.0, "bad_input_share": 2 / 32}
        | {"losses": (0.7,) * 50, "same_batch_from_safe": Replay(NAN, NAN), "fresh_moments": Replay(NAN, NAN)},
    ),
    (
        "a model that has learnt nothing guesses",
        "outlier_batch",
        BATCH
        | {
            "losses": (5.4,) * 50,
            "loss": 11.0,
            "sample_losses": (11.0,) * 8,
            "same_batch_from_safe": Replay(10.9, 5.5),
            "other_batch": Replay(5.4, 0.6),
            "fresh_moments": Replay(11.0, 6.0, 220.0),
        },
    ),
    # Curvature: the state does it, at a high rate, and was restless before.
    ("any batch, restless", "high_curvature", STATE | {"gradient_norms": tuple(RESTLESS)}),
    ("any batch, at the peak", "high_curvature", STATE),
    ("the gradient only, moments of larger gradients", "high_curvature", NO_LOSS | {"moment_ratio": 10.0}),
    (
        "the gradient only, from a safe state above the limit too",
        "high_curvature",
        NO_LOSS
        | {"same_batch_from_safe": Replay(2.5, 5.0), "moment_ratio": 30.0, "block_activations": (80.0, 2000.0)}
        | {"gradient_norms": tuple(RESTLESS)},
    ),
    (
        "to the end",
        "high_curvature",
        NOT_FINITE
        | {"other_batch": Replay(NAN, NAN), "gradient_norms": tuple(RESTLESS), "fresh_moments": Replay(NAN, NAN)},
    ),
    ("hardly any rate left", "unknown", STATE | {"learning_rate": 1e-4, "same_batch_from_safe": None}),
    # Depth: the gradient grows from block to block towards the first.
    ("geometric", "exploding_depth", DEEP | STATE | {"step": 120}),
    ("geometric, restless at the peak", "exploding_depth", DEEP | STATE | {"gradient_norms": tuple(RESTLESS)}),
    (
        "a growth of 12 over nine blocks",
        "exploding_depth",
        STATE | {"step": 165, "block_gradient_norms": tuple(1.37**-block for block in range(9))},
    ),
    (
        "1.2, 15, 234, inf",
        "exploding_depth",
        NOT_FINITE
        | {"block_gradient_norms": (INF, INF, 1e30, 1e12, 1e4, 1.0), "other_batch": Replay(NAN, NAN)}
        | {"gradient_norms": (*NORMS[:47], 1.2, 15.0, 234.0), "step": 60, "fresh_moments": Replay(NAN, NAN)},
    ),
    (
        "an even growth of 1.4 a block",
        "exploding_depth",
        NO_LOSS
        | STATE
        | {"step": 90, "learning_rate": 1e-3, "block_gradient_norms": tuple(1.4**-block for block in range(8))},
    ),
    (
        "one block alone is no growth",
        "high_curvature",
        STATE | {"block_gradient_norms": (400.0, 2.0, 1.9, 1.8, 1.7, 1.6)},
    ),
    ("two blocks cannot tell", "high_curvature", STATE | {"block_gradient_norms": (54.0, 0.5)}),
    # Moments: an update out of all proportion to its gradient.
    (
        "second moments of almost nothing",
        "optimizer_state",
        {
            "trigger": "update",
            "value": 4000.0,
            "threshold": 360.0,
            "loss": 2.5,
            "gradient_norm": 0.6,
            "update_norm": 4000.0,
        }
        | {"moment_ratio": 3e-4, "sample_losses": (2.5,) * 8, "fresh_moments": Replay(2.5, 0.6, 220.0)}
        | {"block_gradient_norms": (0.3, 0.25, 0.26, 0.2, 0.22, 0.19)},
    ),
    (
        "one step later, seen by the loss",
        "optimizer_state",
        STATE | {"update_norms": (*(60.0,) * 49, 4000.0), "update_norm": 620.0, "moment_ratio": 0.18},
    ),
    (
        "moments that are not finite",
        "optimizer_state",
        {"trigger": "update", "loss": 2.5, "gradient_norm": 0.6, "update_norm": NAN, "moment_ratio": None}
        | {
            "sample_losses": (2.5,) * 8,
            "fresh_moments": Replay(2.5, 0.6, 220.0),
            "update_norms": (*(60.0,) * 49, 900.0),
        },
    ),
    (
        "second moments that a spike left too large",
        "optimizer_state",
        {
            "trigger": "update",
            "loss": 2.5,
            "gradient_norm": 0.6,
            "update_norm": 2.0,
            "update_norms": (*(60.0,) * 45, *(2.0,) * 5),
        }
        | {"moment_ratio": 300.0, "sample_losses": (2.5,) * 8, "fresh_moments": Replay(2.5, 0.6, 220.0)},
    ),
    # Precision: what float32 does not show.
    (
        "float16 with a collapsing scale",
        "precision",
        NOT_FINITE
        | HALF
        | {"loss_scales": (65536.0, 8192.0, 1024.0, 128.0), "in_float32": Replay(2.5, 0.6)}
        | {"fresh_moments": Replay(NAN, NAN), "other_batch": Replay(NAN, NAN), "block_activations": (9.0, 2e4, INF)},
    ),
    (
        "float16, one batch",
        "precision",
        NOT_FINITE
        | HALF
        | {"in_float32": Replay(2.5, 0.6), "fresh_moments": Replay(NAN, NAN), "same_batch_from_safe": Replay(NAN, NAN)},
    ),
    ("float16 and an outlier", "outlier_batch", BATCH | FEW | HALF | {"in_float32": Replay(5.0, 6.0)}),
    (
        "float32 is not to blame",
        "unknown",
        NOT_FINITE | {"fresh_moments": Replay(NAN, NAN), "other_batch": Replay(NAN, NAN)},
    ),
    # Nothing that could be found again.
    (
        "a flipped bit in the gradient",
        "unknown",
        {"trigger": "gradient", "gradient_norm": 1e9, "fresh_moments": Replay(2.5, 0.6, 220.0)},
    ),
    ("a NaN that does not come back", "unknown", NOT_FINITE | {"fresh_moments": Replay(2.5, 0.6, 220.0)}),
    ("no experiment and no few samples", "unknown", {"same_batch_from_safe": None, "other_batch": None}),
    ("no history", "unknown", {"losses": (), "gradient_norms": (), "update_norms": ()}),
    ("the batch and the state", "unknown", BATCH | STATE | {"learning_rate": 1e-4}),
]


@pytest.mark.parametrize(("name", "cause", "changes"), CASES, ids=[case[0] for case in CASES])
def test_the_cause(name, cause, changes):
    found = diagnose(replace(PLAIN, **changes))
    assert found.cause == cause, (found.scores, found.evidence_for, found.evidence_against)
    if cause != "unknown":
        assert found.evidence_for
        assert found.scores[0][0] == cause


def test_every_cause_is_in_the_table():
    assert {cause for _, cause, _ in CASES} == set(get_args(Cause))


def test_the_evidence_is_numbers_with_what_was_expected():
    found = diagnose(replace(PLAIN, **BATCH, **FEW))
    names = [evidence.name for evidence in found.evidence_for]
    assert names[:2] == ["same_batch_from_safe_state", "other_batch"]
    first = found.evidence_for[0]
    assert (first.value, first.expected) == (pytest.approx(0.97, abs=0.05), "at least 0.5")
    assert found.evidence_against == ()
    found = diagnose(replace(PLAIN, **STATE))
    against = {evidence.name: (evidence.value, evidence.expected) for evidence in found.evidence_against}
    assert against == {"restless_steps_of_20": (0.0, "at least 2")}


def test_the_trigger_and_its_words_decide_nothing():
    """A cause is read off what was measured, not off what fired."""
    one = replace(PLAIN, **BATCH, **FEW)
    for trigger in ("loss", "gradient", "update", "post_clip", "kill"):
        other = replace(one, trigger=trigger, value=1e9, threshold=-1.0)
        assert diagnose(other) == diagnose(one)


def test_the_remedy_is_one_sentence_with_keys_that_exist():
    classes = dict(plain_sections())
    keys = {f"{section}.{key}" for section, cls in classes.items() for key in settings_of(cls)}
    keys |= {
        f"{section}.{group}.{key}"
        for section, cls in classes.items()
        for group, one in groups_of(cls).items()
        for key in settings_of(one.settings)
    }
    keys |= {
        f"{s}.{key}" for s, named in NAMED.items() for e in named.table.values() for key in settings_of(e.settings)
    }
    keys |= {"data.train"}
    seen = {}
    for _, cause, changes in CASES:
        remedy = diagnose(replace(PLAIN, **changes)).remedy
        assert re.fullmatch(r"[^\n]+[a-z0-9]\.", remedy)
        assert ". " not in remedy
        named = re.findall(rf"\b(?:{'|'.join(SECTIONS)})(?:\.[a-z_]+)+", remedy)
        assert named
        assert set(named) <= keys, set(named) - keys
        seen.setdefault(cause, remedy)
    assert len(set(seen.values())) == 7
    assert "from 0.003 to about 0.0015" in seen["high_curvature"]


@pytest.mark.parametrize(
    ("changes", "figure", "expected"),
    [
        ({}, "same", 0.0),
        ({}, "again", 1.0),
        ({"loss": 2.5, "gradient_norm": 0.6}, "again", None),
        ({"same_batch_from_safe": Replay(5.0, 0.6)}, "same", 1.0),
        ({"same_batch_from_safe": Replay(2.5 * 2**0.5, None)}, "same", 0.5),
        ({"same_batch_from_safe": Replay()}, "same", None),
        ({"same_batch_from_safe": None}, "same", None),
        ({"other_batch": Replay(NAN, 0.6)}, "other", 1.0),
        (NOT_FINITE | {"other_batch": Replay(5.0, 0.6)}, "other", 1 / 3),
        ({}, "unrest", 0),
        ({"losses": (*CALM[:45], *(9.0,) * 5)}, "unrest", 5),
        ({"losses": (*(9.0,) * 5, *CALM[5:])}, "unrest", 0),  # long ago
        ({"gradient_norms": (*NORMS[:49], NAN)}, "unrest", 1),
        ({"gradient_norms": (1.0, 0.5, 1.0, 2.0, 4.0), "losses": (2.5,) * 5}, "growth", 8.0),
        ({"gradient_norms": (1.0, 2.0, 1.5), "losses": (2.5,) * 3}, "growth", 1.0),
        ({"gradient_norms": (1.0, 2.0, INF), "losses": (2.5,) * 3}, "growth", INF),
        ({"update_norms": (60.0,) * 49 + (NAN,), "update_norm": 600.0}, "recent_update", 10.0),
        ({"fresh_moments": Replay(update_norm=31.0)}, "update_of_fresh", 2.0),
        ({"clip_max_norm": None, "gradient_norms": (0.5,) * 50}, "moments", 1.4 * 6.0 / 0.5),
        ({"gradient_norms": (0.5,) * 50}, "moments", 1.4 * 1.0 / 0.5),
        (FEW | {"losses": (2.5,) * 50}, "carriers", 0.25),
        ({"sample_losses": (NAN, 2.5, 2.5, 2.5)}, "carriers", 0.25),
        ({"sample_losses": (9.0, 2.5)}, "carriers", None),
        ({"sample_losses": (9.0, 2.5, NAN, INF)}, "guessed", 0.5),
        ({"uniform_loss": None}, "guessed", None),
        ({"block_gradient_norms": (8.0, 4.0, 2.0, 1.0)}, "depth", 8.0),
        ({"block_gradient_norms": (8.0, 4.0, 2.0, 1.0, 1.5, 1.2)}, "depth", 8.0),
        ({"block_gradient_norms": (8.0, 1.0, 2.0, 3.0, 3.5, 3.2)}, "depth", 1.0),  # not half of the depth
        ({"block_gradient_norms": (1.0, 2.0, 4.0, 8.0)}, "depth", 1.0),
        ({"block_gradient_norms": (8.0, 8.0, 8.0, 1.0)}, "depth", 1.0),  # one block alone
        ({"block_gradient_norms": (NAN, INF, 3.0, 1.0)}, "depth", INF),
        ({"block_gradient_norms": (NAN,) * 4}, "depth", None),
        ({"block_gradient_norms": (8.0, 4.0, 1.0)}, "depth", None),
        ({"block_activations": (2.0, 5.0, 20.0)}, "widening", 10.0),
        ({"loss_scales": (65536.0, 1024.0)}, "scale", 1 / 64),
    ],
)
def test_figures(changes, figure, expected):
    base = replace(PLAIN, losses=(2.5,) * 50, gradient_norms=(0.6,) * 50)
    found = getattr(figures_of(replace(base, **changes)), figure)
    assert found == (expected if expected is None else pytest.approx(expected))


numbers = st.floats(allow_nan=True, allow_infinity=True)
several = st.lists(numbers, max_size=6).map(tuple)
maybe = st.none() | numbers
replays = st.none() | st.builds(Replay, maybe, maybe, maybe)
POOLS = {
    "trigger": st.just("loss"),
    "precision": st.sampled_from(["float32", "bfloat16", "float16"]),
    "step": st.integers(0, 10**6),
    "warmup_steps": st.integers(0, 1000),
    **dict.fromkeys(("uniform_loss", "moment_ratio", "clip_max_norm", "bad_input_share", "update_norm"), maybe),
    **dict.fromkeys(("same_batch_from_safe", "other_batch", "fresh_moments", "in_float32"), replays),
    **dict.fromkeys(
        ("losses", "update_norms", "sample_losses", "block_gradient_norms", "block_activations", "loss_scales"), several
    ),
}


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.fixed_dictionaries({one.name: POOLS.get(one.name, numbers) for one in fields(IncidentNumbers)}))
def test_whatever_is_measured_there_is_an_answer(drawn):
    drawn["gradient_norms"] = tuple(reversed(drawn["losses"]))
    found = diagnose(IncidentNumbers(**drawn))
    assert found.cause in get_args(Cause)
    assert len(found.scores) == 6
    assert all(math.isfinite(score) for _, score in found.scores)
    assert all(isinstance(one.value, float) for one in (*found.evidence_for, *found.evidence_against))
