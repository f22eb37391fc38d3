"""Verification is measured on a whole attempt, every byte of which is counted, and takes no more memory for more."""

import os
from pathlib import Path
from unittest import mock

import pytest

from benchmarks.verify_rate import make_attempt, measure, peak_bytes
from pretrain import lineage, syscalls
from tests.loop.probes import Unsynced


def test_a_small_attempt_is_measured(tmp_path: Path) -> None:
    rate = measure(tmp_path, megabytes=1, checkpoints=2, rounds=1)
    assert lineage.verify(tmp_path).ok
    attempt = tmp_path / "attempts" / "0001"
    assert rate.bytes == sum(path.stat().st_size for path in attempt.rglob("*") if path.is_file()) > 1_000_000
    assert min(rate.ratio, rate.ratio_of_all, rate.speedup) > 0
    assert 5e6 < rate.peak_bytes < 1e9


@pytest.fixture(scope="module")
def small_and_large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Attempts with one checkpoint, of 16 MiB and of 200 MiB in one file."""
    with mock.patch.object(syscalls, "system", Unsynced()):
        folder = tmp_path_factory.mktemp("attempts")
        return make_attempt(folder / "small", 1, 16 << 20), make_attempt(folder / "large", 1, 200 << 20)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="only Linux tells how much a process has held")
@pytest.mark.parametrize("inside", ["", "checkpoints/step_00000000"])
def test_a_large_file_is_verified_in_the_memory_of_a_small_one(small_and_large: tuple[Path, Path], inside: str) -> None:
    """Every file of an attempt is read on all cores; a checkpoint's is read tensor by tensor as well."""
    small, large = (peak_bytes(attempt / inside) for attempt in small_and_large)
    assert large - small < 4 << 20, f"{small / 1e6:.1f} MB for a file of 16 MiB, {large / 1e6:.1f} MB for one of 200"
