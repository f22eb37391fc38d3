"""The screen: a live line on a terminal, plain lines elsewhere, and at the end what to type next."""

import io
import math
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from typing import Self, TextIO

from rich.console import Console
from rich.text import Text

from pretrain.errors import DisplacedError
from pretrain.policy.cadence import is_due
from pretrain.telemetry.sink import Begin, End, Event, Note, StepRow, ValidationShown

_REFRESH_SECONDS = 0.25
_WIDTH = 80
_ERASE_LINE = "\r\x1b[2K"
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")  # every control character but the newline
# The parts of a step's line that a narrow terminal has no room for, the first to go first; the step stays.
_LEFT_OUT = ("norm", "lr", "rate", "action", "left", "loss")
_NOTE_STYLES = {"warning": "yellow", "skipped": "yellow", "signal": "yellow", "paused": "yellow", "saved": "dim"}


class _SteadyStream:
    """A text stream, or none, that a closed pipe, a lost terminal or a missing glyph cannot make raise."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream if stream is not None else io.StringIO()
        self.encoding = getattr(stream, "encoding", None) or "utf-8"
        self.lost = stream is None  # descriptor 2 was closed before Python began

    def write(self, text: str) -> int:
        # A path may hold what the stream cannot encode: undecodable bytes, or any letter in an ASCII locale.
        encodable = text.encode(self.encoding, "backslashreplace").decode(self.encoding)
        self._unless_lost(lambda: self._stream.write(encodable))
        return len(text)

    def flush(self) -> None:
        self._unless_lost(self._stream.flush)

    def isatty(self) -> bool:
        try:
            return self._stream.isatty()
        except ValueError:  # the stream is closed
            return False

    def _unless_lost(self, call: Callable[[], object]) -> None:
        if self.lost:
            return
        try:
            call()
        except BlockingIOError:
            pass  # a full pipe that does not wait: this text is lost, the next may fit
        except (OSError, ValueError):
            # The pipe is closed, the terminal gone: nobody reads, but the training is not theirs to stop.
            self.lost = True


class Screen:
    """The sink that a person watches; all goes to `stream` (stderr), and nothing it meets there raises.

    quiet: only warnings and the end are shown.
    live: a line that is redrawn in place; None = where the stream is a terminal.
    width: in characters; None = the terminal's. clock: seconds that never go back.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        quiet: bool = False,
        live: bool | None = None,
        width: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = _SteadyStream(sys.stderr if stream is None else stream)
        # Rich takes FORCE_COLOR for a terminal, but a log that asks for colour is no place to redraw a line.
        is_terminal = self._stream.isatty() if live is None else live
        self._console = Console(
            file=self._stream,  # type: ignore[arg-type]
            force_terminal=is_terminal,
            width=width,
            highlight=False,
        )
        if self._console.width < 1:  # COLUMNS=0 would leave every line empty
            self._console.width = _WIDTH
        self._live = is_terminal and not self._console.is_dumb_terminal
        self._quiet, self._clock = quiet, clock
        self._begin = Begin(attempt="", step=0, max_steps=0, unit="tokens")
        self._row: StepRow | None = None
        self._row_is_shown = self._line_is_drawn = self._has_shown_a_step = False
        self._drawn_at = -math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def emit(self, event: Event) -> None:
        """Show one event; a step costs a microsecond unless a line or a redraw (four a second) is due."""
        match event:
            case End():
                self._show_end(event)
            case Note(kind="warning"):
                self._show_note(event)
            case _ if self._quiet or self._stream.lost:
                return
            case StepRow():
                self._show_step(event)
            case ValidationShown():
                self._say(_validation_text(event), "cyan")
            case Note():
                self._show_note(event)
            case Begin():
                self._show_begin(event)

    def close(self) -> None:
        """Show the last step and end the live line, so that what is printed next begins a line of its own."""
        if self._row is not None and not self._row_is_shown:
            if self._live:
                self._draw(self._row)
            else:
                self._say_step(self._row)
        if self._line_is_drawn:
            self._line_is_drawn = False
            self._stream.write("\n")
            self._stream.flush()

    def _show_begin(self, begin: Begin) -> None:
        self._begin = begin
        self._say(f"attempt {begin.attempt}", "bold")
        width = max((len(label) for label, _ in begin.details), default=0)
        for label, value in begin.details:
            self._say(f"  {label:<{width}}  {value}")
        self._say(f"step {begin.step} of {begin.max_steps}")

    def _show_note(self, note: Note) -> None:
        self._say(f"{note.kind}: {note.text}", _NOTE_STYLES.get(note.kind, ""))

    def _show_step(self, row: StepRow) -> None:
        self._row, self._row_is_shown = row, False
        if self._live:
            now = self._clock()
            if now - self._drawn_at >= _REFRESH_SECONDS:
                self._drawn_at = now
                self._draw(row)
        elif row.action == "accept":
            every, last = self._begin.line_every_n_steps, self._begin.max_steps
            if not self._has_shown_a_step or row.step == last or is_due(row.step, every):
                self._say_step(row)

    def _draw(self, row: StepRow) -> None:
        # One column short of the edge: a terminal wraps after the last, and a wrapped line cannot be erased.
        width = max(1, self._console.width - 1)
        line = Text(_step_text(row, self._begin, width))
        line.truncate(width)
        self._stream.write(_ERASE_LINE)
        self._console.print(line, end="", soft_wrap=True)
        self._line_is_drawn = self._row_is_shown = True

    def _say_step(self, row: StepRow) -> None:
        self._has_shown_a_step = self._row_is_shown = True
        self._say(_step_text(row, self._begin))

    def _say(self, text: str, style: str = "") -> None:
        """Print a line, however long, above the live line; `text` is shown as it is, brackets and all."""
        was_drawn, self._line_is_drawn = self._line_is_drawn, False
        if was_drawn:
            self._stream.write(_ERASE_LINE)
        self._console.print(Text(_printable(text), style), soft_wrap=True)
        if was_drawn and self._row is not None:
            self._draw(self._row)

    def _show_end(self, end: End) -> None:
        self.close()
        reason = f": {end.reason}" if end.reason else ""
        self._say(f"{end.verdict} at step {end.step}{reason}", "green" if end.verdict == "done" else "red")
        if end.advice:
            self._say(end.advice)
        for line in end.times:
            self._say(line)
        if end.incident is not None:
            count = f"{end.incidents} incident{'s' if end.incidents > 1 else ''}; of the last: "
            self._say(count + shlex.join(_replay(end.incident)))
        self._say(f"attempt {end.attempt}")
        self._say(f"next: {closing_command(end)}", "bold")


