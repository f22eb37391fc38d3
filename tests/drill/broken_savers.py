"""L5m: savers that are broken on purpose; a point is wrong where the cuts of L5 find nothing amiss with one of them."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.drill.disk import Disk, write_tree
from tests.drill.layer import Layer
from tests.drill.power_cut import RUN, bound, check_state, digest, recorded
from tests.loop.forks import Forks
from tests.loop.savers import SAVERS


class Broken:
    """One life of each broken saver; the run itself comes to its end, since nothing cuts the power there."""

    def __init__(self, forks: Forks, seed: int) -> None:
        self._forks, self._seed = forks, seed

    def points(self, *, whole: bool) -> Sequence[str]:
        """Every saver, in either part."""
        return list(SAVERS)

    def check(self, point: str, folder: Path) -> None:
        """Cut the power after every operation until something is lost."""
        operations = recorded(self._forks, folder / "life", broken=point).operations
        disk, seen = Disk(), set[bytes]()
        for at, operation in enumerate(operations, start=1):
            disk.do(operation)
            for tree in disk.after_a_cut(f"{self._seed} {at}"):
                key = digest(bound(tree), f"{disk.announced} {disk.done}")
                if key in seen:
                    continue
                seen.add(key)
                state = folder / "state"
                state.mkdir()
                write_tree(tree, state)
                try:
                    check_state(state / RUN, disk)
                except AssertionError:
                    return
                shutil.rmtree(state)
        raise AssertionError(f"nothing is lost in {len(seen)} states after {len(operations)} operations")


@contextmanager
def opened(folder: Path, seed: int) -> Iterator[Broken]:
    """Start the process that forks."""
    with Forks() as forks:
        yield Broken(forks, seed)


LAYER = Layer("L5m", "broken savers (no pointer file here: record before data) are found", (6, 6), opened)
