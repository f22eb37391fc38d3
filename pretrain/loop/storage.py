"""A full disk is waited for where the config says so: what it refused is tried again until there is space."""

import time
from collections.abc import Callable
from typing import TypeVar

from pretrain import progress
from pretrain.errors import StorageError
from pretrain.loop.parts import LoopParts, show
from pretrain.machine.disk import free_bytes
from pretrain.telemetry.sink import Note

T = TypeVar("T")

# Between two tries: at first this long, and twice as long after each that fails, since each may write gigabytes.
_FIRST_SECONDS, _MOST_SECONDS = 1.0, 60.0
# A signal waits no longer than this to be heard.
_NAP_SECONDS = 0.1


class DiskWait:
    """Calls what writes the evidence, and calls it again while the disk is full and the seconds are not over.

    Whatever is called leaves nothing half done when it fails, so that a wait changes no byte of rows or checkpoints. A
    stop signal ends the wait at once, and so does whatever space would not mend. After one wait in vain nothing waits
    any more: what is still written says how the attempt ends. clock: seconds that never go back.
    """

    def __init__(
        self,
        parts: LoopParts,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._parts, self._clock, self._sleep = parts, clock, sleep
        self._seconds = parts.config.checkpoint.storage_wait_seconds
        self._is_waiting = self._is_over = False

    def __call__(self, work: Callable[[], T], size: int = 0) -> T:
        """Return what `work` returns; `size`: the bytes that it needs, without which it need not be tried.

        Raises StorageError where there is no space when the seconds are over.
        """
        try:
            return work()
        except StorageError as error:
            if not error.is_full or not self._may_wait():
                raise
            fault = str(error)  # The error itself would hold on to all that the save had in its hands.
        self._is_waiting = True
        try:
            with self._parts.spent.during("paused"):
                return self._wait(work, size, fault)
        finally:
            self._is_waiting = False

    def _may_wait(self) -> bool:
        is_asked = self._seconds > 0 and self._parts.stop.name is None
        return is_asked and not self._is_waiting and not self._is_over

    def _wait(self, work: Callable[[], T], size: int, fault: str) -> T:
        began = self._clock()
        end, pause = began + self._seconds, _FIRST_SECONDS
        what = fault.rpartition("; ")[0]
        text = f"{what}; waiting for space, {self._seconds:g} s at most (checkpoint.storage_wait_seconds)"
        show(self._parts, Note(kind="warning", text=text))
        is_recorded = self._record("paused", reason=what)
        while True:
            self._nap(min(end, self._clock() + pause))
            is_last = self._clock() >= end
            if self._parts.stop.name is not None:
                raise self._in_vain(fault, f"stopped by {self._parts.stop.name} while it waited for space")
            if not is_last and not self._has_room(size):
                continue
            try:
                found = work()
            except StorageError as error:
                if not error.is_full:
                    raise
                fault = str(error)
            else:
                break
            if is_last:
                raise self._in_vain(fault, f"and after {self._seconds:g} s of waiting there is no space")
            pause = min(2 * pause, _MOST_SECONDS)
        seconds = round(self._clock() - began, 3)
        if not is_recorded:
            self._record("paused", reason=what)
        self._record("unpaused", seconds=seconds)
        show(self._parts, Note(kind="unpaused", text=f"there is space again, after {seconds:g} s"))
        return found

    def _nap(self, until: float) -> None:
        while self._parts.stop.name is None and (left := until - self._clock()) > 0:
            self._sleep(min(left, _NAP_SECONDS))
            progress.moved()  # A wait that is asked for is no stall.

    def _has_room(self, size: int) -> bool:
        free = free_bytes(self._parts.writer.folder)
        return free is None or free >= size

    def _record(self, event: str, **fields: object) -> bool:
        """Write to events.jsonl, which may lie on the full disk itself, and when it is closed takes no more."""
        if self._parts.writer.closed:
            return True
        try:
            self._parts.writer.event(event, self._parts.state.step, **fields)
        except StorageError as error:
            if not error.is_full:
                raise
            return False
        return True

    def _in_vain(self, fault: str, why: str) -> StorageError:
        self._is_over = True
        what, _, advice = fault.rpartition("; ")
        return StorageError(f"{what}, {why} (checkpoint.storage_wait_seconds); {advice}", is_full=True)
