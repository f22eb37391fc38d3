"""What a replayed incident shows: the cause, and tables of what happened and of what its step gives again."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pretrain.evidence import incident
from pretrain.evidence.incident import Incident
from pretrain.policy.diagnosis import diagnose
from pretrain.policy.incident import Replay

_ROWS = (("loss", "loss"), ("gradient norm", "gradient_norm"), ("update norm / rate", "update_norm"))


@dataclass(frozen=True)
class Replayed:
    """What an incident's step gives from a checkpoint before it, by experiment, beside what is on record.

    record_sha256, step: of the checkpoint.
    """

    incident: Incident
    attempt: int
    step: int
    record_sha256: str
    experiments: Mapping[str, Replay]

    def answer(self) -> dict[str, Any]:
        """Return what `replay --json` prints."""
        numbers, record = self.incident.numbers, self.incident.record
        return {
            "incident": self.incident.number,
            "attempt": self.attempt,
            "step": numbers.step,
            "batch": self.incident.batch,
            "action": self.incident.action,
            "cause": self.incident.cause,
            "remedy": self.incident.remedy,
            "evidence": record["evidence"],
            "recorded": {name: _numbers(replay) for name, replay in self._recorded().items()},
            "checkpoint": {"step": self.step, "record_sha256": self.record_sha256},
            "experiments": {name: _numbers(replay) for name, replay in self.experiments.items()},
        }

    def text(self) -> str:
        """Return the same for a person: the cause, and tables of losses and norms."""
        one, numbers = self.incident, self.incident.numbers
        is_bounded = math.isfinite(numbers.threshold)
        bound = f"threshold {numbers.threshold:.6g}" if is_bounded else "which must be finite"
        lines = [
            f"incident {one.number} of attempt {self.attempt:04d}: {numbers.trigger} {numbers.value:.6g}, {bound}; "
            f"step {numbers.step}, batch {one.batch}; phase {one.phase}, action {one.action}",
            f"cause: {one.cause}",
            *(f"  {side} {_weighed(one)}: {_evidence(one.record['evidence'][side])}" for side in ("for", "against")),
            f"remedy: {one.remedy}",
            "",
            "as it happened",
            *_table(self._recorded(), one.blocks),
            "",
            f"again, from the checkpoint of step {self.step}, {_distance(numbers.step - self.step)}",
            *_table(self.experiments, one.blocks),
        ]
        if one.samples:
            lines += ["", "samples by loss", *_samples(one)]
        return "".join((line if line.isprintable() else ascii(line)) + "\n" for line in lines)

    def _recorded(self) -> dict[str, Replay]:
        numbers = self.incident.numbers
        happened = Replay(
            numbers.loss, numbers.gradient_norm, numbers.update_norm, numbers.step, numbers.block_gradient_norms
        )
        replays = {name: getattr(numbers, name) for name in incident.EXPERIMENTS}
        return {"happened": happened} | {name: replay for name, replay in replays.items() if replay is not None}


def _numbers(replay: Replay) -> dict[str, Any]:
    return {
        "step": replay.step,
        "loss": replay.loss,
        "gradient_norm": replay.gradient_norm,
        "update_norm": replay.update_norm,
        "block_gradient_norms": list(replay.block_gradient_norms),
    }


def _weighed(one: Incident) -> str:
    """Return what the evidence is of: the cause, or, where none is named, the one that comes nearest."""
    if one.cause != "unknown":
        return "it"
    found = diagnose(one.numbers)
    listed = [row["name"] for side in ("for", "against") for row in one.record["evidence"][side]]
    # Another version may weigh otherwise.
    is_same = listed == [evidence.name for evidence in (*found.evidence_for, *found.evidence_against)]
    return f"{found.scores[0][0]}, which comes nearest" if is_same else "what comes nearest"


def _distance(steps: int) -> str:
    return f"{abs(steps)} steps {'before' if steps >= 0 else 'after'} it"


def _evidence(listed: list[Mapping[str, Any]]) -> str:
    return "; ".join(f"{one['name']} {float(one['value']):.4g} ({one['expected']})" for one in listed) or "nothing"


def _table(columns: Mapping[str, Replay], blocks: tuple[str, ...]) -> Iterator[str]:
    """Yield a table with a column for each replay: loss, norms, and the gradient norm of each block."""
    width = max(len(label) for label in (*blocks, *(label for label, _ in _ROWS)))
    yield "  ".join([" " * width, *(f"{name:>20}" for name in columns)])
    for label, name in _ROWS:
        cells = [getattr(replay, name) for replay in columns.values()]
        yield "  ".join([f"{label:<{width}}", *(_cell(cell) for cell in cells)])
    for index, block in enumerate(blocks):
        norms = [replay.block_gradient_norms for replay in columns.values()]
        cells = [of_block[index] if index < len(of_block) else None for of_block in norms]
        yield "  ".join([f"{block:<{width}}", *(_cell(cell) for cell in cells)])


def _cell(value: float | None) -> str:
    return f"{'-' if value is None else format(value, '.6g'):>20}"


def _samples(one: Incident) -> Iterator[str]:
    """Yield the samples that cost most; one whose loss is not a number costs more than any."""
    by_loss = sorted(one.samples, key=lambda sample: sample["loss"] if sample["loss"] == sample["loss"] else 1e999)
    for sample in reversed(by_loss[-8:]):
        yield f"  {sample['loss']:10.4f}  {sample['source']} at byte {sample['offset']}, position {sample['position']}"
