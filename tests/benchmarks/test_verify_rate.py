"""The attempt that the rate of verification is measured on is a whole one, and every byte of it is counted."""

from pathlib import Path

from benchmarks.verify_rate import measure
from pretrain import lineage


def test_a_small_attempt_is_measured(tmp_path: Path) -> None:
    rate = measure(tmp_path, megabytes=1, checkpoints=2, rounds=1)
    assert lineage.verify(tmp_path).ok
    attempt = tmp_path / "attempts" / "0001"
    assert rate.bytes == sum(path.stat().st_size for path in attempt.rglob("*") if path.is_file()) > 1_000_000
    assert min(rate.ratio, rate.ratio_of_all, rate.speedup) > 0
