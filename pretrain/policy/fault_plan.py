"""Which test faults a run injects and at which batch: `kind@batch`, or `kind@batchxVALUE`."""

import difflib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# The value of each kind where none is written; None = it takes none, NaN = it must be written.
_VALUES: dict[str, float | None] = {
    "nan_grad": None,
    "inf_loss": None,
    "huge_grad": 1e6,
    "nan_weight": None,
    "loss_spike": 8.0,
    "corrupt_batch": None,
    "full_disk": None,
    "temperature": math.nan,
    "kill": None,
}
KINDS = tuple(_VALUES)
_TEXT = re.compile(r"(?P<kind>[^@]*)@(?P<batch>0|[1-9][0-9]{0,17})(x(?P<value>[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?))?")


@dataclass(frozen=True)
class FaultSettings:
    """Faults for tests and drills; a run with any of them needs PRETRAIN_ALLOW_FAULTS=1, and its manifest lists them.

    inject: `kind@batch` or `kind@batchxVALUE`; batch is the index of the global batch, from 0. The kinds are nan_grad,
        inf_loss, nan_weight, corrupt_batch, full_disk and kill, without a value; huge_grad (what the gradients are
        multiplied by, 1e6 unless given), loss_spike (what the loss is multiplied by, 8 unless given) and temperature
        (degrees Celsius). A spike is judged only after spikes.warmup_steps.
    """

    inject: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fault:
    """What is injected at which global batch; `value` is None for a kind that takes none."""

    kind: str
    batch: int
    value: float | None


def parse(texts: Sequence[str]) -> tuple[Fault, ...]:
    """Return the faults in the order in which they are written; ValueError for a text that is none.

    `contradictions` says all that is wrong with a configuration's, in its own words.
    """
    found = []
    for text in texts:
        fault = _read(text)
        if isinstance(fault, str):
            raise ValueError(f"{text!r} {fault}")
        found.append(fault)
    return tuple(found)


def contradictions(settings: FaultSettings) -> tuple[str, ...]:
    """What is wrong with the faults to inject, one line each, beginning with the key."""
    return tuple(f"faults.inject: {line}" for line in _problems(settings.inject))


def _problems(texts: Sequence[str]) -> Iterator[str]:
    seen: dict[tuple[str, int], str] = {}
    for text in texts:
        fault = _read(text)
        if isinstance(fault, str):
            yield f"{text!r} {fault}"
        elif (fault.kind, fault.batch) in seen:
            yield f"{text!r} is {seen[fault.kind, fault.batch]!r} again; a kind fires once at a batch"
        else:
            seen[fault.kind, fault.batch] = text


def _read(text: str) -> Fault | str:
    """Return the fault, or what is wrong with it."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return "is not kind@batch or kind@batchxVALUE, as in nan_grad@5 or loss_spike@20x8"
    kind, batch, written = found["kind"], int(found["batch"]), found["value"]
    if kind not in _VALUES:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        return "has no kind of fault; " + (f"did you mean {near[0]}?" if near else f"expected {', '.join(KINDS)}")
    default = _VALUES[kind]
    if written is None:
        if default is not None and math.isnan(default):
            return f"needs a value, as in {kind}@{batch}x95"
        return Fault(kind, batch, default)
    if default is None:
        return f"has a value, and {kind} takes none; write {kind}@{batch}"
    value = float(written)
    if not 0 < value < math.inf:
        return f"must have a finite value above 0; found {written}"
    return Fault(kind, batch, value)
