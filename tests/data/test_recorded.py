"""Real recordings and real text, where the folder of them is there; and memory that stays bounded."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from pretrain.data import SOURCES
from pretrain.data.iq import IqSettings
from pretrain.data.loader import StatefulLoader
from pretrain.data.text import TextSettings
from pretrain.errors import DataError

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def recorded(name):
    if not (DATA / name).exists():
        pytest.skip(f"needs the real data file {name} in ../shared/data")
    return DATA / name


def test_shakespeare():
    path = recorded("tiny-shakespeare.txt")
    windows = SOURCES["text"].build(
        TextSettings(str(path), (0.0, 0.9)), sequence_length=128, stride=None, seed=1, name="plays"
    )
    content = path.read_bytes()
    cut = round(0.9 * len(content))
    assert len(windows) == (cut - 1) // 128
    assert windows.remainder == (cut - 1) % 128
    assert bytes(windows.read(np.asarray([1000]))[0].tolist()) == content[128_000:128_129]
    assert windows.files[0].sha256 == hashlib.sha256(content).hexdigest()


def test_adsb_recording():
    path = recorded("adsb_1090MHz_2Msps.cu8")
    windows = SOURCES["iq"].build(
        IqSettings(str(path), span=(0.0, 0.9)), sequence_length=512, stride=64, seed=1, name="adsb"
    )
    samples = 356_868 * 9 // 10
    assert len(windows) == (samples - 512) // 64 + 1
    assert windows.remainder == (samples - 512) % 64
    raw = np.fromfile(path, dtype=np.uint8, count=1024, offset=2 * 64 * 7).astype(np.float32)
    expected = ((raw - 128) / 128).view(np.complex64)
    assert windows.read(np.asarray([7]))[0].tolist() == expected.tolist()
    assert windows.identify(7) == (str(path), 2 * 64 * 7)


def test_sigmf_logo_is_two_real_channels_and_complex_when_asked():
    path = recorded("sigmf_logo.sigmf-meta")
    with pytest.raises(DataError, match="set `datatype: ci16_le` to read channel 0 as I and channel 1 as Q"):
        SOURCES["iq"].build(IqSettings(str(path)), sequence_length=512, stride=None, seed=1, name="logo")
    windows = SOURCES["iq"].build(
        IqSettings(str(path), datatype="ci16_le"), sequence_length=512, stride=None, seed=1, name="logo"
    )
    assert (len(windows), windows.remainder) == (288_000 // 512, 288_000 % 512)
    raw = np.fromfile(path.with_suffix(".sigmf-data"), dtype="<i2").reshape(-1, 2)[512 * 100 : 512 * 101]
    expected = (raw.astype(np.float32) / 32768).reshape(-1).view(np.complex64)
    assert windows.read(np.asarray([100]))[0].tolist() == expected.tolist()


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.parametrize("source", ["text", "iq"])
def test_s46_memory_stays_bounded_over_2000_batches(tmp_path, source):
    size = 200 << 20
    path = tmp_path / "large.ci16_le"
    with path.open("wb") as file:
        file.write(b"\1")  # a recording without any power is refused
        file.truncate(size)
    settings = TextSettings(str(path)) if source == "text" else IqSettings(str(path))
    windows = SOURCES[source].build(settings, sequence_length=1024, stride=None, seed=1, name="large")
    loader = StatefulLoader(
        windows, seed=1, batch_size=8, gradient_accumulation_steps=1, prefetch_steps=2, loader_threads=2
    )
    loader.next_step()
    before = resident_bytes()
    for _ in range(2000):
        loader.next_step()
    grown = resident_bytes() - before
    loader.close()
    assert grown < 24 << 20
