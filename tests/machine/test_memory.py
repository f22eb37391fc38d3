"""How much memory there is, as far as this system says so."""

import os
from pathlib import Path

import pytest
import torch

from pretrain.machine import memory


def test_this_machine() -> None:
    resident, total = memory.resident_bytes(), memory.total_bytes()
    assert resident is not None
    assert total is not None
    assert 1 << 24 < resident < total
    held = torch.ones(1 << 24)  # 64 MiB, written
    grown = memory.resident_bytes()
    assert grown is not None
    assert grown - resident > held.nbytes // 2
    assert memory.device_bytes(torch.device("cpu")) is None


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_LIMIT", tmp_path / "memory.max")
    whole = memory.total_bytes()
    assert whole == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for text, expected in (("max\n", whole), ("1048576\n", 1 << 20), (f"{1 << 60}\n", whole)):
        (tmp_path / "memory.max").write_text(text)
        assert memory.total_bytes() == expected


def test_what_a_system_does_not_say_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_STATM", tmp_path / "none")
    assert memory.resident_bytes() is None


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999_999, "999,999 bytes"),
        (1_000_000, "1.0 MB"),
        (1_540_000_000, "1.5 GB"),
        (10**12, "1000.0 GB"),
    ],
)
def test_bytes_as_a_person_reads_them(count: int, text: str) -> None:
    assert memory.in_units(count) == text


def test_the_peak_is_no_less_than_what_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peak, resident = memory.peak_resident_bytes(), memory.resident_bytes()
    assert peak is not None
    assert resident is not None
    assert peak >= resident // 2  # the kernel counts the two at different moments
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "status")
    assert memory.peak_resident_bytes() is None
    for text, expected in (("VmPeak:\t 9 kB\nVmHWM:\t    5 kB\nVmRSS:\t 4 kB\n", 5120), ("Name:\tpython\n", None)):
        (tmp_path / "status").write_text(text)
        assert memory.peak_resident_bytes() == expected


def test_the_cpu_has_no_allocator_to_ask() -> None:
    assert memory.of_allocator(torch.device("cpu")) is None
