"""MFU: by hand where everything is known, empty where something is not, an error where it cannot be."""

import csv
from pathlib import Path

import pytest
import torch

from pretrain.attempt.prepare import utilization
from pretrain.build import build_data, build_run
from pretrain.errors import MeasurementError
from pretrain.machine import peaks
from pretrain.machine.peaks import Peak, peak_of, peak_of_device
from pretrain.models import flops_per_position
from pretrain.telemetry.utilization import Utilization
from tests.tiny import tiny, train


@pytest.mark.parametrize(
    ("name", "bfloat16", "float32"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12, 19.5e12),
        ("A100-SXM4-40GB", 312e12, 19.5e12),
        ("NVIDIA A100-PCIE-40GB", 312e12, 19.5e12),
        ("NVIDIA A100 80GB PCIe", 312e12, 19.5e12),
        ("NVIDIA H100 80GB HBM3", 989e12, 66.9e12),
        ("NVIDIA H200", 989e12, 66.9e12),
    ],
)
def test_the_peaks_of_the_table(name: str, bfloat16: float, float32: float) -> None:
    assert peak_of(name, "bfloat16") == Peak(name, "bfloat16", bfloat16)
    assert peak_of(name, "float16") == Peak(name, "float16", bfloat16)
    assert peak_of(name, "float32") == Peak(name, "float32", float32)


@pytest.mark.parametrize(
    "name",
    [
        *("NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"),
        *("NVIDIA H200 MIG 1g.18gb", "NVIDIA GeForce RTX 4090", "NVIDIA A10", "NVIDIA GH200 120GB", "cpu", ""),
    ],
)
def test_an_unknown_device_has_no_peak(name: str) -> None:
    assert peak_of(name, "bfloat16") is None


def test_the_share_by_hand() -> None:
    peak = Peak("NVIDIA H200", "bfloat16", 989e12)
    assert Utilization(6e9, peak).share(40_000.0) == 40_000 * 6e9 / 989e12
    assert Utilization(989e9, peak).share(1000.0) == 1.0
    assert Utilization(6e9, peak).share(None) is None
    assert Utilization(6e9, None).share(40_000.0) is None
    assert peak_of_device(torch.device("cpu"), "bfloat16") is None


def test_more_than_the_peak_is_an_error_that_names_the_wrong_number() -> None:
    with pytest.raises(MeasurementError) as raised:
        Utilization(6e9, Peak("NVIDIA A100-SXM4-80GB", "bfloat16", 312e12)).share(292_760.0)
    text = str(raised.value)
    assert text.startswith("mfu: 563% of a peak cannot be: 292760 units a second were measured")
    assert "the peak is wrong, 3.12e+14 FLOP/s of NVIDIA A100-SXM4-80GB in bfloat16" in text


@pytest.mark.parametrize(("task", "units"), [("text", 1), ("iq", 8)])
def test_a_unit_of_a_task_is_its_part_of_a_position(task: str, units: int, tmp_path: Path) -> None:
    config = tiny(tmp_path, task)
    data = build_data(config)
    built = build_run(config, data, torch.device("cpu"))
    whole = flops_per_position(built.state.model, built.task.max_positions)
    batch = built.state.loader.next_step().micro_batches[0]
    assert built.task.supervised(batch) == len(batch.samples) * built.task.max_positions * units
    assert utilization(config, built, torch.device("cpu")) == Utilization(whole / units, None)


def column(folder: Path, name: str) -> list[str]:
    with (folder / "run" / "attempts" / "0001" / "telemetry.csv").open(newline="") as file:
        return [row[name] for row in csv.DictReader(file)]


def test_the_cell_is_filled_where_the_peak_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow_device(device: torch.device, precision: str) -> Peak:
        return Peak("abacus", precision, 1e13)

    assert train(tiny(tmp_path, "text", "training.max_steps=2")).verdict == "done"
    assert column(tmp_path, "mfu") == ["", ""]
    again = tmp_path / "again"
    again.mkdir()
    monkeypatch.setattr("pretrain.attempt.prepare.peak_of_device", slow_device)
    config = tiny(again, "text", "training.max_steps=2")
    assert train(config).verdict == "done"
    built = build_run(config, build_data(config), torch.device("cpu"))
    each = flops_per_position(built.state.model, 16)
    rates = [float(cell) for cell in column(again, "tokens_per_second")]
    assert [float(cell) for cell in column(again, "mfu")] == [rate * each / 1e13 for rate in rates]


def test_the_run_ends_with_what_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pretrain.attempt.prepare.peak_of_device", lambda *_: Peak("snail", "float32", 1.0))
    result = train(tiny(tmp_path, "text", "training.max_steps=2"))
    assert (result.verdict, result.exit_code) == ("failed", 1)
    assert "of snail in float32" in (tmp_path / "run/attempts/0001/outcome.json").read_text()


def test_every_precision_has_a_peak_in_every_row() -> None:
    for _, by_precision in peaks._PEAKS:
        assert by_precision.keys() == {"float32", "bfloat16", "float16"}
