"""The synthetic signals: reproducible by index, labelled in turns, and what their names promise."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from pretrain.data import SOURCES, synthetic
from pretrain.data.signals import CLASSES, root_raised_cosine, waveform
from pretrain.data.synthetic import SyntheticSettings
from pretrain.errors import DataError


def make(*, length=512, seed=1, stride=None, **settings):
    return SOURCES["synthetic-iq"].build(
        SyntheticSettings(**settings), sequence_length=length, stride=stride, seed=seed, name="lab"
    )


def same(a, b):
    return a.numpy().tobytes() == b.numpy().tobytes()


def test_windows_have_the_shape_of_recordings():
    windows = make(windows=21)
    samples = windows.read(np.arange(21))
    assert (len(windows), windows.kind, windows.vocabulary, windows.remainder) == (21, "complex", None, 0)
    assert samples.shape == (21, 512)
    assert samples.dtype == torch.complex64
    assert torch.isfinite(samples.abs()).all()
    assert windows.read(np.empty(0, dtype=np.int64)).shape == (0, 512)


@pytest.mark.parametrize("length", [33, 512])
@pytest.mark.parametrize("kept", [True, False])
def test_a_window_depends_on_seed_and_index_alone(monkeypatch, length, kept):
    if not kept:
        monkeypatch.setattr(synthetic, "_KEPT_BYTES", 0)
    together = make(length=length, windows=60).read(np.arange(60))
    windows = make(length=length, windows=60)
    order = np.random.default_rng(3).permutation(60)
    assert same(windows.read(order), together[torch.from_numpy(order)])
    assert same(windows.read(order[:1]), together[order[:1]])
    assert not same(make(length=length, windows=60, seed=2).read(np.arange(60)), together)


def test_threads_do_not_matter():
    together = make(windows=200).read(np.arange(200))
    windows = make(windows=200)
    with ThreadPoolExecutor(4) as threads:
        parts = list(threads.map(windows.read, [np.arange(i % 7, 200, 7) for i in range(28)]))
    assert all(same(part, together[i % 7 :: 7]) for i, part in enumerate(parts))


def test_spans_share_one_sequence_of_windows():
    whole, train, held_out = make(windows=100), make(windows=100, span=(0, 0.9)), make(windows=100, span=(0.9, 1))
    assert (len(train), len(held_out)) == (90, 10)
    joined = torch.cat([train.read(np.arange(90)), held_out.read(np.arange(10))])
    assert same(joined, whole.read(np.arange(100)))
    assert train.labels(np.arange(90)) + held_out.labels(np.arange(10)) == whole.labels(np.arange(100))
    assert held_out.identify(0) == ("synthetic-iq", 90 * 512 * 8)
    assert train.files == held_out.files == whole.files


def test_reading_gives_copies():
    windows = make(windows=7)
    first = windows.read(np.arange(7))
    expected = first.clone()
    first.zero_()
    assert same(windows.read(np.arange(7)), expected)


def test_classes_take_turns_and_every_snr_is_in_its_range():
    windows = make(windows=140, snr_db=(3.0, 5.0))
    labels = windows.labels(np.arange(140))
    assert labels == CLASSES * 20
    snr = [windows.snr_db(index) for index in range(140)]
    assert all(3 <= value <= 5 for value, label in zip(snr, labels, strict=True) if label != "noise")
    assert all(value == -np.inf for value, label in zip(snr, labels, strict=True) if label == "noise")
    assert len(set(snr)) == 121
    assert make(windows=4, classes=("chirp", "noise")).labels(np.arange(4)) == ("chirp", "noise") * 2


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("samples_per_symbol", [2, 5, 8])
def test_waveforms_have_unit_power(name, samples_per_symbol):
    rng = np.random.default_rng(1)
    powers = [np.mean(np.abs(waveform(name, rng, 512, samples_per_symbol)) ** 2) for _ in range(200)]
    assert np.mean(powers) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize(("name", "order"), [("bpsk", 2), ("qpsk", 4)])
def test_psk_symbols_come_out_of_the_matched_filter(name, order):
    """After the receiver's own root raised cosine, at the right moment, a symbol is a power of one phase."""
    samples_per_symbol, length = 4, 4096
    signal = waveform(name, np.random.default_rng(2), length, samples_per_symbol)
    frequency = np.fft.fftfreq(length)
    spectrum = np.fft.fft(signal) * root_raised_cosine(frequency * samples_per_symbol, 0.35)
    best = np.inf
    for delay in np.arange(0, samples_per_symbol, 0.05):
        symbols = np.fft.ifft(spectrum * np.exp(2j * np.pi * frequency * delay))[64:-64:samples_per_symbol]
        best = min(best, np.std(np.abs(symbols)))
        if best == np.std(np.abs(symbols)):
            turned = symbols**order / np.abs(symbols) ** order
    assert best < 0.03
    assert np.abs(np.mean(turned)) > 0.99


def test_fsk_and_chirp_have_a_constant_envelope_and_noise_does_not():
    rng = np.random.default_rng(4)
    for name in ("fsk2", "chirp"):
        assert np.allclose(np.abs(waveform(name, rng, 512, 5)), 1)
    assert np.std(np.abs(waveform("noise", rng, 512, 5))) > 0.3


def test_ofdm_has_its_cyclic_prefix():
    signal = waveform("ofdm", np.random.default_rng(5), 80 * 20, 4)
    match = np.abs(signal[:-64].conj() * signal[64:])
    same_sample = np.abs(signal[:-64] - signal[64:]) < 1e-9
    assert same_sample.mean() == pytest.approx(16 / 80, abs=0.01)
    assert match[same_sample].mean() > 0.5


@pytest.mark.parametrize("limit", [0.0, 0.02, 0.2])
def test_carrier_offset_stays_in_its_range(limit):
    """The square of a BPSK signal has its strongest line at twice the carrier."""
    windows = make(windows=50, classes=("bpsk",), samples_per_symbol=(8, 8), snr_db=(60, 60), carrier_offset=limit)
    squared = np.abs(np.fft.fft(windows.read(np.arange(50)).numpy() ** 2, axis=1))
    carrier = np.fft.fftfreq(512)[squared.argmax(axis=1)] / 2
    assert np.abs(carrier).max() <= limit + 1 / 512
    assert np.abs(carrier).max() >= 0.9 * limit


def test_the_hash_stands_for_everything_that_the_windows_depend_on():
    def digest(**settings):
        return make(**settings).files[0].sha256

    base = digest()
    assert digest(span=(0.5, 1.0)) == base
    assert digest(stride=7) == base
    assert digest(windows=70) == base  # window i is the same among 70 and among 6000
    assert digest(snr_db=(10, 30)) == base
    changes = [
        {"seed": 2},
        {"length": 256},
        {"classes": ("bpsk",)},
        {"samples_per_symbol": (4, 4)},
        {"snr_db": (10.0, 10.0)},
        {"carrier_offset": 0.0},
    ]
    assert len({base, *(digest(**change) for change in changes)}) == 1 + len(changes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": ()}, "expected at least one class"),
        ({"snr_db": (30, 10)}, r"expected snr_db to be \[lowest, highest\], found \[30, 10\]"),
        ({"samples_per_symbol": (8, 4)}, "expected samples_per_symbol to be"),
        ({"windows": 3, "span": (0.9, 1.0)}, "takes none of 3 windows"),
        ({"span": (1.0, 1.0)}, "expected a span"),
    ],
)
def test_settings_that_contradict_themselves(settings, message):
    with pytest.raises(DataError, match=f"data domain lab: .*{message}"):
        make(**settings)
