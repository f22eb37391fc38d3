"""How much memory a piece of work has in tensors at its worst, counted and not timed."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """While it is entered, counts the bytes of every storage that an operation makes, until that is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(one.untyped_storage()) for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)}
        made = func(*args, **(kwargs or {}))
        for one in tree_leaves(made):
            if isinstance(one, torch.Tensor) and one.device.type == "cpu":
                self._add(one.untyped_storage(), given)
        return made

    def _add(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        key = id(storage)
        if key in self._known or key in given:
            return
        self._known.add(key)
        size = storage.nbytes()
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def most_bytes(work: Callable[[], Any]) -> int:
    """Return the most bytes that tensors made by `work` held at one time."""
    with LiveBytes() as counter:
        work()
    return counter.most
