"""L5: the power is cut after every operation on the disk; whatever is left opens, holds what was announced, goes on.

A cut that may leave at most MOST states is exhaustive: every state is opened. Of any other, MOST are opened that the
seed draws, those among them where all that can be alike is alike, and its corners. What is resumed to the end is named
by the point: the corners of the cut, those and a state more that the seed draws, one that it draws, or none. What has
the same bytes as a state before is not opened or resumed again.
"""

import hashlib
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from pretrain import lineage
from pretrain.evidence import checkpoint, events, namespace
from tests.drill.cycle import STEPS, cycle_config
from tests.drill.disk import MOST, Disk, Operation, Tree, read_record, write_tree
from tests.drill.layer import Layer
from tests.loop.forks import Forks, Order
from tests.loop.lineages import End, Lineage, check_claims, end_of

RUN = "run"
# A refusal, and a rollback to the newest checkpoint.
HURT = "faults.inject=[nan_grad@1, nan_weight@3]"
# A process that dies when these are there, and are not durable, must not be what a later one rests on.
KILLED_AFTER = {
    "resume": ("replace", "step_00000002/checkpoint.json"),
    "extend": ("replace", "0001/manifest.json"),
    "again": ("replace", "0001/manifest.json"),
    "reborn": ("replace", "attempts/0001"),
    "remade": ("mkdir", "run/attempts"),
    "begun": ("mkdir", "run"),
}
# Of these a shorter run tells as much. They differ in the first operations alone, so that every second cut of each goes
# on to the end, of the second one those between.
BIRTHS = ("reborn", "remade", "begun")
OVERRIDES = {"extend": (f"training.max_steps={STEPS + 1}",)}
_OF_AN_ATTEMPT = re.compile(rf"{RUN}/{namespace.ATTEMPTS}/[0-9]")
_UNBOUND = (f"/{events.NAME}", "/telemetry.csv")


@dataclass(frozen=True)
class Script:
    """What is done while the power is cut: a life, of which the operations are on record.

    before: the operations of an earlier life, which was killed after the last of them. end: what the run must come to.
    overrides: of that life, and of those that follow the cut.
    """

    config: Path
    before: tuple[Operation, ...]
    operations: tuple[Operation, ...]
    end: End
    overrides: tuple[str, ...] = ()


def disk_after(operations: Sequence[Operation]) -> Disk:
    """Return the disk that these operations lead to."""
    disk = Disk()
    for operation in operations:
        disk.do(operation)
    return disk


def recorded(forks: Forks, folder: Path, steps: int = STEPS, *overrides: str, broken: str = "") -> Script:
    """Live a run from its beginning to its end in an empty folder."""
    folder.mkdir()
    config = cycle_config(folder, steps, *overrides)
    order = Order(str(folder / RUN), f"{folder}.log", str(config), record=str(folder / "record"), broken=broken)
    forks.live(order)
    return Script(config, (), tuple(read_record(folder / "record")), end_of(folder / RUN))


def gone_on(forks: Forks, first: Script, folder: Path, done: str, target: str, overrides: tuple[str, ...]) -> Script:
    """Kill the life of `first` once it has done this to its target; then train or resume to the end."""
    died = 1 + next(at for at, (name, *to) in enumerate(first.operations) if name == done and to[-1].endswith(target))
    before = first.operations[:died]
    folder.mkdir()
    write_tree(disk_after(before).as_it_is(), folder)
    run = folder / RUN
    config = None if namespace.list_attempts(run) else str(first.config)
    forks.live(Order(str(run), f"{folder}.log", config, overrides=overrides, record=str(folder / "record")))
    return Script(first.config, before, tuple(read_record(folder / "record")), end_of(run), overrides)


def check_state(run: Path, disk: Disk) -> None:
    """Assert that nothing in a run claims what it is not, and that all is there that a person was told of."""
    attempts = [namespace.attempt_folder(run, number) for number in namespace.list_attempts(run)]
    for attempt in attempts:
        check_claims(attempt)
    newest = max((step for attempt in attempts for step, _ in checkpoint.list_checkpoints(attempt)), default=-1)
    assert newest >= disk.announced, f"step {disk.announced} was announced, the newest is {newest}"
    assert not disk.done or lineage.verify(attempts[-1]).ok, "the run was said to be done"


def bound(tree: Tree) -> Tree:
    """Return what `check_state` looks at: the attempts, of one that is not done without what no record binds yet."""
    done = {name.rpartition("/")[0] for name in tree if name.endswith(f"/{namespace.MANIFEST}")}
    return {
        name: content
        for name, content in tree.items()
        if _OF_AN_ATTEMPT.match(name) and (not name.endswith(_UNBOUND) or name.rpartition("/")[0] in done)
    }


