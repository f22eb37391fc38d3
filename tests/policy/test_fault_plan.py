"""Faults as text: what is read, and what each mistake is answered with."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.policy.fault_plan import KINDS, Fault, FaultSettings, contradictions, parse


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("nan_grad@5", Fault("nan_grad", 5, None)),
        ("inf_loss@7", Fault("inf_loss", 7, None)),
        ("huge_grad@9", Fault("huge_grad", 9, 1e6)),
        ("huge_grad@9x1e20", Fault("huge_grad", 9, 1e20)),
        ("nan_weight@13", Fault("nan_weight", 13, None)),
        ("loss_spike@20", Fault("loss_spike", 20, 8.0)),
        ("loss_spike@20x8", Fault("loss_spike", 20, 8.0)),
        ("loss_spike@20x0.5", Fault("loss_spike", 20, 0.5)),
        ("corrupt_batch@30", Fault("corrupt_batch", 30, None)),
        ("full_disk@40", Fault("full_disk", 40, None)),
        ("temperature@50x95", Fault("temperature", 50, 95.0)),
        ("kill@0", Fault("kill", 0, None)),
    ],
)
def test_a_fault(text, fault):
    assert parse([text]) == (fault,)
    assert contradictions(FaultSettings((text,))) == ()


def test_they_stay_in_the_order_in_which_they_are_written():
    texts = ("kill@60", "nan_grad@5", "nan_grad@6")
    assert [fault.batch for fault in parse(texts)] == [60, 5, 6]
    assert parse(()) == ()


MISTAKES = [
    *(
        (text, "is not kind@batch")
        for text in ("", "nan_grad", "nan_grad@", "nan_grad@05", "nan_grad@-1", "nan_grad@1.5")
    ),
    *((text, "is not kind@batch") for text in ("loss_spike@5x", "loss_spike@5x-1", "loss_spike@5xnan")),
    *(
        (text, "is not kind@batch")
        for text in ("loss_spike@5X8", "loss_spike@5x8x8", "nan_grad@5\n", "kill@" + "9" * 30)
    ),
    *((text, "is not kind@batch") for text in ("nan_grad@5;kill@6", "loss_spike@5x٨")),
    ("nan_gard@5", "has no kind of fault; did you mean nan_grad?"),
    ("nan_grad @5", "has no kind of fault; did you mean nan_grad?"),
    ("@5", "has no kind of fault; expected nan_grad, inf_loss"),
    ("NAN_GRAD@5", "has no kind of fault; expected nan_grad, inf_loss"),
    ("nan_grad@5x8", "has a value, and nan_grad takes none; write nan_grad@5"),
    ("temperature@50", "needs a value, as in temperature@50x95"),
    ("loss_spike@20x0", "must have a finite value above 0; found 0"),
    ("huge_grad@20x1e999", "must have a finite value above 0; found 1e999"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_mistake(text, message):
    (line,) = contradictions(FaultSettings((text,)))
    assert line.startswith(f"faults.inject: {text!r} {message}")
    with pytest.raises(ValueError, match=r"is not kind@batch|has |needs |must have"):
        parse([text])


def test_every_mistake_is_listed_and_the_same_fault_twice_is_one():
    lines = contradictions(FaultSettings(("kill@1", "kil@1", "loss_spike@2", "loss_spike@2x9", "kill@2", "x")))
    assert len(lines) == 3
    assert lines[1] == "faults.inject: 'loss_spike@2x9' is 'loss_spike@2' again; a kind fires once at a batch"


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.one_of(st.text(max_size=20), st.from_regex(r"[a-z_]{1,12}@[0-9]{1,4}(x[0-9.e]{1,5})?", fullmatch=True)))
def test_whatever_is_written_is_read_or_answered(text):
    if contradictions(FaultSettings((text,))):
        with pytest.raises(ValueError):
            parse([text])
    else:
        (fault,) = parse([text])
        assert fault.kind in KINDS
        assert fault.batch >= 0
