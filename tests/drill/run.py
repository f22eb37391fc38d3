"""Goes through the points of a layer, each in a folder of its own, and counts what is wrong."""

import shutil
import subprocess
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pretrain.errors import PretrainError
from tests.drill.layer import Layer, Wrong


@dataclass(frozen=True)
class Drilled:
    """One layer, gone through: its points, what was wrong at them, and the seconds that it took.

    skipped: why no fault of it was made, "" = they were.
    """

    layer: Layer
    seed: int
    points: int
    wrong: tuple[Wrong, ...]
    seconds: float
    skipped: str = ""

    def line(self) -> str:
        """Return a row of the table."""
        if self.skipped:
            return f"{self.layer.name:<5} {'SKIPPED: ' + self.skipped:<31}  {self.layer.title}"
        counts = f"{self.points:>7} {len(self.wrong):>5} {self.seconds:>9.1f} {self.seed:>5}"
        return f"{self.layer.name:<5} {counts}  {self.layer.title}"


HEADER = f"{'layer':<5} {'points':>7} {'bad':>5} {'seconds':>9} {'seed':>5}"


def drill(
    layer: Layer, folder: Path, seed: int, *, whole: bool, only: Sequence[str] = (), keep: bool = False
) -> Drilled:
    """Make the faults of a layer, or `only` those of these points; `keep`: leave the folders of the bad ones."""
    lacks = layer.missing()
    if lacks is not None:
        return Drilled(layer, seed, 0, (), 0.0, lacks)
    began = time.monotonic()
    wrong: list[Wrong] = []
    setting = folder / "setting"
    setting.mkdir(parents=True)
    with layer.open(setting, seed) as faults:
        points = list(only) or list(faults.points(whole=whole))
        unknown = sorted(set(only) - {*faults.points(whole=True), *faults.points(whole=False)})
        if unknown:
            text = f"there is no such point: {', '.join(unknown)}; --list has the names"
            return Drilled(layer, seed, 0, (Wrong(layer.name, seed, "", text),), time.monotonic() - began)
        for number, point in enumerate(points):
            own = folder / f"{number:04}"
            own.mkdir()
            what = _check(faults.check, point, own)
            if what is not None:
                wrong.append(Wrong(layer.name, seed, point, what))
            if what is None or not keep:
                shutil.rmtree(own, onerror=_writable)
    repeated = len(points) - len(set(points))
    if repeated:
        wrong.append(Wrong(layer.name, seed, "", f"{repeated} points have a name that another one has"))
    if not only and len(points) < layer.least[whole]:
        text = f"expected at least {layer.least[whole]} points, found {len(points)}: is something no longer looked at?"
        wrong.append(Wrong(layer.name, seed, "", text))
    return Drilled(layer, seed, len(points), tuple(wrong), time.monotonic() - began)


def _check(check: object, point: str, folder: Path) -> str | None:
    assert callable(check)
    try:
        check(point, folder)
    except AssertionError as error:
        return str(error) or traceback.format_exc()
    except (PretrainError, OSError, ValueError, subprocess.SubprocessError):  # The points after it show more.
        return traceback.format_exc()
    return None


def _writable(remove: object, path: str, _: object) -> None:
    """Remove what a fault has left without the right to."""
    assert callable(remove)
    for folder in (Path(path).parent, Path(path)):
        if not folder.is_symlink():
            folder.chmod(0o700)
    remove(path)
