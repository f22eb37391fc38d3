"""The ledger of a run that is killed: no sample is skipped or seen twice along the attempts that its end comes from."""

import hashlib
import itertools
import json
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pretrain.evidence import checkpoint, metrics, namespace
from tests.loop.forks import Life
from tests.loop.lineages import Lineage
from tests.loop.samples_taken import Taken, read_ledger


@dataclass(frozen=True)
class Samples:
    """What the end of a run was trained on: epoch and window numbers of every batch, and the batch of each step.

    batches: by number, those that were refused too. committed: the number of the batch of each step that was not
    undone. windows: how many the data set has.
    """

    batches: dict[int, tuple[int, tuple[int, ...]]]
    committed: dict[int, int]
    windows: int

    def of_step(self, step: int) -> tuple[int, tuple[int, ...]]:
        """Return epoch and window numbers of what a step was taken with."""
        return self.batches[self.committed[step]]


def ledger_of(run: Path) -> Path:
    """Return where the processes of a run keep its ledger: beside its folder, for nothing in there may be ours."""
    return run.with_name(f"{run.name}.samples")


def samples_of(run: Path) -> Samples:
    """Follow the newest attempt back to the first one, and take of each what it read before the next one began."""
    newest = namespace.newest(run)
    assert newest is not None
    taken = read_ledger(ledger_of(run))
    along: list[Taken] = []
    number, end = newest, float("inf")
    while True:
        parent, begin = _origin(run, number)
        own = [one for one in taken if one.attempt == number and begin <= one.batch < end]
        assert all(one.batch < next_.batch for one, next_ in itertools.pairwise(own)), f"not in order: {own}"
        along[:0] = own
        if parent is None:
            break
        number, end = parent, begin
    committed = _committed(namespace.attempt_folder(run, newest) / metrics.NAME)
    steps = {one.batch: one.step for one in along}
    for step, batch in committed.items():
        assert steps.get(batch) == step, (
            f"batch {batch} is in the row of step {step}, and was read for {steps.get(batch)}"
        )
    return Samples({one.batch: (one.epoch, one.ids) for one in along}, committed, along[0].windows)


def _origin(run: Path, number: int) -> tuple[int | None, int]:
    """Return the attempt that this one went on from, and the number of the first batch that it reads itself."""
    parent = namespace.read_environment(namespace.attempt_folder(run, number))["parent"]
    if parent is None:
        return None, 0
    assert parent["kind"] == "checkpoint", f"attempt {number:04d} goes on from a run that was done: {parent}"
    for _, folder in checkpoint.list_checkpoints(namespace.attempt_folder(run, parent["attempt"])):
        if hashlib.sha256((folder / checkpoint.RECORD_NAME).read_bytes()).hexdigest() == parent["record_sha256"]:
            return parent["attempt"], checkpoint.read_record(folder).batch
    raise AssertionError(f"attempt {number:04d} goes on from a checkpoint that is not there: {parent}")


def _committed(stream: Path) -> dict[int, int]:
    found: dict[int, int] = {}
    for row in map(json.loads, stream.read_text().splitlines()):
        if row["event"] == "step":
            found[row["step"]] = row["batch"]
        elif row["event"] == "rolled_back":
            found = {step: batch for step, batch in found.items() if step <= row["step"]}
    return found


def check_samples(found: Samples, untouched: Samples, told: object = "") -> None:
    """Every step was taken with the windows of the untouched run, and no epoch has one twice or leaves one out."""
    assert list(found.committed) == list(range(1, len(untouched.committed) + 1)), f"steps are missing: {told}"
    for step in untouched.committed:
        assert found.of_step(step) == untouched.of_step(step), (
            f"step {step}: expected epoch and windows {untouched.of_step(step)}, found {found.of_step(step)}: {told}"
        )
    epochs: defaultdict[int, list[int]] = defaultdict(list)
    for epoch, ids in found.batches.values():
        epochs[epoch] += ids
    for epoch, ids in epochs.items():
        assert len(set(ids)) == len(ids), f"epoch {epoch} has a window twice: {sorted(ids)}: {told}"
        # What does not fill a step any more is left for other epochs.
        left = found.windows - len(ids)
        assert epoch == max(epochs) or left < _step_of(found), f"epoch {epoch} leaves out {left} windows: {told}"
    assert found == untouched, f"other batches were refused: {told}"


def _step_of(samples: Samples) -> int:
    return max(len(ids) for _, ids in samples.batches.values())


class LedgerLineage(Lineage):
    """A lineage of kills whose processes keep a ledger of the samples that they train on."""

    def live(self, ends: Collection[int] = (0,), **how: object) -> Life:
        """See `Lineage.live`."""
        return super().live(ends, ledger=str(ledger_of(self.run)), **how)

    def check_samples(self, untouched: Samples) -> None:
        """See `check_samples`."""
        check_samples(samples_of(self.run), untouched, self.lives)
