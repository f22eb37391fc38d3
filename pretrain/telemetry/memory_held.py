"""What holds the memory of this process: the tensors that are alive, by kind, and what the allocator of a GPU says."""

import gc
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from pretrain.errors import ConfigError
from pretrain.machine import memory

NAME = "memory.json"
LARGEST = 50


def step_asked(text: str | None, max_steps: int) -> int | None:
    """Read the STEP of `--memory-snapshot`, a step of the run; ConfigError for any other text."""
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,9}", text) is None or not 1 <= int(text) <= max_steps:
        raise ConfigError(
            f"--memory-snapshot: expected STEP, one of the {max_steps} of training.max_steps, such as 1; found {text!r}"
        )
    return int(text)


def missed(step: int) -> str:
    """Return what is said of a step that an attempt did not take."""
    return f"--memory-snapshot {step}: this attempt did not take that step, so that there is no {NAME}"


def described(step: int, named: Mapping[str, Mapping[str, torch.Tensor]], device: torch.device) -> dict[str, Any]:
    """Return what memory.json holds.

    named: tensors by kind and name; every other one that Python holds is of the kind `other`, without a name. Tensors
    that share their memory count once, under the first name.
    """
    kinds: Counter[tuple[str, str]] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    rows: list[dict[str, Any]] = []
    for kind, name, tensor in _each_memory_once(named):
        size = tensor.untyped_storage().nbytes()
        place = str(tensor.device)
        kinds[kind, place] += size
        counts[kind, place] += 1
        rows.append(
            {
                "kind": kind,
                "name": name,
                "shape": list(tensor.shape),
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "device": place,
                "bytes": size,
            }
        )
    rows.sort(key=lambda row: (-row["bytes"], row["kind"], row["name"] or ""))
    return {
        "step": step,
        "host": {
            "resident_bytes": memory.resident_bytes(),
            "peak_bytes": memory.peak_resident_bytes(),
            "total_bytes": memory.total_bytes(),
        },
        "kinds": [
            {"kind": kind, "device": place, "tensors": counts[kind, place], "bytes": size}
            for (kind, place), size in kinds.items()
        ],
        "largest": rows[:LARGEST],
        "cuda": memory.of_allocator(device),
    }


def encoded(record: Mapping[str, Any]) -> bytes:
    """Return the bytes of the file; whatever else an allocator names than numbers and texts is given as text."""
    return (json.dumps(record, indent=1, allow_nan=False, default=str) + "\n").encode()


def _each_memory_once(
    named: Mapping[str, Mapping[str, torch.Tensor]],
) -> Iterator[tuple[str, str | None, torch.Tensor]]:
    """Yield kind, name and tensor of every piece of memory that is larger than nothing."""
    seen: set[tuple[str, int]] = set()
    for kind, name, tensor in [*_with_names(named), *_without_names()]:
        if tensor.layout is not torch.strided or tensor.device.type == "meta":
            continue
        storage = tensor.untyped_storage()
        key = (str(tensor.device), storage.data_ptr())
        if storage.nbytes() and key not in seen:
            seen.add(key)
            yield kind, name, tensor


def _with_names(named: Mapping[str, Mapping[str, torch.Tensor]]) -> Iterator[tuple[str, str | None, torch.Tensor]]:
    for kind, tensors in named.items():
        for name, tensor in tensors.items():
            yield kind, name, tensor


def _without_names() -> Iterator[tuple[str, str | None, torch.Tensor]]:
    for found in gc.get_objects():
        # By its type: to ask some objects of torch for their class is a warning.
        if issubclass(type(found), torch.Tensor):
            yield "other", None, found
