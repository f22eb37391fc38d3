"""L0: every call of the file module fails, once and from then on; then the disk works again, and the run goes on."""

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pretrain import syscalls
from pretrain.errors import DataError, IntegrityError, StorageError
from tests.drill.cycle import DATA, cycle_config
from tests.drill.layer import Layer
from tests.loop.forks import Forks, Order, live_on
from tests.loop.lineages import Lineage, end_of
from tests.loop.systems import SHORT, Failing

_ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EMFILE", "EACCES")
# In which of its ways a call fails is the same for every seed; with which error is another for another. No disk answers
# EINTR for ever.
FAULTS = {"once": (*_ERRORS, "EINTR"), "on": _ERRORS}
_QUICK = 61  # Every so many points; odd, so that both ways are among them.
_REFUSED = {IntegrityError.exit_code: "", DataError.exit_code: DATA}
ENDS = (0, StorageError.exit_code, *_REFUSED)


class Calls:
    """A run from its beginning, and one that was killed and is resumed: their calls are counted, then made to fail."""

    def __init__(self, forks: Forks, folder: Path, seed: int) -> None:
        self._forks, self._seed = forks, seed
        self._config = cycle_config(folder)
        self._parents = {"train": folder / "none", "resume": folder / "parent"}
        Lineage(forks, self._config, folder / "parent").live(armed_by="step_00000002", kill_at=3)
        self._calls = {name: self._listed(folder, name, parent) for name, parent in self._parents.items()}
        self._end = end_of(folder / "train")

    def _listed(self, folder: Path, name: str, parent: Path) -> list[str]:
        """Live to the end, and return what each call was."""
        log = folder / f"{name}.calls"
        assert self._begun(folder / name, parent).live(does=f"{__name__}:listing", words=(str(log),)).exit_code == 0
        return log.read_text().splitlines()

    def _begun(self, run: Path, parent: Path) -> Lineage:
        if parent.exists():
            shutil.copytree(parent, run)
        return Lineage(self._forks, self._config, run)

    def points(self, *, whole: bool) -> Sequence[str]:
        """Every call, once and from then on, and each write that is short; of a quick part every 61st of these.

        The error is that whose turn it is, and so is the way of a short write: a seed begins with another one.
        """
        every = [point for name, calls in self._calls.items() for point in self._points_of(name, calls)]
        return every if whole else every[::_QUICK]

    def _points_of(self, name: str, calls: Sequence[str]) -> Iterator[str]:
        for at, call in enumerate(calls, start=1):
            for how, faults in FAULTS.items():
                yield f"{name} {at} {faults[(at + self._seed) % len(faults)]} {how}"
            if call.startswith("write "):
                yield f"{name} {at} {SHORT} {list(FAULTS)[(at + self._seed) % 2]}"

    def check(self, point: str, folder: Path) -> None:
        """Fail, leave nothing that claims what it is not, and go on to the end of the untouched run."""
        name, at, fault, how = point.split()
        run = self._begun(folder / "run", self._parents[name])
        life = run.live(fail_at=int(at), fail_with=fault, fail_on=how == "on", ends=ENDS)
        said = Path(f"{run.run}.log").read_text()
        assert "Traceback" not in said, said
        if fault == SHORT:
            assert life.exit_code == 0, said
        else:
            told = os.strerror(getattr(errno, fault)).lower() in said.lower()
            assert life.exit_code == 0 or told, f"no word of the fault: {said}"
        if life.exit_code in _REFUSED:  # What may not be read may be another file by now; the data may be as well.
            assert fault == "EACCES", f"{life}: the files are whole: {said}"
            assert _REFUSED[life.exit_code] in life.last, f"{life}: {said}"
        run.check_claims()
        if life.exit_code != 0:
            assert run.live().exit_code == 0, run.lives
        assert end_of(run.run) == self._end, f"another end: {run.lives}"
        run.check_claims()


def listing(order: Order) -> int:
    """Live on in the child, and write down every call by its name and path."""
    log = os.open(order.words[0], os.O_WRONLY | os.O_CREAT)

    def told(_: int, what: str) -> None:
        os.write(log, f"{what}\n".encode())

    syscalls.system = Failing(0, "EIO", from_then_on=False, told=told)
    return live_on(order)


@contextmanager
def opened(folder: Path, seed: int) -> Iterator[Calls]:
    """Start the process that forks, and count the calls of both runs."""
    with Forks() as forks:
        yield Calls(forks, folder, seed)


LAYER = Layer("L0", "every call of the file module fails, once and from then on", (26, 1560), opened)
