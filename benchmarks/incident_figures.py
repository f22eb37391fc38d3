"""The figures over all runs of the benchmark, the bars they are held to, and the table for people."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median
from typing import Any

from benchmarks.incident_faults import CAUSES, TASKS
from benchmarks.incident_record import Record

LEAST_DETECTED, LEAST_NAMED, MOST_FALSE_PER_10000, MOST_LOSS = 0.95, 0.9, 1.0, 1.01

Figures = dict[str, Any]


def figures_of(records: Sequence[Record]) -> Figures:
    """Return the figures of all causes, of each, of each of a task, and of the healthy runs."""
    faulty = [record for record in records if record.cause is not None]
    healthy = [record for record in records if record.cause is None]
    return {
        "causes": _of_faulty(faulty),
        "by_cause": {cause: _of_faulty(record for record in faulty if record.cause == cause) for cause in CAUSES},
        "by_cause_and_task": {
            f"{cause}, {task}": _of_faulty(record for record in faulty if (record.cause, record.task) == (cause, task))
            for cause in CAUSES
            for task in TASKS
        },
        "healthy": _of_healthy(healthy),
        "healthy_by_task": {task: _of_healthy([one for one in healthy if one.task == task]) for task in TASKS},
        "elsewhere": _rate(
            sum(record.alarms + record.alarms_clean for record in faulty),
            sum(record.healthy_steps for record in faulty),
        ),
        "not_finite": sum(not record.finite for record in records),
    }


def bars_of(figures: Figures) -> dict[str, dict[str, Any]]:
    """Return each bar with the figure held to it and whether it holds."""
    ratios = [of["loss_ratio"] for of in figures["by_cause"].values() if of["loss_ratio"] is not None]
    return {
        "detection": _bar(figures["causes"]["detection"], LEAST_DETECTED, lambda value, bar: value >= bar),
        "false_alarms_per_10000": _bar(
            figures["healthy"]["per_10000"], MOST_FALSE_PER_10000, lambda value, bar: value <= bar
        ),
        "named_right": _bar(figures["causes"]["named_right"], LEAST_NAMED, lambda value, bar: value >= bar),
        "worst_loss_ratio": _bar(max(ratios, default=None), MOST_LOSS, lambda value, bar: value <= bar),
        "runs_not_finite": _bar(figures["not_finite"], 0, lambda value, bar: value <= bar),
    }


def _bar(value: float | None, bar: float, holds: Callable[[float, float], bool]) -> dict[str, Any]:
    return {"value": value, "bar": bar, "holds": value is not None and holds(value, bar)}


def _of_faulty(records: Iterable[Record]) -> Figures:
    found = list(records)
    detected = [record for record in found if record.detected]
    ratios = [record.ratio for record in found if record.ratio is not None]
    delays = [record.delay for record in detected if record.delay is not None]
    leads = [record.lead for record in found if record.lead is not None]
    unguarded = [
        record.unguarded / record.clean
        for record in found
        if record.unguarded is not None and record.clean is not None and math.isfinite(record.unguarded)
    ]
    return {
        "runs": len(found),
        "detected": len(detected),
        "detection": len(detected) / len(found) if found else None,
        # Of the detected ones: what was not seen has no name.
        "named_right": _share(detected, lambda record: record.named == record.cause),
        "named_right_by_most": _share(detected, lambda record: record.most == record.cause),
        "names": dict(Counter(record.named for record in detected).most_common()),
        "delay": median(delays) if delays else None,
        "lead": median(leads) if leads else None,
        "lead_runs": len(leads),
        # The mean of the logarithms: single runs differ by chance as far down as up.
        "loss_ratio": math.exp(fmean(map(math.log, ratios))) if ratios else None,
        "loss_ratio_worst": max(ratios, default=None),
        "loss_within_1_percent": _share(ratios, lambda ratio: ratio <= MOST_LOSS),
        "ended": dict(Counter(record.verdict for record in found).most_common()),
        "unguarded_ratio": median(unguarded) if unguarded else None,
        "unguarded_not_finite": sum(
            record.unguarded is not None and not math.isfinite(record.unguarded) for record in found
        ),
    }


def _share(values: Sequence[Any], holds: Callable[[Any], bool]) -> float | None:
    return sum(map(holds, values)) / len(values) if values else None


def _of_healthy(records: Sequence[Record]) -> Figures:
    found = _rate(sum(record.alarms for record in records), sum(record.healthy_steps for record in records))
    return {"runs": len(records), **found, "runs_with_alarms": sum(record.alarms > 0 for record in records)}


def _rate(alarms: int, steps: int) -> Figures:
    return {"alarms": alarms, "steps": steps, "per_10000": 10_000 * alarms / steps if steps else None}


# --- the table -----------------------------------------------------------------------------------------


def table(figures: Figures, bars: dict[str, dict[str, Any]]) -> str:
    """Return the figures for a person, and whether the bars hold."""
    heads = ("runs", "detected", "named", "by most", "delay", "lead", "loss", "worst", "unguarded")
    lines = [_line("", heads)]
    for name, of in [*figures["by_cause_and_task"].items(), ("all", figures["causes"])]:
        unguarded = _number(of["unguarded_ratio"], "{:.3f}")
        if of["unguarded_not_finite"]:
            unguarded += f" ({of['unguarded_not_finite']} NaN)"
        cells = (
            str(of["runs"]),
            _number(of["detection"], "{:.1%}"),
            _number(of["named_right"], "{:.1%}"),
            _number(of["named_right_by_most"], "{:.1%}"),
            _number(of["delay"], "{:g}"),
            _number(of["lead"], "{:g}"),
            _number(of["loss_ratio"], "{:.4f}"),
            _number(of["loss_ratio_worst"], "{:.4f}"),
            unguarded,
        )
        lines.append(_line(name, cells))
    lines.append("")
    healthy = [("healthy", figures["healthy"]), *figures["healthy_by_task"].items()]
    for name, of in [*healthy, ("before a fault, or without it", figures["elsewhere"])]:
        rate = _number(of["per_10000"], "{:.2f}")
        lines.append(f"{name:<32}{of['alarms']:>6} alarms in {of['steps']:>7,} steps: {rate} per 10,000")
    lines.append("")
    for name, bar in bars.items():
        shown = _number(bar["value"], "{:.4g}")
        lines.append(f"{name:<32}{shown:>10}  bar {bar['bar']:<8g}{'holds' if bar['holds'] else 'does not hold'}")
    return "\n".join(lines)


def _line(label: str, cells: Sequence[str]) -> str:
    return f"{label:<26}" + "".join(f"{cell:>11}" for cell in cells)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
