"""The data of the incident runs: prose and radio signals in files, and what takes the place of some windows of them."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pretrain.data.order import consecutive
from pretrain.data.signals import white_noise
from pretrain.data.synthetic import SyntheticSettings, build_synthetic
from pretrain.data.text import TextSettings, build_text
from pretrain.data.windows import Windows

# Bytes that are predicted, or complex samples, of a window, and windows of a batch: 512 bytes, or 480 patches, a step.
# All patches of an IQ window are of one signal, so that few windows would make a loss that is mostly chance.
SEQUENCE = {"text": 64, "iq": 128}
BATCH = {"text": 8, "iq": 32}
# Slow, clean signals, so that a tiny model learns them: of the default ones it predicts a third, and no window of any
# kind can then cost much more than the usual one.
SIGNALS = ("bpsk", "qpsk", "qam16", "chirp")
SYMBOL, SNR_DB = (12, 24), (20.0, 30.0)
_HELD_OUT = 1 / 20
_PEAK = 8192.0  # of a 16-bit sample for a signal of unit power and a four times larger peak

_WORDS = (
    ("green", "empty", "broken", "little", "wooden", "heavy"),
    ("bottles", "lanterns", "kettles", "ladders", "barrels", "clocks"),
    ("hang", "stand", "wait", "turn", "lie", "gather dust"),
    ("on the wall", "under the bridge", "behind the mill", "in the cellar", "by the river", "near the harbour"),
    ("every morning", "since the spring", "until it rains", "after the fair", "all winter long", "for no reason"),
)
Content = bytes | NDArray[np.complex64]
Filler = Callable[[np.random.Generator, bytes], bytes] | Callable[[np.random.Generator, int], NDArray[np.complex64]]


@lru_cache(maxsize=1)
def _prose() -> bytes:
    windows = build_text(TextSettings(), sequence_length=1, stride=1, seed=0, name="prose")
    pairs = windows.read(np.arange(len(windows), dtype=np.int64))
    return bytes(pairs[:, 0].to(torch.uint8).numpy())


def corpus(seed: int) -> bytes:
    """Return Python's help topics, begun somewhere else by each seed: the prose that every text run reads."""
    prose = _prose()
    begin = int(np.random.default_rng(seed).integers(len(prose)))
    return prose[begin:] + prose[:begin]


