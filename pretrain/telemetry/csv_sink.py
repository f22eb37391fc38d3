"""The CSV as a sink that never ends a run: what its disk refuses is one warning, and rows that are missing there."""

from collections.abc import Callable

from pretrain.errors import StorageError
from pretrain.telemetry.csv_log import CsvLog
from pretrain.telemetry.sink import Event, StepRow


class CsvSink:
    """Hands events to the log that `open_log` opens, and goes on without a row that cannot be written.

    warn: takes one sentence, at the first fault and, where more rows are missing than one, at the end. What is wrong
    with the path itself is raised by `open_log` as it is.
    """

    def __init__(self, open_log: Callable[[], CsvLog], warn: Callable[[str], None]) -> None:
        self._warn, self._missing = warn, 0
        self._log: CsvLog | None = None
        try:
            self._log = open_log()
        except StorageError as error:
            warn(f"there is no CSV of this attempt: {error}")

    def emit(self, event: Event) -> None:
        """Write the row of a step, if that can be."""
        if self._log is None:
            return
        try:
            self._log.emit(event)
        except StorageError as error:
            assert isinstance(event, StepRow)
            self._missing += 1
            if self._missing == 1:
                self._warn(f"the training goes on, the row of step {event.step} is missing in the CSV: {error}")

    def close(self) -> None:
        """Make the rows durable, if that can be, and say how many are missing; a second call does nothing."""
        log, self._log = self._log, None
        if log is None:
            return
        try:
            log.close()
        except StorageError as error:
            self._warn(f"the newest rows of the CSV may be lost: {error}")
        if self._missing > 1:
            self._warn(f"{log.path}: {self._missing} rows are missing, because they could not be written")
