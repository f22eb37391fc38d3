"""The checkpoints that a child can go back to, verified before it begins."""

import itertools
from pathlib import Path

from pretrain.attempt.ancestry import checkpoints_of
from pretrain.attempt.origin import Origin
from pretrain.errors import IntegrityError, StorageError
from pretrain.evidence import checkpoint
from pretrain.evidence.checkpoint import CheckpointRecord
from pretrain.policy.cadence import is_on_cadence
from pretrain.policy.recovery import TARGETS, LadderState, Target, is_behind_slowing


def find_targets(
    run_dir: Path, origin: Origin, every: int, ladder: LadderState
) -> tuple[dict[Target, Path], list[str]]:
    """Return the checkpoints of the regular cadence that a child of `origin` can go back to, and what is lost of them.

    Of a step that several attempts of the lineage reached, the one of the youngest: what an older one holds there
    may have been undone. The newest are verified here; where one is gone, damaged or unreadable, an older one takes its
    place, and a run that goes back comes to another end than it would have.
    """
    found: dict[int, Path] = {}
    for step, place in checkpoints_of(run_dir, origin.parent.attempt) if origin.parent is not None else ():
        if step <= origin.step and is_on_cadence(step, every) and is_behind_slowing(step, ladder):
            found.setdefault(step, place)
    newest = range(origin.step - origin.step % every, -1, -every)
    cadence = itertools.islice((step for step in newest if is_behind_slowing(step, ladder)), TARGETS)
    targets: dict[Target, Path] = {}
    lost = []
    for step in sorted({*cadence, *found}, reverse=True) if origin.record is not None else ():
        if len(targets) == TARGETS:
            break
        try:
            record = _record_of_target(origin, step, found.get(step))
        except (IntegrityError, StorageError) as error:
            # Neither is a reason not to go on, which may never need it.
            lost.append(f"it cannot go back to step {step} any more: {error}")
        else:
            targets[Target(step, record.batch)] = found[step]
    return targets, lost


def _record_of_target(origin: Origin, step: int, place: Path | None) -> CheckpointRecord:
    if place is None:
        raise IntegrityError(f"the checkpoint of step {step} is gone from {origin.folder} and what it goes on from")
    if origin.record is not None and place == origin.checkpoint:
        return origin.record  # its files were verified when they were loaded
    return checkpoint.verify_checkpoint(place)
