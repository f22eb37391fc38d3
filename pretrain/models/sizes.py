"""Trunks by name: the numbers that published models have, for keys of `model` that are not given."""

from collections.abc import Mapping
from typing import Any

_GPT2: Mapping[str, Any] = {
    "norm": "layernorm",
    "activation": "gelu",
    "positions": "learned",
    "tie_embeddings": True,
}
_LLAMA: Mapping[str, Any] = {"norm": "rmsnorm", "activation": "swiglu", "positions": "rotary"}

# GPT-2: Radford et al., 2019, table 2, here without biases. Llama: Touvron et al., arXiv 2302.13971, table 2, and
# Llama 3.2 1B by its published config.json, here without the stretching of its rotary wavelengths.
SIZES: Mapping[str, Mapping[str, Any]] = {
    "tiny": {**_LLAMA, "width": 64, "layers": 2, "heads": 4, "kv_heads": 4, "ffn_width": 192, "tie_embeddings": True},
    "gpt2-124m": {**_GPT2, "width": 768, "layers": 12, "heads": 12, "kv_heads": 12, "ffn_width": 3072},
    "gpt2-355m": {**_GPT2, "width": 1024, "layers": 24, "heads": 16, "kv_heads": 16, "ffn_width": 4096},
    "llama-1b": {
        **_LLAMA,
        "width": 2048,
        "layers": 16,
        "heads": 32,
        "kv_heads": 8,
        "ffn_width": 8192,
        "rope_base": 500000.0,
        "tie_embeddings": True,
    },
    "llama-7b": {
        **_LLAMA,
        "width": 4096,
        "layers": 32,
        "heads": 32,
        "kv_heads": 32,
        "ffn_width": 11008,
        "rope_base": 10000.0,
        "tie_embeddings": False,
    },
}


def fill(given: dict[str, Any]) -> None:
    """Add to the keys that were given for a model those that its `size` decides; a size that is not known adds none."""
    size = given.get("size")
    for key, value in SIZES.get(size, {}).items() if isinstance(size, str) else ():
        given.setdefault(key, value)


def departures(settings: Any) -> list[tuple[str, Any, Any]]:
    """Return key, own value and the size's of each number that a model has otherwise than its `size`, none without."""
    numbers = SIZES.get(settings.size, {})
    return [(key, own, value) for key, value in numbers.items() if (own := getattr(settings, key)) != value]