@lru_cache(maxsize=1)
def sentences(seed: int) -> bytes:
    """Return made-up sentences of few words, which a tiny model learns within a hundred steps."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(2, 100, 9000)
    picks = [rng.integers(0, len(words), len(counts)) for words in _WORDS]
    lines = (
        f"{count} {' '.join(words[pick] for words, pick in zip(_WORDS, row, strict=True))}.\n"
        for count, row in zip(counts, zip(*picks, strict=True), strict=True)
    )
    return "".join(lines).encode()


@lru_cache(maxsize=1)
def signals(seed: int, windows: int) -> NDArray[np.complex64]:
    """Return radio signals of unit power, one window each."""
    settings = SyntheticSettings(classes=SIGNALS, samples_per_symbol=SYMBOL, snr_db=SNR_DB, windows=windows)
    made = build_synthetic(settings, sequence_length=SEQUENCE["iq"], stride=None, seed=seed, name="signals")
    samples: NDArray[np.complex64] = made.read(np.arange(windows, dtype=np.int64)).numpy()
    return samples


def write_text(
    folder: Path, seed: int, simple: bool, batch: int | None, rows: int, filler: Callable[..., bytes] | None
) -> str:
    """Write prose to train and to validate on, `rows` windows of global batch `batch` replaced; return `data.*`.

    simple: made-up sentences instead.
    """
    length, prose = SEQUENCE["text"], sentences(seed) if simple else corpus(seed)
    held_out = round(len(prose) * _HELD_OUT)
    train = bytearray(prose[held_out:])
    if batch is not None and filler is not None:
        rng = np.random.default_rng(seed + 1)
        windows = (len(train) - length - 1) // length + 1
        for window in windows_of("text", batch, windows, seed)[:rows]:
            begin = int(window) * length
            # One byte more than the stride: the last byte of a window is predicted too.
            at = slice(begin, begin + length + 1)
            train[at] = filler(rng, bytes(train[at]))[: length + 1]
    (folder / "train.txt").write_bytes(train)
    (folder / "held-out.txt").write_bytes(prose[:held_out])
    return (
        f"  train: {{prose: {{source: text, path: {folder / 'train.txt'}}}}}\n"
        f"  validation: {{prose: {{source: text, path: {folder / 'held-out.txt'}}}}}\n"
    )


def write_signals(
    folder: Path,
    seed: int,
    windows: int,
    batch: int | None,
    rows: int,
    filler: Callable[..., NDArray[np.complex64]] | None,
) -> str:
    """Write a recording of `windows` windows, `rows` of those of batch `batch` replaced; return `data.*`.

    The validation windows are synthetic ones of another seed, so that no run trains on them.
    """
    samples = signals(seed + 1_000_000, windows).copy()
    if batch is not None and filler is not None:
        rng = np.random.default_rng(seed + 1)
        for window in windows_of("iq", batch, windows, seed)[:rows]:
            samples[window] = filler(rng, SEQUENCE["iq"])
    pairs = samples.reshape(-1).view(np.float32) * _PEAK
    recording = folder / "train.ci16_le"
    recording.write_bytes(np.clip(np.rint(pairs), -32768, 32767).astype("<i2").tobytes())
    return (
        f"  train: {{signals: {{source: iq, path: {recording}, datatype: ci16_le}}}}\n"
        f"  validation: {{signals: {synthetic(384)}}}\n"
    )


def synthetic(windows: int, span: tuple[float, float] = (0.0, 1.0)) -> str:
    """Return the source of the same signals, made and not recorded."""
    return (
        f"{{source: synthetic-iq, windows: {windows}, span: {list(span)}, classes: [{', '.join(SIGNALS)}], "
        f"samples_per_symbol: {list(SYMBOL)}, snr_db: {list(SNR_DB)}}}"
    )


def default_signals(windows: int, span: tuple[float, float]) -> str:
    """Return the source as it is without any setting: seven classes, of which noise and OFDM cannot be predicted."""
    return f"{{source: synthetic-iq, windows: {windows}, span: {list(span)}}}"


def windows_of(task: str, batch: int, windows: int, seed: int) -> NDArray[np.int64]:
    """Return the windows that the loader reads in global batch `batch` of the first epoch."""
    return consecutive(batch * BATCH[task], BATCH[task], windows, seed, 0)


# --- what takes the place of a window ------------------------------------------------------------------

_LOWER = bytes(range(ord("a"), ord("z") + 1))
_GREEK = {letter: chr(0x3B1 + place % 25).encode() for place, letter in enumerate(_LOWER)}
_CYRILLIC = {letter: chr(0x430 + place).encode() for place, letter in enumerate(_LOWER)}


def _in_letters(letters: Mapping[int, bytes]) -> Callable[[np.random.Generator, bytes], bytes]:
    def filler(rng: np.random.Generator, prose: bytes) -> bytes:
        return b"".join(letters.get(byte, bytes([byte])) for byte in prose.lower())

    return filler


def _figures(rng: np.random.Generator, prose: bytes) -> bytes:
    return "".join(f"{value:+.5e};" for value in rng.standard_normal(len(prose) // 12 + 1)).encode()


def _random_bytes(rng: np.random.Generator, prose: bytes) -> bytes:
    return rng.bytes(len(prose))


def _one_byte(rng: np.random.Generator, prose: bytes) -> bytes:
    return bytes([0xFF]) * len(prose)


def _noise(rng: np.random.Generator, samples: int) -> NDArray[np.complex64]:
    noise: NDArray[np.complex64] = white_noise(rng, samples).astype(np.complex64)
    return noise


def _ofdm(rng: np.random.Generator, samples: int) -> NDArray[np.complex64]:
    return _one_of("ofdm", (4, 8), rng, samples)


def _fast(rng: np.random.Generator, samples: int) -> NDArray[np.complex64]:
    return _one_of("qam16", (2, 4), rng, samples)


def _one_of(name: str, symbol: tuple[int, int], rng: np.random.Generator, samples: int) -> NDArray[np.complex64]:
    settings = SyntheticSettings(classes=(name,), samples_per_symbol=symbol, snr_db=SNR_DB, windows=1)
    made: Windows = build_synthetic(
        settings, sequence_length=samples, stride=None, seed=int(rng.integers(2**31)), name=name
    )
    window: NDArray[np.complex64] = made.read(np.zeros(1, dtype=np.int64)).numpy()[0]
    return window


# Sound data of a kind that the run does not know; and what no data is.
UNUSUAL_TEXT = {
    "greek": _in_letters(_GREEK),
    "cyrillic": _in_letters(_CYRILLIC),
    "figures": _figures,
}
UNUSUAL_SIGNALS = {"noise burst": _noise, "ofdm": _ofdm, "fast symbols": _fast}
NO_TEXT = {"random bytes": _random_bytes, "one byte": _one_byte}
NO_SIGNALS = {"random samples": _noise}
