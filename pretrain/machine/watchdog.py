"""A thread that ends the process where nothing moves any more, also while the main thread hangs in a system call."""

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType

from pretrain import progress
from pretrain.errors import StalledError
from pretrain.policy.watchdog import Watch, is_stalled, look, nap_seconds

# What is waited for stderr, and for the record: what they write to may be what the run hangs on.
_PATIENCE_SECONDS = 5.0
_FRAMES_NAMED = 3

LastWords = Callable[[StalledError, str], object]


class _Waiting:
    """A thread that is there before it is needed: with no memory left the start of one may never return (gh-140746)."""

    def __init__(self, name: str) -> None:
        self._work: Callable[[], object] | None = None
        self._asked, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._wait, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def do(self, work: Callable[[], object]) -> None:
        """Let it be done, and wait for it no longer than there is patience."""
        self._work = work
        self._asked.set()
        self._done.wait(_PATIENCE_SECONDS)

    def close(self) -> None:
        self._asked.set()
        self._thread.join()

    def _wait(self) -> None:
        self._asked.wait()
        if self._work is not None:
            self._work()
        self._done.set()


class Watchdog:
    """Watches between `start` and `close`. timeout_seconds: 0 = nobody does.

    last_words: called once, in a thread of its own, with what hangs where and the stacks of all threads; it puts them
    on record as far as that is possible. clock: seconds that never go back. leave: ends the process with a code.

    A library that keeps Python's lock while it hangs keeps this thread from running too. Reading and writing a file,
    and the operations of PyTorch, let go of it.
    """

    def __init__(
        self,
        timeout_seconds: float,
        last_words: LastWords,
        *,
        clock: Callable[[], float] = time.monotonic,
        leave: Callable[[int], object] = os._exit,
    ) -> None:
        self._timeout, self._clock, self._leave = timeout_seconds, clock, leave
        self._last_words = last_words
        self._over, self._speaking = threading.Event(), threading.Lock()
        self._teller, self._recorder = _Waiting("stalled: stderr"), _Waiting("stalled: record")
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch, where there is a timeout."""
        if self._timeout > 0:
            self._teller.start()
            self._recorder.start()
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Watch no longer, and leave no thread behind; where the process is ending already, this never returns."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._teller.close()
            self._recorder.close()

    def say_instead(self, last_words: LastWords) -> None:
        """From now on these are the last words; where the others are being said already, this never returns."""
        with self._speaking:
            self._last_words = last_words

    def _watch(self) -> None:
        now = self._clock()
        watch = Watch(progress.count(), now, now)
        while not self._over.wait(nap_seconds(self._timeout)):
            watch = look(watch, progress.count(), self._clock(), self._timeout)
            if is_stalled(watch, self._timeout):
                self._end(watch.looked_at - watch.since)
                return

    def _end(self, seconds: float) -> None:
        try:
            what = f"nothing has moved for {seconds:.3g} s; the main thread is in {_main_place()}"
            said = "\n".join(stacks())
            self._teller.do(lambda: _tell(f"pretrain: stalled: {what}\n{said}"))
            self._recorder.do(lambda: self._record(StalledError(what), said))
        finally:  # Whatever keeps it from speaking does not keep it from ending.
            self._leave(StalledError.exit_code)

    def _record(self, error: StalledError, said: str) -> None:
        self._speaking.acquire()  # and never let go: a main thread that comes back comes to no manifest
        self._last_words(error, said)


def stacks() -> Iterator[str]:
    """Yield what every thread but this one is in, the innermost call first; no source is read for it."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            yield f"thread {names.get(ident, ident)}:"
            yield from (f"  {place}" for place in _places(frame))


def _main_place() -> str:
    main = threading.main_thread().ident
    frame = None if main is None else sys._current_frames().get(main)
    return "no place that is known" if frame is None else ", called by ".join(_places(frame)[:_FRAMES_NAMED])


def _places(frame: FrameType) -> list[str]:
    summary = traceback.StackSummary.extract(traceback.walk_stack(frame), lookup_lines=False)
    return [f"{one.name} ({one.filename}:{one.lineno})" for one in summary]


def _tell(text: str) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it, it is closed
            print(text, file=sys.stderr, flush=True)
