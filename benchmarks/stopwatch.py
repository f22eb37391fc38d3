"""Times named pieces of the running loop, by standing in for the very functions that it calls."""

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Stopwatch:
    """Seconds by piece since the last `take`; a piece within another one counts as part of that one alone."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._is_running = False

    @contextmanager
    def timing(self, piece: str, owner: Any, name: str) -> Iterator[None]:
        """Within this block every call of `owner.name`, from one thread, counts as `piece`."""
        original: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(original)
        def timed(*words: Any, **named: Any) -> Any:
            if self._is_running:
                return original(*words, **named)
            self._is_running = True
            begun = time.perf_counter()
            try:
                return original(*words, **named)
            finally:
                self._seconds[piece] += time.perf_counter() - begun
                self._is_running = False

        setattr(owner, name, timed)
        try:
            yield
        finally:
            setattr(owner, name, original)

    def take(self) -> dict[str, float]:
        """Return the seconds by piece so far and begin anew."""
        taken, self._seconds = self._seconds, defaultdict(float)
        return dict(taken)
