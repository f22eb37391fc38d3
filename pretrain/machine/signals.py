"""How a signal asks the run to stop: the first is remembered, the second ends the process at once."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from pretrain.errors import RunInterruptedError

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)


def ignore_stop_signals() -> None:
    """Let no stop signal reach a process that has done its work and only takes itself apart."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class StopRequest:
    """The listener of one process; `name` is the first stop signal received, or None.

    While `at_once` is true (nothing has been written yet) the first signal raises `RunInterruptedError` where the
    process stands; otherwise the loop asks for `name` at the places where it can save.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.at_once = False

    def install(self) -> None:
        """Listen for the stop signals, except one that the parent process has set to be ignored (nohup)."""
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.name is not None:
            os._exit(128 + number)
        self.name = signal.Signals(number).name
        if self.at_once:
            self.raise_if_asked()

    def raise_if_asked(self) -> None:
        """Raise `RunInterruptedError` when a signal has asked the run to stop."""
        if self.name is not None:
            raise RunInterruptedError(f"stopped by {self.name}", self.name)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Within this block a signal stops the work where it stands: for phases that have written nothing."""
        self.raise_if_asked()
        self.at_once = True
        try:
            yield
        finally:
            self.at_once = False
