"""incidents/incident_NNNN.json: what is on record about a step that was refused, undone or stood out, and its cause."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pretrain import reading
from pretrain.errors import IntegrityError
from pretrain.evidence import canonical
from pretrain.policy.diagnosis import Cause, Diagnosis
from pretrain.policy.incident import IncidentNumbers, Replay, Report, series

# torch comes in with what a batch is: to verify an attempt takes a tenth of a second without it.
if TYPE_CHECKING:
    from pretrain.batch import SampleIdentity

FOLDER = "incidents"
SCHEMA = 1
EXPERIMENTS = ("same_batch_from_safe", "other_batch", "fresh_moments", "in_float32")
ACTIONS = ("record", "skip", "roll_back", "stop")

_NAME = re.compile(r"incident_([0-9]{4,9})\.json")
_FIELDS = (
    *("schema", "incident", "step", "batch", "trigger", "samples", "blocks", "activations", "moments"),
    *("learning_rate", "phase", "context", "history", "experiments", "action", "cause", "evidence", "remedy"),
)
_CONTEXT = (
    *("loss", "gradient_norm", "clip_max_norm", "peak_learning_rate", "warmup_steps", "uniform_loss"),
    *("bad_input_share", "precision", "loss_scale", "greatest_loss_scale"),
)
_REPLAY = ("step", "loss", "gradient_norm", "update_norm", "block_gradient_norms")
_REPORT = ("event", "step", "batch", "loss", "gradient_norm", "learning_rate", "update_norm")


@dataclass(frozen=True)
class Incident:
    """One incident file: the numbers that its cause was read from, and what tells a person where to look.

    number: the count of the ledger. samples: source, offset, position and loss of each sample of the batch. blocks: the
    names of the blocks, first to last. record: the whole file.
    """

    number: int
    batch: int
    numbers: IncidentNumbers
    samples: tuple[Mapping[str, Any], ...]
    blocks: tuple[str, ...]
    phase: str
    action: str
    cause: str
    remedy: str
    record: Mapping[str, Any]
    sha256: str


def name_of(number: int) -> str:
    """Return the path of an incident's file in its attempt."""
    return f"{FOLDER}/{short_name_of(number)}.json"


def short_name_of(number: int) -> str:
    """Return what an incident is called on the screen: the name of its file, without what all of them have."""
    return f"incident_{number:04d}"


def number_of(path: str) -> int | None:
    """Return the number that such a path says, None where it is no such path."""
    folder, _, name = path.rpartition("/")
    found = _NAME.fullmatch(name)
    return int(found[1]) if found and folder == FOLDER and name_of(int(found[1])) == path else None


def encode(
    *,
    number: int,
    batch: int,
    numbers: IncidentNumbers,
    samples: "Sequence[SampleIdentity]",
    blocks: Sequence[str],
    history: Sequence[Report],
    phase: str,
    action: str,
    diagnosis: Diagnosis,
) -> bytes:
    """Return the bytes of an incident's file; `history` is what the series of `numbers` were taken from."""
    scales = numbers.loss_scales
    record = {
        "schema": SCHEMA,
        "incident": number,
        "step": numbers.step,
        "batch": batch,
        "trigger": {"name": numbers.trigger, "value": numbers.value, "threshold": numbers.threshold},
        "samples": [
            {"source": canonical.unicode(one.source), "offset": one.offset, "position": one.position, "loss": loss}
            for one, loss in zip(samples, numbers.sample_losses, strict=True)
        ],
        "blocks": [
            {"name": name, "gradient_norm": norm}
            for name, norm in zip(blocks, numbers.block_gradient_norms, strict=True)
        ],
        "activations": list(numbers.block_activations),
        "moments": {"ratio": numbers.moment_ratio, "update_norm": numbers.update_norm},
        "learning_rate": numbers.learning_rate,
        "phase": phase,
        "context": {
            **{name: getattr(numbers, name) for name in _CONTEXT if not name.endswith("loss_scale")},
            "loss_scale": scales[-1] if scales else None,
            "greatest_loss_scale": max(scales) if scales else None,
        },
        "history": [asdict(report) for report in history],
        "experiments": {name: _replay(getattr(numbers, name)) for name in EXPERIMENTS},
        "action": action,
        "cause": diagnosis.cause,
        "evidence": {
            "for": [asdict(one) for one in diagnosis.evidence_for],
            "against": [asdict(one) for one in diagnosis.evidence_against],
        },
        "remedy": diagnosis.remedy,
    }
    data = canonical.encode(canonical.seal(record))
    parse_incident(data, f"incident {number}")  # what a reader would refuse is never written
    return data


