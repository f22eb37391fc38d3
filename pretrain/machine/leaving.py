"""How the process is left: by Python's own end, or at once where a foreign library would have a part in that."""

import contextlib
import os
import sys
import traceback

_guests: set[str] = set()


def forget_guests() -> None:
    """Begin with a process that nobody but us will take apart."""
    _guests.clear()


def expect_guest(name: str) -> None:
    """From now on there is code in this process that may wait at its end for as long as it likes."""
    _guests.add(name)


def leave_guests(error: BaseException | None) -> None:
    """End the process at once where there are guests, with the exit code that `error` means; return where not.

    The hooks that a library registers with `atexit`, and its threads that are no daemons, are run and waited for by
    Python itself, in this thread and without a limit: those of W&B wait for a process that may hang. All that is ours
    is durable and closed when a command has ended, so nothing is lost by leaving them out.
    """
    if not _guests:
        return
    code = _exit_code(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, nobody reads it, it is closed
            stream.flush()
    os._exit(code)


def _exit_code(error: BaseException | None) -> int:
    """Return the code that Python would leave with, after it has printed what it would print."""
    if error is None:
        return 0
    if not isinstance(error, SystemExit):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            traceback.print_exception(error)
        return 1
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    return 1