def closing_command(end: End) -> str:
    """The command to type next, quoted for a shell: it verifies, goes on, or shows why the run cannot go on.

    To go on, the run is named and not its attempt: a later attempt may be there by the time that it is typed.
    """
    path = _no_option(end.attempt)
    if end.verdict == DisplacedError.verdict and not end.resumable:
        return shlex.join(("ls", "-la", _no_option(end.run or end.attempt)))
    if end.verdict != "done" and end.resumable:
        return shlex.join(("pretrain", "resume", "--attempt", _no_option(end.run or end.attempt)))
    if end.verdict != "done":
        return shlex.join(("cat", f"{path}/outcome.json") if end.incident is None else _replay(end.incident))
    return shlex.join(("pretrain", "verify-manifest", path))


def _replay(incident: str) -> tuple[str, ...]:
    return "pretrain", "replay", "--incident", _no_option(incident)


def _no_option(path: str) -> str:
    """A path that begins with a dash would be read as an option."""
    return f"./{path}" if path.startswith("-") else path


def _printable(text: str) -> str:
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _step_text(row: StepRow, begin: Begin, width: int | None = None) -> str:
    """The line of a step; where `width` has no room for all of its parts, whole ones are left out."""
    parts = {
        "step": f"step {row.step}/{begin.max_steps}",
        "loss": f"loss {row.loss:.4f}",
        "lr": f"lr {row.learning_rate:.2e}",
    }
    if row.gradient_norm is not None:
        parts["norm"] = f"norm {row.gradient_norm:.3g}"
    if row.tokens_per_second is not None:
        parts["rate"] = f"{row.tokens_per_second:,.0f} {begin.unit}/s"
    if row.seconds_left is not None:
        parts["left"] = f"left {_duration(row.seconds_left)}"
    if row.action != "accept":
        parts["action"] = row.action
    for name in _LEFT_OUT:
        if width is not None and len("  ".join(parts.values())) > width:
            parts.pop(name, None)
    return "  ".join(parts.values())


def _validation_text(shown: ValidationShown) -> str:
    parts = [f"validation step {shown.step}", shown.domain, _figures(shown.measures)]
    if shown.baselines:
        parts.append(f"| baselines  {_figures(shown.baselines)}")
    if shown.classes:
        parts.append(f"| classes  {_figures(shown.classes)}")
    if shown.best:
        parts.append("| best so far")
    return "  ".join(parts)


def _figures(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4f}" for name, value in values.items())


def _duration(seconds: float) -> str:
    days, rest = divmod(max(0, round(seconds)), 86400)
    clock = f"{rest // 3600}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}d {clock}" if days else clock
