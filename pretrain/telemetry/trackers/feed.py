"""Hands rows to one tracker from a thread of its own, so that whatever it does, the training goes on as without it."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue

from pretrain import progress
from pretrain.machine import leaving
from pretrain.telemetry.csv_log import cells
from pretrain.telemetry.sink import Event, MonitorShown, StepRow, ValidationShown, WentBack
from pretrain.telemetry.trackers.tracker import Tracker

ROWS_WAITING = 10_000
CLOSE_SECONDS = 5.0
_NAP_SECONDS = 0.1
_TEXT_LIMIT = 300
# The step is the place of a row, the attempt the same in all of them, and the action its name.
_NO_VALUE = frozenset({"attempt", "step", "action"})


@dataclass(frozen=True)
class Row:
    """What a tracker is shown at once; values without those that were not measured."""

    step: int
    values: Mapping[str, float]


def row_of(event: Event) -> Row | None:
    """What a tracker is shown of an event, None = nothing.

    A step that was taken is under `train`; one that was not is under `refused`, at the step that it would have been,
    so that going back before that step takes it along. Others are `validation/DOMAIN/MEASURE`, its baselines and
    classes `validation/DOMAIN/baseline/NAME` and `validation/DOMAIN/class/NAME`, and `monitors/NAME/MEASURE/SUBJECT`.
    """
    match event:
        case StepRow():
            place, step = ("train", event.step) if event.action == "accept" else ("refused", event.step + 1)
            found = {f"{place}/{name}": value for name, value in cells(event).items() if name not in _NO_VALUE}
            return Row(step, {name: value for name, value in found.items() if isinstance(value, int | float)})
        case ValidationShown():
            groups = {"": event.measures, "baseline/": event.baselines, "class/": event.classes}
            return Row(
                event.step,
                {
                    f"validation/{event.domain}/{group}{name}": value
                    for group, values in groups.items()
                    for name, value in values.items()
                },
            )
        case MonitorShown():
            return Row(
                event.step,
                {
                    f"monitors/{event.name}/{measure}/{subject}": value
                    for measure, values in event.values.items()
                    for subject, value in values.items()
                },
            )
        case _:
            return None


class Feed:
    """A sink that never waits for its tracker and never fails with it.

    name: as in `telemetry.trackers`. opened: makes the tracker, in the thread. tell: takes one sentence for a person
    and for the record; it is called by `emit` and `close`, never by the thread. Of more than ROWS_WAITING rows the
    newest are dropped; a word that the run went back is not, for rows after it would stand for the wrong steps.
    """

    def __init__(self, name: str, opened: Callable[[], Tracker], tell: Callable[[str], None]) -> None:
        self._name, self._opened, self._tell = name, opened, tell
        self._waiting: SimpleQueue[Row | WentBack | None] = SimpleQueue()
        self._given, self._shown, self._dropped = 0, 0, 0
        self._failure: str | None = None
        self._is_off, self._is_given_up = False, False
        # Neither its thread nor what its library does at the end of the process may keep that.
        leaving.expect_guest(name)
        self._thread = threading.Thread(target=self._feed, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def emit(self, event: Event) -> None:
        """Put what the tracker is shown of an event in the queue, or drop it; tell of a failure, once."""
        if self._is_off:
            return
        if self._failure is not None:
            self._end(f"{self._failure}; it is off for the rest of this attempt, which goes on without it")
            return
        if isinstance(event, WentBack):
            self._waiting.put(event)
            return
        row = row_of(event)
        if row is None:
            return
        if self._waiting.qsize() < ROWS_WAITING:
            self._given += 1
            self._waiting.put(row)
            return
        self._dropped += 1
        if self._dropped == 1:
            self._say(f"is too slow: {ROWS_WAITING} rows wait for it, and newer ones are dropped until it takes some")

    def close(self) -> None:
        """Give the tracker CLOSE_SECONDS for what is left, and then go on without it; again does nothing."""
        if self._is_off:
            return
        self._waiting.put(None)
        end = time.monotonic() + CLOSE_SECONDS
        while self._thread.is_alive() and (left := end - time.monotonic()) > 0:
            progress.moved()  # A wait that has an end is no stall.
            self._thread.join(min(left, _NAP_SECONDS))
        self._is_given_up = self._thread.is_alive()
        lost = self._given + self._dropped - self._shown
        if self._failure is not None:
            self._end(f"{self._failure}; {lost} rows are lost")
        elif self._is_given_up:
            self._end(f"has not ended within {CLOSE_SECONDS:g} seconds; {lost} rows are lost")
        elif lost:
            self._end(f"was too slow; {lost} rows were dropped")
        self._is_off = True

    def _end(self, text: str) -> None:
        self._is_off = True  # first: what is told comes back here as an event
        self._say(text)

    def _say(self, text: str) -> None:
        self._tell(f"telemetry.trackers.{self._name}: {text}")

    def _feed(self) -> None:
        """Open the tracker, show it what comes, and close it."""
        try:
            tracker = self._opened()
            while not self._is_given_up:
                item = self._waiting.get()
                if item is None:
                    tracker.close()
                    return
                if isinstance(item, WentBack):
                    tracker.went_back(item.step)
                else:
                    tracker.log(item.step, item.values)
                    self._shown += 1
        # What a foreign library raises is not known, and may even be SystemExit: nothing of it may reach the training.
        # It is not hidden: the next `emit`, or `close`, tells of it.
        except BaseException as error:  # noqa: BLE001
            self._failure = _words(error)


def _words(error: BaseException) -> str:
    """One line about an error that any record and screen can hold."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text[:_TEXT_LIMIT].encode("utf-8", "backslashreplace").decode()
