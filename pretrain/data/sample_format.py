"""How complex samples are stored: SigMF's names for it, and the way from bytes to complex64."""

import difflib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrain.errors import DataError


@dataclass(frozen=True)
class SampleFormat:
    """One complex datatype: I, then Q, each a `component` of the value (component - zero) / full_scale."""

    name: str
    component: np.dtype[Any]
    zero: float = 0.0
    full_scale: float = 1.0

    @property
    def bytes(self) -> int:
        """Bytes of one complex sample."""
        return 2 * self.component.itemsize

    @property
    def floating(self) -> bool:
        """Whether a sample can be NaN or infinite."""
        return self.component.kind == "f"

    def decode(self, raw: NDArray[np.uint8]) -> NDArray[np.complex64]:
        """Return the samples in `raw`, C-contiguous uint8 [..., n * bytes], as new complex64 [..., n].

        A 64-bit float beyond the range of 32 bits becomes infinite.
        """
        stored: NDArray[Any] = raw.view(self.component)
        if self.floating:
            # Neither an overflow nor a NaN is news here: the scan at the start looks for both and says where.
            with np.errstate(over="ignore", invalid="ignore"):
                return stored.astype(np.float32).view(np.complex64)
        # Integers of 16 bits are exact in float32, wider ones are scaled before they are rounded.
        reals: NDArray[Any] = stored.astype(np.float32 if self.component.itemsize <= 2 else np.float64)
        reals -= self.zero
        reals /= self.full_scale  # a power of two: exact
        return reals.astype(np.float32, copy=False).view(np.complex64)


def _formats() -> dict[str, SampleFormat]:
    named = [
        SampleFormat("cu8", np.dtype("u1"), 128.0, 128.0),
        SampleFormat("ci8", np.dtype("i1"), 0.0, 128.0),
    ]
    for ending, order in (("le", "<"), ("be", ">")):
        for bits in (16, 32):
            half = 2.0 ** (bits - 1)
            named.append(SampleFormat(f"ci{bits}_{ending}", np.dtype(f"{order}i{bits // 8}"), 0.0, half))
            named.append(SampleFormat(f"cu{bits}_{ending}", np.dtype(f"{order}u{bits // 8}"), half, half))
        for bits in (32, 64):
            named.append(SampleFormat(f"cf{bits}_{ending}", np.dtype(f"{order}f{bits // 8}")))
    return {sample_format.name: sample_format for sample_format in named}


FORMATS = _formats()

# Names without a byte order and the suffixes of GNU Radio, rtl_433 and UHD mean little-endian in the wild.
ALIASES = {
    **{name.removesuffix("_le"): name for name in FORMATS if name.endswith("_le")},
    "cs8": "ci8",
    "cs16": "ci16_le",
    "sc8": "ci8",
    "sc16": "ci16_le",
    "fc32": "cf32_le",
    "cfile": "cf32_le",
}


def format_named(name: str, where: str) -> SampleFormat:
    """Return the datatype called `name`. Raises DataError that begins with `where` and offers near names."""
    found = find_format(name)
    if found is None:
        near = difflib.get_close_matches(name.lower(), [*FORMATS, *ALIASES], n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(sorted(FORMATS))}"
        raise DataError(f"{where}: {name or 'an empty name'} is not a datatype of complex samples; {hint}")
    return found


def contradicts(name: str, suffix: str) -> bool:
    """Whether a datatype and the suffix of a file say two things; a suffix without a byte order leaves that open."""
    chosen, said = find_format(name), find_format(suffix)
    if chosen is None or said is None or chosen == said:
        return False
    has_order = suffix.lower().endswith(("_le", "_be"))
    return has_order or chosen.component.newbyteorder("<") != said.component.newbyteorder("<")


def find_format(name: str) -> SampleFormat | None:
    """Return the datatype called `name`, or known under that suffix, if there is one."""
    lowered = name.lower()
    return FORMATS.get(ALIASES.get(lowered, lowered))
