"""Sources of training data, and the loader that hands it out in a reproducible order."""

from dataclasses import dataclass, field
from typing import Any

from pretrain.data.iq import IqSettings, build_iq
from pretrain.data.synthetic import SyntheticSettings, build_synthetic
from pretrain.data.text import BOUNDARY_TOKEN, TextSettings, build_text
from pretrain.data.windows import Concatenation, Source, SourceFile, Windows
from pretrain.registry import Choice, Entry, limited

__all__ = ["BOUNDARY_TOKEN", "SOURCES", "Concatenation", "DataSettings", "Source", "SourceFile", "Windows"]

SOURCES: dict[str, Entry[Any, Source]] = {
    "text": Entry(TextSettings, build_text),
    "iq": Entry(IqSettings, build_iq),
    "synthetic-iq": Entry(SyntheticSettings, build_synthetic),
}


@dataclass(frozen=True)
class DataSettings:
    """What a run trains on and is validated on.

    sequence_length: positions of one window: tokens that are predicted in text, complex samples in IQ.
    stride: tokens or samples from the begin of a window to that of the next; null = sequence_length.
    tokenizer: how text becomes tokens; `bytes` = one token per byte, vocabulary 256.
    prefetch_steps: steps that are read ahead; 0 = none. It changes no result.
    loader_threads: threads that read ahead. It changes no result.
    document_mask: no position sees another document than its own, in validation either; the NUL byte between two
        belongs to the one behind it. Positions go on counting across documents (text only).
    train: the domains to train on by name, each a source with its settings, one after the other.
    validation: the domains to validate on by name; none = the training domains.
    """

    sequence_length: int = limited(128, at_least=1)
    stride: int | None = limited(None, at_least=1)
    tokenizer: str = limited("bytes", choices=("bytes",))
    prefetch_steps: int = limited(2, at_least=0, at_most=1024)
    loader_threads: int = limited(1, at_least=1, at_most=64)
    document_mask: bool = False
    train: dict[str, Choice[Any]] = field(default_factory=dict)
    validation: dict[str, Choice[Any]] = field(default_factory=dict)
