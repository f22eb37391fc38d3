"""Source `synthetic-iq`: labelled radio signals, each window a pure function of settings, seed and index."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from pretrain.data.signals import CLASSES, rotate, waveform, white_noise
from pretrain.data.windows import Indices, Part, SourceFile, checked_span, checked_stride, cut
from pretrain.errors import DataError
from pretrain.registry import limited

NAME = "synthetic-iq"
# A domain up to this size (16,384 windows of 1,024 samples) is made whole at the start, so that reading it costs a step
# nothing; of a larger one the windows are made at every reading, at about a tenth of a millisecond per window.
_KEPT_BYTES = 128 << 20
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class SyntheticSettings:
    """Labelled radio signals with random symbols, timing, carrier and noise; the classes take turns.

    classes: the signals, each as often as the others: bpsk qpsk qam16 fsk2 chirp ofdm noise.
    samples_per_symbol: lowest and highest number of samples of a symbol; every integer between them occurs.
    snr_db: lowest and highest ratio of signal to noise power over the whole band, in dB.
    carrier_offset: largest distance of the carrier from zero, in cycles per sample.
    windows: number of windows, of which the span takes its part.
    span: the part [begin, end) of the windows that this domain takes, as fractions of their number.
    """

    classes: tuple[str, ...] = limited(CLASSES, choices=CLASSES)
    samples_per_symbol: tuple[int, int] = limited((4, 8), at_least=2, at_most=256)
    snr_db: tuple[float, float] = limited((10.0, 30.0), at_least=-60, at_most=120)
    carrier_offset: float = limited(0.02, at_least=0, at_most=0.5)
    windows: int = limited(6000, at_least=1)
    span: tuple[float, float] = limited((0.0, 1.0), at_least=0, at_most=1)


def build_synthetic(
    settings: SyntheticSettings, *, sequence_length: int, stride: int | None, seed: int, name: str
) -> "SyntheticWindows":
    """Return the windows of the domain `name`; each is its own signal, so there is nothing to stride over.

    Domains with the same signals and seed share one sequence of windows, of which each takes its span.
    Raises DataError for a span without a window and for ranges that are none.
    """
    span = checked_span(name, settings.span)
    checked_stride(name, stride, sequence_length)
    if not settings.classes:
        raise DataError(f"data domain {name}: expected at least one class of {', '.join(CLASSES)}, found none")
    for key, pair in (("samples_per_symbol", settings.samples_per_symbol), ("snr_db", settings.snr_db)):
        if len(pair) != 2 or not pair[0] <= pair[1]:
            raise DataError(f"data domain {name}: expected {key} to be [lowest, highest], found {list(pair)}")
    begin, end = cut(span, settings.windows)
    if begin == end:
        raise DataError(
            f"data domain {name}: the span {list(span)} takes none of {settings.windows} windows; widen it, "
            "or raise `windows`"
        )
    return SyntheticWindows(settings, sequence_length, seed, begin, end)


class SyntheticWindows:
    """Windows `begin` to `end` of the sequence that the settings and the seed describe."""

    def __init__(self, settings: SyntheticSettings, sequence_length: int, seed: int, begin: int, end: int) -> None:
        self.kind: Literal["tokens", "complex"] = "complex"
        self.vocabulary: int | None = None
        self.encoding = "complex samples"
        self.warnings: tuple[str, ...] = ()
        self.remainder = 0
        self._settings, self._length, self._seed = settings, sequence_length, seed & _MASK
        self._begin, self._windows = begin, end - begin
        description = _description(settings, sequence_length, seed)
        self.files = (SourceFile(NAME, len(description), sha256(description).hexdigest()),)
        digest = self.files[0].sha256
        self.parts = (Part((digest,), frozenset((digest,)), ("windows",), begin, end),)
        self._kept: NDArray[np.complex64] | None = None
        if self._windows * sequence_length * 8 <= _KEPT_BYTES:
            self._kept = self._made(range(self._windows))

    def __len__(self) -> int:
        return self._windows

    def read(self, indices: Indices) -> torch.Tensor:
        """Return complex64 [n, sequence_length] samples; see `Windows.read`."""
        return torch.from_numpy(self._made(indices.tolist()) if self._kept is None else self._kept[indices])

    def labels(self, indices: Indices) -> tuple[str, ...]:
        """Return the class of each window."""
        classes = self._settings.classes
        return tuple(classes[(self._begin + index) % len(classes)] for index in indices.tolist())

    def snr_db(self, index: int) -> float:
        """Return the signal to noise ratio of a window in dB; -inf for the class `noise`."""
        return self._draw(index, _generator())[1]

    def identify(self, index: int) -> tuple[str, int]:
        """Return the source's name and where the window would begin in a file of all `windows` of them."""
        return NAME, (self._begin + index) * self._length * 8

    def check_unchanged(self) -> None:
        """Nothing can change: the windows are made."""

    def _draw(self, index: int, rng: np.random.Generator) -> tuple[str, float, int]:
        """Class, SNR and samples per symbol; `rng` is left in the window's own stream, past the last two."""
        number = self._begin + index
        name = self._settings.classes[number % len(self._settings.classes)]
        _turn_to(rng, self._seed, number)
        snr_db = float(rng.uniform(*self._settings.snr_db))
        lowest, highest = self._settings.samples_per_symbol
        samples_per_symbol = int(rng.integers(lowest, highest, endpoint=True))
        return name, -np.inf if name == "noise" else snr_db, samples_per_symbol

    def _made(self, indices: Sequence[int]) -> NDArray[np.complex64]:
        rng = _generator()
        made = np.empty((len(indices), self._length), dtype=np.complex64)
        for row, index in enumerate(indices):
            made[row] = self._make(index, rng)
        return made

    def _make(self, index: int, rng: np.random.Generator) -> NDArray[np.complex64]:
        name, snr_db, samples_per_symbol = self._draw(index, rng)
        offset = float(rng.uniform(-1, 1)) * self._settings.carrier_offset
        signal = rotate(waveform(name, rng, self._length, samples_per_symbol), offset, float(rng.random()))
        if name != "noise":
            signal += white_noise(rng, self._length) * 10 ** (-snr_db / 20)
        return signal.astype(np.complex64)


def _generator() -> np.random.Generator:
    """A generator for one thread's use; `_turn_to` decides what it draws."""
    return np.random.Generator(np.random.Philox(key=0))


def _turn_to(rng: np.random.Generator, seed: int, number: int) -> None:
    """Put `rng` at the begin of the stream of window `number`, as a new Philox of this key would be.

    Philox is keyed, not seeded: each (seed, number) has a stream of its own, with nothing to skip. A new one
    costs a tenth of a window, since it asks the system for entropy even where a key is given.
    """
    start = np.zeros(4, dtype=np.uint64)
    rng.bit_generator.state = {
        "bit_generator": "Philox",
        "state": {"counter": start, "key": np.array([seed, number], dtype=np.uint64)},
        "buffer": start,
        "buffer_pos": len(start),
        "has_uint32": 0,
        "uinteger": 0,
    }


def _description(settings: SyntheticSettings, sequence_length: int, seed: int) -> bytes:
    """The canonical JSON that stands for the data: all that a window of a given index depends on.

    Neither the number of windows nor the span is among it: they choose windows and change none.
    """
    fields = {
        "source": NAME,
        "generator": 1,
        "seed": seed,
        "sequence_length": sequence_length,
        "classes": list(settings.classes),
        "samples_per_symbol": list(settings.samples_per_symbol),
        "snr_db": [float(edge) for edge in settings.snr_db],
        "carrier_offset": float(settings.carrier_offset),
    }
    return (json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n").encode()
