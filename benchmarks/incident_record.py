"""What one plan of the benchmark comes to, by the definitions of `benchmarks/incidents.py`."""

import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any
from unittest import mock

from benchmarks.incident_bare import Bare, run_bare
from benchmarks.incident_faults import Fault, Plan, fault_of
from benchmarks.incident_runs import Guarded, Incident, run_guarded
from pretrain.policy.spikes import SpikeSettings, SpikeState, find_spikes, remember

WITHIN_STEPS = 20
_SMOOTHED = 10


@dataclass(frozen=True)
class Record:
    """One plan and what became of it; see `benchmarks/incidents.py` for what the words mean.

    alarms: incidents of a healthy run, or before the fault of another. alarms_clean: those of its clean run.
    healthy_steps: the steps that they are counted over. named: the cause in the first incident. most: the
        most frequent one.
    """

    cause: str | None
    task: str
    seed: int
    kind: str
    at: int | None
    verdict: str
    detected: bool | None
    named: str | None
    most: str | None
    delay: int | None
    lead: int | None
    alarms: int
    alarms_clean: int
    healthy_steps: int
    guarded: float | None
    clean: float | None
    unguarded: float | None
    ratio: float | None
    finite: bool
    incidents: tuple[dict[str, Any], ...]
    seconds: float


def run_plan(plan: Plan, *, compare: bool = True) -> Record:
    """Run a plan, with all that it is compared with; or, not `compare`, without it."""
    begun = time.perf_counter()
    with mock.patch.dict(os.environ, {"PRETRAIN_ALLOW_FAULTS": "1"}):
        if plan.cause is None:
            return _healthy(plan, begun)
        fault = fault_of(plan)
        bare = run_bare(plan, fault) if compare else None
        guarded = run_guarded(plan, fault)
        clean = run_guarded(plan, fault, spoiled=False) if compare and fault.transient else None
    return _judged(plan, fault, guarded, clean, bare, begun)


def _healthy(plan: Plan, begun: float) -> Record:
    found = run_guarded(plan, None)
    return Record(
        cause=None,
        task=plan.task,
        seed=plan.seed,
        kind="healthy",
        at=None,
        verdict=found.verdict,
        detected=None,
        named=None,
        most=None,
        delay=None,
        lead=None,
        alarms=len(found.incidents),
        alarms_clean=0,
        healthy_steps=found.steps,
        guarded=found.final,
        clean=None,
        unguarded=None,
        ratio=None,
        finite=found.finite,
        incidents=_shown(found.incidents),
        seconds=time.perf_counter() - begun,
    )


def _judged(
    plan: Plan, fault: Fault, guarded: Guarded, clean: Guarded | None, bare: Bare | None, begun: float
) -> Record:
    at = fault.at or 0
    later = [one for one in guarded.incidents if one.batch >= at]
    first = later[0] if later else None
    if fault.at is not None:
        detected = first is not None and first.batch - at <= WITHIN_STEPS
    else:
        fails = None if bare is None else fails_at(bare.losses)
        detected = first is not None and (fails is None or first.step <= fails)
    early = next((one.step for one in later if one.signal in ("gradient", "update")), None)
    late = None if bare is None else stands_out_at(bare.losses, at)
    final, reference = guarded.final, None if clean is None else clean.final
    return Record(
        cause=plan.cause,
        task=plan.task,
        seed=plan.seed,
        kind=fault.kind,
        at=fault.at,
        verdict=guarded.verdict,
        detected=detected,
        named=first.cause if detected and first is not None else None,
        most=Counter(one.cause for one in later).most_common(1)[0][0] if detected else None,
        delay=first.batch - at if first is not None and fault.at is not None else None,
        lead=None if early is None or late is None else late - early,
        alarms=len(guarded.incidents) - len(later),
        alarms_clean=0 if clean is None else len(clean.incidents),
        healthy_steps=at + (0 if clean is None else clean.steps),
        guarded=final,
        clean=reference,
        unguarded=None if bare is None else bare.final,
        ratio=final / reference if final is not None and reference is not None else None,
        finite=guarded.finite and (clean is None or clean.finite),
        incidents=_shown(guarded.incidents),
        seconds=time.perf_counter() - begun,
    )


def fails_at(losses: Sequence[float]) -> int | None:
    """Return the step at which the mean of ten losses is twice the lowest such mean, or a loss is not finite."""
    best = math.inf
    for step, loss in enumerate(losses):
        if not math.isfinite(loss):
            return step
        if step + 1 >= _SMOOTHED:
            mean = fmean(losses[step + 1 - _SMOOTHED : step + 1])
            best = min(best, mean)
            if mean >= 2 * best:
                return step
    return None


def stands_out_at(losses: Sequence[float], begin: int) -> int | None:
    """Return the first step from `begin` on whose loss stands out by the rule of `spikes.loss`, or is not finite."""
    state, settings = SpikeState(), SpikeSettings()
    for step, loss in enumerate(losses):
        spikes = find_spikes({"loss": loss}, state, settings)
        if step >= begin and (spikes or not math.isfinite(loss)):
            return step
        state = remember({"loss": loss}, spikes, state, settings)
    return None


def _shown(incidents: Sequence[Incident]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"step": one.step, "batch": one.batch, "action": one.action, "signal": one.signal, "cause": one.cause}
        for one in incidents
    )
