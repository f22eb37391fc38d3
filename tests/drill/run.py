"""Goes through the points of a layer, each in a folder of its own, and counts what is wrong."""

import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.drill.layer import Counting, Faults, Layer, LeftOut, Partial, Wrong


@dataclass(frozen=True)
class Drilled:
    """One layer, gone through: its points, what was wrong at them, and the seconds that it took.

    skipped: why no fault of it was made, "" = they were. left_out: what else was not. counted: what its points are.
    """

    layer: str
    title: str
    seed: int
    points: int
    wrong: tuple[Wrong, ...]
    seconds: float
    skipped: str = ""
    left_out: tuple[LeftOut, ...] = ()
    counted: str = ""

    def line(self) -> str:
        """Return a row of the table."""
        if self.skipped:
            return f"{self.layer:<5} {'SKIPPED: ' + self.skipped:<31}  {self.title}"
        counts = f"{self.points:>7} {len(self.wrong):>5} {self.seconds:>9.1f} {self.seed:>5}"
        return f"{self.layer:<5} {counts}  {self.title}"

    def not_tested(self) -> list[str]:
        """Return a line for all that this machine cannot do."""
        if self.skipped:
            return [f"SKIPPED {self.layer}: {self.title}, {self.skipped}; that is not tested here"]
        return [
            f"SKIPPED {self.layer}: {one.what}, {one.why}; "
            + (f"{one.points} points fewer" if one.points else "unseen")
            for one in self.left_out
        ]


HEADER = f"{'layer':<5} {'points':>7} {'bad':>5} {'seconds':>9} {'seed':>5}"


class _Round:
    """What is found while a layer is gone through."""

    def __init__(self, layer: Layer, folder: Path, seed: int, *, whole: bool) -> None:
        self.layer, self.folder, self.seed, self.whole = layer, folder, seed, whole
        self.wrong: list[Wrong] = []
        self.points = 0
        self.skipped, self.counted = "", ""
        self.left_out: tuple[LeftOut, ...] = ()

    def tell(self, what: str, point: str = "") -> None:
        self.wrong.append(Wrong(self.layer.name, self.seed, point, what, self.whole))

    def go(self, only: Sequence[str], *, keep: bool) -> None:
        """Set the layer up, and go through its points or `only` those."""
        self.skipped = self.layer.missing() or ""
        if self.skipped:
            return
        setting = self.folder / "setting"
        setting.mkdir(parents=True)
        with self.layer.open(setting, self.seed) as faults:
            points = list(only) or list(faults.points(whole=self.whole))
            unknown = sorted(set(only) - {*faults.points(whole=True), *faults.points(whole=False)})
            if unknown:
                self.tell(f"there is no such point: {', '.join(unknown)}; --list has the names")
                return
            if isinstance(faults, Partial):
                self.left_out = tuple(faults.left_out(whole=self.whole))
            for point in points:
                self._check(faults, point, keep=keep)
            if isinstance(faults, Counting):
                self.counted = faults.counted()
        repeated = len(points) - len(set(points))
        if repeated:
            self.tell(f"{repeated} points have a name that another one has")
        least = self.layer.least[self.whole] - sum(one.points for one in self.left_out)
        if not only and len(points) < least:
            self.tell(f"expected at least {least} points, found {len(points)}: is something no longer looked at?")

    def _check(self, faults: Faults, point: str, *, keep: bool) -> None:
        own = self.folder / f"{self.points:04}"
        own.mkdir()
        self.points += 1
        what = _fault_of(partial(faults.check, point, own))
        if what is None or not keep:
            left = _fault_of(partial(shutil.rmtree, own, onerror=_writable))
            what = what or left
        if what is not None:
            self.tell(what, point)


def drill(
    layer: Layer, folder: Path, seed: int, *, whole: bool, only: Sequence[str] = (), keep: bool = False
) -> Drilled:
    """Make the faults of a layer, or `only` those of these points; `keep`: leave the folders of the bad ones."""
    began, found = time.monotonic(), _Round(layer, folder, seed, whole=whole)
    what = _fault_of(partial(found.go, only, keep=keep))
    if what is not None:
        found.tell(what)
    return Drilled(
        *(layer.name, layer.title, seed, found.points, tuple(found.wrong), time.monotonic() - began),
        skipped=found.skipped,
        left_out=found.left_out,
        counted=found.counted,
    )


def _fault_of(do: Callable[[], object]) -> str | None:
    """Do something, and return what is wrong with it: the points and the layers after it show more."""
    try:
        do()
    except AssertionError as error:
        return str(error) or traceback.format_exc()
    except Exception:  # noqa: BLE001 - Whatever it is, it is told; what is no Exception ends the drill.
        return traceback.format_exc()
    return None


def _writable(remove: object, path: str, _: object) -> None:
    """Remove what a fault has left without the right to."""
    assert callable(remove)
    for folder in (Path(path).parent, Path(path)):
        if not folder.is_symlink():
            folder.chmod(0o700)
    remove(path)
