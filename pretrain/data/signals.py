"""Waveforms of common radio signals at complex baseband, each drawn from a generator it is given."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Waveform = NDArray[np.complex128]

ROLL_OFF = 0.35
_GUARD_SYMBOLS = 16  # a root raised cosine has died away after eight symbols on either side
_OFDM_SUBCARRIERS, _OFDM_PREFIX = 64, 16
_OFDM_USED = np.r_[1:27, 38:64]  # 52 of 64, none at zero and none at the edge, as in IEEE 802.11a

_BPSK = np.array([1, -1], dtype=np.complex128)
_QPSK = np.exp(0.25j * np.pi * np.array([1, 3, 5, 7]))
_QAM16 = np.array([i + 1j * q for i in (-3, -1, 1, 3) for q in (-3, -1, 1, 3)]) / np.sqrt(10)


def waveform(name: str, rng: np.random.Generator, samples: int, samples_per_symbol: int) -> Waveform:
    """Return `samples` samples of the signal `name`: unit power on average, random symbols and timing phase.

    The carrier is at zero; neither a carrier offset nor noise is added (`noise` is nothing else).
    """
    return _WAVEFORMS[name](rng, samples, samples_per_symbol)


def root_raised_cosine(frequency: NDArray[np.float64], roll_off: float) -> NDArray[np.float64]:
    """Return the amplitude response at `frequency`, in units of the symbol rate; 1 in the passband.

    The square root of the raised cosine (Proakis, Digital Communications, section 9.2): with the same filter
    in a receiver there is no interference between symbols, and over the aliases the squares add up to 1.
    """
    distance = np.abs(frequency) - (1 - roll_off) / 2
    return np.asarray(np.cos(np.pi / 2 * np.clip(distance / roll_off, 0.0, 1.0)), dtype=np.float64)


@lru_cache(maxsize=64)
def _pulse_spectrum(symbols: int, samples_per_symbol: int) -> NDArray[np.float64]:
    """The transmit filter over one period of symbols, scaled so that unit symbols give unit power."""
    frequency = _frequencies(symbols * samples_per_symbol) * samples_per_symbol
    return root_raised_cosine(frequency, ROLL_OFF) * samples_per_symbol


@lru_cache(maxsize=64)
def _frequencies(samples: int) -> NDArray[np.float64]:
    """The frequencies of a discrete Fourier transform, in cycles per sample."""
    return np.asarray(np.fft.fftfreq(samples), dtype=np.float64)


def _linear(constellation: NDArray[np.complex128]) -> Callable[[np.random.Generator, int, int], Waveform]:
    """PSK and QAM: symbols through a root raised cosine, shaped and delayed in the frequency domain."""

    def build(rng: np.random.Generator, samples: int, samples_per_symbol: int) -> Waveform:
        # One period longer than the window: the end of the window never rings into its begin.
        symbols = -(-samples // samples_per_symbol) + _GUARD_SYMBOLS
        impulses = np.zeros(symbols * samples_per_symbol, dtype=np.complex128)
        impulses[::samples_per_symbol] = constellation[rng.integers(0, len(constellation), symbols)]
        delay = rng.random() * samples_per_symbol
        spectrum = np.fft.fft(impulses) * _pulse_spectrum(symbols, samples_per_symbol)
        spectrum *= _turning(-delay * _frequencies(len(impulses)))
        return np.fft.ifft(spectrum)[:samples]

    return build


def _fsk2(rng: np.random.Generator, samples: int, samples_per_symbol: int) -> Waveform:
    """Binary FSK of continuous phase with a modulation index between 0.5 (MSK) and 1."""
    symbols = samples // samples_per_symbol + 2
    index = rng.uniform(0.5, 1.0)
    turns = np.zeros(symbols + 1)
    np.cumsum((rng.integers(0, 2, symbols) - 0.5) * index, out=turns[1:])
    # The phase is a straight line within a symbol, so a symbol may begin between two samples.
    at = rng.random() + np.arange(samples) / samples_per_symbol
    return _turning(np.interp(at, np.arange(symbols + 1), turns))


def _chirp(rng: np.random.Generator, samples: int, samples_per_symbol: int) -> Waveform:
    """Linear sweeps over one symbol rate of band, up or down, each 32 to 128 symbols long, repeating."""
    length = rng.uniform(32, 128) * samples_per_symbol
    upward = 2 * rng.integers(0, 2) - 1
    sweeps = rng.random() + np.arange(samples) / length
    frequency = (sweeps - np.floor(sweeps) - 0.5) * (upward / samples_per_symbol)
    return _turning(np.cumsum(frequency))


def _ofdm(rng: np.random.Generator, samples: int, samples_per_symbol: int) -> Waveform:
    """QPSK on 52 of 64 subcarriers with a cyclic prefix of 16 samples, whatever `samples_per_symbol` is."""
    period = _OFDM_SUBCARRIERS + _OFDM_PREFIX
    symbols = samples // period + 2
    spectrum = np.zeros((symbols, _OFDM_SUBCARRIERS), dtype=np.complex128)
    spectrum[:, _OFDM_USED] = _QPSK[rng.integers(0, 4, (symbols, len(_OFDM_USED)))]
    body = np.fft.ifft(spectrum, axis=1) * (_OFDM_SUBCARRIERS / np.sqrt(len(_OFDM_USED)))
    stream: Waveform = np.concatenate([body[:, -_OFDM_PREFIX:], body], axis=1).reshape(-1)
    start = int(rng.integers(0, period))
    return stream[start : start + samples]


def white_noise(rng: np.random.Generator, samples: int) -> Waveform:
    """Return circular complex Gaussian noise of unit power."""
    noise: Waveform = rng.standard_normal(2 * samples).view(np.complex128) * np.sqrt(0.5)
    return noise


def _noise(rng: np.random.Generator, samples: int, samples_per_symbol: int) -> Waveform:
    return white_noise(rng, samples)


def _turning(turns: NDArray[np.float64]) -> Waveform:
    """Return exp(2 pi i turns)."""
    turned: Waveform = np.exp(2j * np.pi * (turns - np.floor(turns)))
    return turned


def rotate(signal: Waveform, cycles_per_sample: float, start: float) -> Waveform:
    """Return the signal mixed with a carrier that begins at the phase `start`, in turns."""
    carrier = _turning(start + cycles_per_sample * np.arange(len(signal), dtype=np.float64))
    return np.multiply(signal, carrier)


_WAVEFORMS: dict[str, Callable[[np.random.Generator, int, int], Waveform]] = {
    "bpsk": _linear(_BPSK),
    "qpsk": _linear(_QPSK),
    "qam16": _linear(_QAM16),
    "fsk2": _fsk2,
    "chirp": _chirp,
    "ofdm": _ofdm,
    "noise": _noise,
}
CLASSES = tuple(_WAVEFORMS)
