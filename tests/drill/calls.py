"""L0: every call of the file module fails, once or from then on; then the disk works again, and the run goes on."""

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pretrain.errors import DataError, IntegrityError, StorageError
from tests.drill.cycle import DATA, cycle_config
from tests.drill.layer import Layer
from tests.loop.forks import Forks
from tests.loop.lineages import Lineage, end_of
from tests.loop.systems import SHORT

_ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EMFILE", "EACCES")
FAULTS = (*(f"{error} {how}" for error in _ERRORS for how in ("once", "on")), "EINTR once", f"{SHORT} on")
_REFUSED = {IntegrityError.exit_code: "", DataError.exit_code: DATA}
ENDS = (0, StorageError.exit_code, *_REFUSED)


class Calls:
    """A run from its beginning, and one that was killed and is resumed: their calls are counted, then made to fail."""

    def __init__(self, forks: Forks, folder: Path, seed: int) -> None:
        self._forks, self._seed = forks, seed
        self._config = cycle_config(folder)
        self._parents = {"train": folder / "none", "resume": folder / "parent"}
        Lineage(forks, self._config, folder / "parent").live(armed_by="step_00000002", kill_at=3)
        self._counts = {name: self._count(folder / name, parent) for name, parent in self._parents.items()}
        self._end = end_of(folder / "train")

    def _count(self, run: Path, parent: Path) -> int:
        return self._begun(run, parent).live(fail_with="EIO").calls

    def _begun(self, run: Path, parent: Path) -> Lineage:
        if parent.exists():
            shutil.copytree(parent, run)
        return Lineage(self._forks, self._config, run)

    def points(self, *, whole: bool) -> Sequence[str]:
        """Every call, of a quick part every 25th, each with the fault whose turn it is; a seed begins with another."""
        every = 1 if whole else 25
        return [
            f"{name} {at} {FAULTS[(at // every + self._seed) % len(FAULTS)]}"
            for name, count in self._counts.items()
            for at in range(1, count + 1, every)
        ]

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


@contextmanager
def opened(folder: Path, seed: int) -> Iterator[Calls]:
    """Start the process that forks, and count the calls of both runs."""
    with Forks() as forks:
        yield Calls(forks, folder, seed)


LAYER = Layer("L0", "every call of the file module fails, once and from then on", (25, 600), opened)
