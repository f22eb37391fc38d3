"""Disks that cannot be had on a machine are told with the reason, and a layer leaves out the points that want them."""

from pathlib import Path

import pytest

from tests.drill.disks import EXT4, READ_ONLY, TMPFS, not_here
from tests.drill.storage import LAYER, Storage


@pytest.fixture
def nothing_to_mount_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "no programs"))


@pytest.mark.usefixtures("nothing_to_mount_with")
def test_where_there_is_no_mount_every_kind_is_told_with_the_reason(tmp_path: Path) -> None:
    found = not_here(tmp_path)
    assert list(found) == [TMPFS, EXT4, READ_ONLY]
    assert "'mount'" in found[TMPFS]
    assert "'mkfs.ext4'" in found[EXT4]
    assert found[READ_ONLY] == found[EXT4]


@pytest.mark.parametrize("whole", [True, False])
def test_a_disk_that_is_not_here_is_left_out_of_points_and_floor(
    whole: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = Storage.__new__(Storage)
    counts = {"text": 1000, "iq": 1000}
    made._changes, made._bytes, made._files = counts, counts, counts
    monkeypatch.setattr(made, "_lacks", {}, raising=False)
    everywhere = made.points(whole=whole)
    assert not made.left_out(whole=whole)
    assert len(everywhere) >= LAYER.least[whole]
    for lacks in ({EXT4: "no"}, {READ_ONLY: "no"}, {TMPFS: "no", EXT4: "no", READ_ONLY: "no"}):
        monkeypatch.setattr(made, "_lacks", lacks)
        points, left_out = made.points(whole=whole), made.left_out(whole=whole)
        assert [one.why for one in left_out] == ["no"] * len(left_out)
        instead = 0 if TMPFS not in lacks else 6 if whole else 3
        assert len(points) - instead + sum(one.points for one in left_out) == len(everywhere)
        assert len(points) >= LAYER.least[whole] - sum(one.points for one in left_out)
    assert {point.split()[1] for point in made.points(whole=whole)} <= {"bytes", "bytes-at", "files-at", "deaf"}