def digest(tree: Tree, what: str) -> bytes:
    """Return what tells a state from others; what: is asked of it."""
    found = hashlib.sha256(what.encode())
    for name, content in sorted(tree.items()):
        found.update(f"\n{name} {content is None} {len(content or b'')}\n".encode())
        found.update(content or b"")
    return found.digest()


def _is_new(seen: set[bytes], key: bytes) -> bool:
    """Return whether it was not seen, and take it in."""
    known = key in seen
    seen.add(key)
    return not known


class Cuts:
    """Cuts in the life of a run, and in lives that go on from what was killed at a bad moment before."""

    def __init__(self, forks: Forks, folder: Path, seed: int) -> None:
        self._forks, self._seed = forks, seed
        whole = recorded(forks, folder / "train")
        short = recorded(forks, folder / "short", 1)
        self._scripts = {"train": whole, "hurt": recorded(forks, folder / "hurt", STEPS, HURT)}
        for name, where in KILLED_AFTER.items():
            first = short if name in BIRTHS else whole
            self._scripts[name] = gone_on(forks, first, folder / name, *where, OVERRIDES.get(name, ()))
            assert name in OVERRIDES or self._scripts[name].end == first.end, name
        self._seen: set[bytes] = set()
        self._resumed: set[bytes] = set()
        self._numbers: Counter[str] = Counter()

    def points(self, *, whole: bool) -> Sequence[str]:
        """A cut after each operation of each script, the last one first; of a quick part after every 60th.

        Of a quick part the corners of every third cut alone are resumed.
        """
        return [
            f"{name} {at} {self._resumes(name, at) if whole else 'one' if number % 3 else 'corners+one'}"
            for name, script in self._scripts.items()
            for number, at in enumerate(range(len(script.operations), -1, -1 if whole else -60), start=1)
        ]

    @staticmethod
    def _resumes(name: str, at: int) -> str:
        if name in BIRTHS and (at + BIRTHS.index(name)) % 2:
            return "none"
        return "corners" if at % 3 else "corners+one"

    def check(self, point: str, folder: Path) -> None:
        """Open every state that the cut may leave, or MOST of them, and go on to the end from some."""
        name, at, resumes = point.split()
        script = self._scripts[name]
        disk = disk_after((*script.before, *script.operations[: int(at)]))
        seed = f"{self._seed} {point}"
        corners, states = list(disk.corners()), list(disk.after_a_cut(seed))
        chosen = len(corners) + random.Random(seed).randrange(len(states))
        self._numbers.update(cuts=1, drawn=disk.is_drawn(), states=len(states))
        for number, tree in enumerate((*corners, *states)):
            is_new = _is_new(self._seen, digest(bound(tree), f"{name} {disk.announced} {disk.done}"))
            kind = "corners" if number < len(corners) else "one" if number == chosen else "opened"
            is_resumed = kind in resumes.split("+") and _is_new(self._resumed, digest(tree, name))
            if not is_new and not is_resumed:
                continue
            state = folder / f"{number:02}"
            state.mkdir()
            write_tree(tree, state)
            try:
                check_state(state / RUN, disk)
                if is_resumed:
                    self._go_on(script, state / RUN)
            except AssertionError as error:
                done = str(script.operations[int(at) - 1])[:200] if int(at) else "nothing"
                raise AssertionError(f"state {number} after {done}: {error}") from error
            shutil.rmtree(state)

    def counted(self) -> str:
        """Return how many states the cuts gone through have come to."""
        cuts, drawn = self._numbers["cuts"], self._numbers["drawn"]
        return (
            f"{cuts} cuts, every state of {cuts - drawn} and {MOST} drawn of each of {drawn}: {self._numbers['states']}"
            f" states, {len(self._seen)} of them distinct and opened, {len(self._resumed)} resumed to the end"
        )

    def _go_on(self, script: Script, run: Path) -> None:
        """Train or resume to the end, with the same bytes as if nothing had happened."""
        lives = Lineage(self._forks, script.config, run)
        assert lives.live(overrides=script.overrides).exit_code == 0, lives.lives
        assert end_of(run) == script.end, f"another end: {lives.lives}"
        lives.check_claims()


@contextmanager
def opened(folder: Path, seed: int) -> Iterator[Cuts]:
    """Start the process that forks, and put the lives on record."""
    with mock.patch.dict(os.environ, PRETRAIN_ALLOW_FAULTS="1"), Forks() as forks:
        yield Cuts(forks, folder, seed)


LAYER = Layer("L5", "the power is cut after every operation on the disk", (22, 1205), opened)