def _replay(replay: Replay | None) -> dict[str, Any] | None:
    return None if replay is None else {name: getattr(replay, name) for name in _REPLAY}


# --- reading back --------------------------------------------------------------------------------------


def read_incident(path: Path) -> Incident:
    """Return what an incident's file says. Raises IntegrityError where it was altered or is none."""
    return parse_incident(reading.read_regular(path, limit=canonical.RECORD_LIMIT), str(path))


def read_incidents(attempt: Path, up_to: int) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of the incidents of an attempt up to number `up_to`, each of them verified."""
    folder = attempt / FOLDER
    if folder.is_symlink():
        raise IntegrityError(f"{folder}: expected a folder, found a symlink")
    for name, _ in reading.walk(folder) if folder.is_dir() else ():
        number = number_of(f"{FOLDER}/{name}")
        if number is not None and number <= up_to:
            data = reading.read_regular(folder / name, limit=canonical.RECORD_LIMIT)
            if parse_incident(data, str(folder / name)).number != number:
                raise IntegrityError(f"{folder / name}: it is the record of another incident")
            yield number, data


def parse_incident(data: bytes, where: str) -> Incident:
    """Read an incident strictly. Raises IntegrityError naming `where` and the field."""
    record = canonical.parse_record(data, where, _FIELDS)
    if canonical.integer(record["schema"], f"{where}: schema") != SCHEMA:
        raise IntegrityError(f"{where}: expected schema {SCHEMA}, found {record['schema']}")
    samples = [
        canonical.fields(one, ("source", "offset", "position", "loss"), f"{where}: samples")
        for one in canonical.items(record["samples"], f"{where}: samples")
    ]
    blocks = [
        canonical.fields(one, ("name", "gradient_norm"), f"{where}: blocks")
        for one in canonical.items(record["blocks"], f"{where}: blocks")
    ]
    _check_evidence(record["evidence"], f"{where}: evidence")
    losses = tuple(canonical.number(one["loss"], f"{where}: samples: loss") for one in samples)
    norms = tuple(canonical.number(one["gradient_norm"], f"{where}: blocks: gradient_norm") for one in blocks)
    return Incident(
        number=canonical.integer(record["incident"], f"{where}: incident", minimum=1),
        batch=canonical.integer(record["batch"], f"{where}: batch"),
        numbers=_numbers(record, losses, norms, where),
        samples=tuple(_checked_sample(one, f"{where}: samples") for one in samples),
        blocks=tuple(canonical.text(one["name"], f"{where}: blocks: name") for one in blocks),
        phase=canonical.text(record["phase"], f"{where}: phase"),
        action=canonical.text(record["action"], f"{where}: action", ACTIONS),
        cause=canonical.text(record["cause"], f"{where}: cause", get_args(Cause)),
        remedy=canonical.text(record["remedy"], f"{where}: remedy"),
        record=record,
        sha256=hashlib.sha256(data).hexdigest(),
    )


def _numbers(
    record: Mapping[str, Any], losses: tuple[float, ...], norms: tuple[float, ...], where: str
) -> IncidentNumbers:
    trigger = canonical.fields(record["trigger"], ("name", "value", "threshold"), f"{where}: trigger")
    moments = canonical.fields(record["moments"], ("ratio", "update_norm"), f"{where}: moments")
    context = canonical.fields(record["context"], _CONTEXT, f"{where}: context")
    experiments = canonical.fields(record["experiments"], EXPERIMENTS, f"{where}: experiments")
    history = [_report(one, f"{where}: history") for one in canonical.items(record["history"], f"{where}: history")]
    past_losses, past_norms, past_updates = series(history)
    replays = {name: _read_replay(experiments[name], f"{where}: experiments.{name}") for name in EXPERIMENTS}
    greatest, newest = (_or_none(context[name], f"{where}: {name}") for name in ("greatest_loss_scale", "loss_scale"))
    return IncidentNumbers(
        trigger=canonical.text(trigger["name"], f"{where}: trigger.name"),
        value=canonical.number(trigger["value"], f"{where}: trigger.value"),
        threshold=canonical.number(trigger["threshold"], f"{where}: trigger.threshold"),
        step=canonical.integer(record["step"], f"{where}: step"),
        warmup_steps=canonical.integer(context["warmup_steps"], f"{where}: context.warmup_steps"),
        learning_rate=canonical.number(record["learning_rate"], f"{where}: learning_rate"),
        peak_learning_rate=canonical.number(context["peak_learning_rate"], f"{where}: context.peak_learning_rate"),
        loss=canonical.number(context["loss"], f"{where}: context.loss"),
        gradient_norm=canonical.number(context["gradient_norm"], f"{where}: context.gradient_norm"),
        update_norm=_or_none(moments["update_norm"], f"{where}: moments.update_norm"),
        sample_losses=losses,
        uniform_loss=_or_none(context["uniform_loss"], f"{where}: context.uniform_loss"),
        block_gradient_norms=norms,
        block_activations=_numbers_of(record["activations"], f"{where}: activations"),
        moment_ratio=_or_none(moments["ratio"], f"{where}: moments.ratio"),
        clip_max_norm=_or_none(context["clip_max_norm"], f"{where}: context.clip_max_norm"),
        precision=canonical.text(context["precision"], f"{where}: context.precision"),
        loss_scales=() if greatest is None or newest is None else (greatest, newest),
        bad_input_share=_or_none(context["bad_input_share"], f"{where}: context.bad_input_share"),
        losses=past_losses,
        gradient_norms=past_norms,
        update_norms=past_updates,
        same_batch_from_safe=replays["same_batch_from_safe"],
        other_batch=replays["other_batch"],
        fresh_moments=replays["fresh_moments"],
        in_float32=replays["in_float32"],
    )


def _read_replay(value: Any, where: str) -> Replay | None:
    if value is None:
        return None
    found = canonical.fields(value, _REPLAY, where)
    return Replay(
        loss=_or_none(found["loss"], f"{where}.loss"),
        gradient_norm=_or_none(found["gradient_norm"], f"{where}.gradient_norm"),
        update_norm=_or_none(found["update_norm"], f"{where}.update_norm"),
        step=None if found["step"] is None else canonical.integer(found["step"], f"{where}.step"),
        block_gradient_norms=_numbers_of(found["block_gradient_norms"], f"{where}.block_gradient_norms"),
    )


def _report(value: Any, where: str) -> Report:
    found = canonical.fields(value, _REPORT, where)
    return Report(
        event=canonical.text(found["event"], f"{where}.event", ("step", "skipped", "overflow")),
        step=canonical.integer(found["step"], f"{where}.step"),
        batch=canonical.integer(found["batch"], f"{where}.batch"),
        loss=canonical.number(found["loss"], f"{where}.loss"),
        gradient_norm=canonical.number(found["gradient_norm"], f"{where}.gradient_norm"),
        learning_rate=_or_none(found["learning_rate"], f"{where}.learning_rate"),
        update_norm=_or_none(found["update_norm"], f"{where}.update_norm"),
    )


def _checked_sample(found: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    canonical.text(found["source"], f"{where}.source")
    canonical.integer(found["offset"], f"{where}.offset")
    canonical.integer(found["position"], f"{where}.position")
    return {**found, "loss": float(found["loss"])}


def _check_evidence(value: Any, where: str) -> None:
    for side, listed in canonical.fields(value, ("for", "against"), where).items():
        for one in canonical.items(listed, f"{where}.{side}"):
            found = canonical.fields(one, ("name", "value", "expected"), f"{where}.{side}")
            canonical.text(found["name"], f"{where}.{side}: name")
            canonical.number(found["value"], f"{where}.{side}: value")
            canonical.text(found["expected"], f"{where}.{side}: expected")


def _numbers_of(value: Any, where: str) -> tuple[float, ...]:
    return tuple(canonical.number(one, where) for one in canonical.items(value, where))


def _or_none(value: Any, where: str) -> float | None:
    return None if value is None else canonical.number(value, where)
