"""The screen on a terminal and off one, and the places where a screen may be missing."""

import io
import math
import os
import re
import shlex
import time

import pytest

from pretrain.console import Screen, closing_command
from pretrain.telemetry.sink import Begin, End, Note, StepRow, ValidationShown

ANSI = re.compile(r"\x1b\[[0-9;]*m")
ATTEMPT = "runs/a [bold]b[/bold] c/attempts/0001"


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "COLUMNS", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def row(step: int, **more) -> StepRow:
    given = {"attempt": 1, "batch": step - 1, "loss": 1.25, "learning_rate": 3e-3, "action": "accept"}
    return StepRow(**{**given, "step": step, **more})


def begin(max_steps: int = 25, **more) -> Begin:
    return Begin(attempt=ATTEMPT, step=0, max_steps=max_steps, **{"unit": "tokens", **more})


def end(**more) -> End:
    return End(**{"attempt": ATTEMPT, "verdict": "done", "step": 25, **more})


def plain(text: str) -> str:
    return ANSI.sub("", text)


def step_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("step ") and "/" in line]


def test_off_a_terminal_a_line_comes_first_then_every_n_steps_then_last():
    stream = io.StringIO()
    with Screen(stream) as screen:
        screen.emit(begin())
        for step in range(1, 26):
            screen.emit(row(step, gradient_norm=0.5, tokens_per_second=12345.6, seconds_left=3725.0))
    text = stream.getvalue()
    assert [line.split()[1] for line in step_lines(text)] == ["1/25", "10/25", "20/25", "25/25"]
    assert step_lines(text)[0] == "step 1/25  loss 1.2500  lr 3.00e-03  norm 0.5  12,346 tokens/s  left 1:02:05"
    assert "\x1b" not in text
    assert "\r" not in text


def test_the_period_of_the_lines_is_the_runs():
    stream = io.StringIO()
    with Screen(stream) as screen:
        screen.emit(begin(line_every_n_steps=7))
        for step in range(1, 26):
            screen.emit(row(step))
    assert [line.split()[1] for line in step_lines(stream.getvalue())] == [
        "1/25",
        "7/25",
        "14/25",
        "21/25",
        "25/25",
    ]


def test_a_run_that_ends_early_shows_its_last_step_once():
    stream = io.StringIO()
    with Screen(stream) as screen:
        screen.emit(begin())
        for step in range(1, 14):
            screen.emit(row(step))
        screen.emit(end(verdict="interrupted", step=13, reason="SIGTERM"))
    lines = stream.getvalue().splitlines()
    assert [line.split()[1] for line in step_lines(stream.getvalue())] == ["1/25", "10/25", "13/25"]
    assert lines[-3:] == [
        "interrupted at step 13: SIGTERM",
        f"attempt {ATTEMPT}",
        f"next: pretrain resume --attempt '{ATTEMPT}'",
    ]


def test_a_refused_step_takes_no_line_of_its_own_but_its_note_does():
    stream = io.StringIO()
    with Screen(stream) as screen:
        screen.emit(begin())
        screen.emit(row(1))
        for _ in range(3):
            screen.emit(Note(kind="skipped", text="batch 1: non_finite_loss"))
            screen.emit(row(1, action="skip", loss=math.nan))
        screen.emit(row(2))
    text = stream.getvalue()
    assert text.count("skipped: batch 1: non_finite_loss\n") == 3
    assert [line.split()[1] for line in step_lines(text)] == ["1/25", "2/25"]


def test_on_a_terminal_one_line_is_redrawn_at_most_four_times_a_second():
    stream, clock = Terminal(), Clock()
    with Screen(stream, width=100, clock=clock) as screen:
        screen.emit(begin(max_steps=1000))
        start = len(stream.getvalue())
        for step in range(1, 1001):
            clock.now += 0.01
            screen.emit(row(step))
    drawn = stream.getvalue()[start:].split("\r\x1b[2K")[1:]
    assert 40 <= len(drawn) <= 42  # ten seconds, and the last step
    assert drawn[-1] == "step 1000/1000  loss 1.2500  lr 3.00e-03\n"
    assert "\n" not in "".join(drawn[:-1])


def test_a_line_above_the_live_line_erases_it_and_draws_it_again():
    stream = Terminal()
    with Screen(stream, width=100) as screen:
        screen.emit(begin())
        screen.emit(row(1))
        screen.emit(Note(kind="warning", text="look here"))
    _, _, shown = plain(stream.getvalue()).partition("step 0 of 25\n")
    step = "step 1/25  loss 1.2500  lr 3.00e-03"
    assert shown == f"\r\x1b[2K{step}\r\x1b[2Kwarning: look here\n\r\x1b[2K{step}\n"


@pytest.mark.parametrize("width", [1, 2, 3, 10, 40, 79])
def test_a_narrow_terminal_cuts_the_live_line_before_its_last_column(width):
    stream = Terminal()
    with Screen(stream, width=width) as screen:
        screen.emit(begin())
        start = len(stream.getvalue())
        screen.emit(row(1, gradient_norm=0.5, tokens_per_second=12345.6, seconds_left=3725.0))
    drawn = plain(stream.getvalue()[start:]).removeprefix("\r\x1b[2K").removesuffix("\n")
    assert 1 <= len(drawn) <= max(1, width - 1)
    assert "step 1/25"[: len(drawn)] == drawn[:9]


def test_a_dumb_terminal_and_a_file_that_asks_for_colour_get_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    dumb = Terminal()
    monkeypatch.setenv("FORCE_COLOR", "1")
    log = io.StringIO()
    for stream in (dumb, log):
        with Screen(stream) as screen:
            screen.emit(begin())
            screen.emit(row(1))
        assert "\r" not in stream.getvalue()
        assert step_lines(plain(stream.getvalue())) == ["step 1/25  loss 1.2500  lr 3.00e-03"]


def test_quiet_leaves_only_warnings_and_the_end():
    for stream in (io.StringIO(), Terminal()):
        with Screen(stream, quiet=True) as screen:
            screen.emit(begin())
            screen.emit(row(1))
            screen.emit(Note(kind="warning", text="look here"))
            screen.emit(Note(kind="saved", text="step 1"))
            screen.emit(ValidationShown(step=1, domain="d", measures={"loss": 1.0}))
            screen.emit(end())
        assert plain(stream.getvalue()).splitlines() == [
            "warning: look here",
            "done at step 25",
            f"attempt {ATTEMPT}",
            f"next: pretrain verify-manifest '{ATTEMPT}'",
        ]


def test_the_beginning_says_what_runs():
    stream = io.StringIO()
    with Screen(stream) as screen:
        screen.emit(begin(details=(("model", "decoder"), ("validation", "pydoc [0.9, 1.0]"))))
    assert stream.getvalue().splitlines() == [
        f"attempt {ATTEMPT}",
        "  model       decoder",
        "  validation  pydoc [0.9, 1.0]",
        "step 0 of 25",
    ]


def test_a_validation_stands_beside_what_it_must_be_compared_with():
    stream = io.StringIO()
    with Screen(stream) as screen:
        screen.emit(
            ValidationShown(
                step=700,
                domain="pydoc",
                measures={"loss": 1.0192, "bits_per_byte": math.nan},
                baselines={"bigram": 2.3, "trigram": 1.7},
                classes={"bpsk": 0.5},
                best=True,
            )
        )
    assert stream.getvalue() == (
        "validation step 700  pydoc  loss 1.0192  bits_per_byte nan  | baselines  bigram 2.3000  trigram 1.7000"
        "  | classes  bpsk 0.5000  | best so far\n"
    )


@pytest.mark.parametrize("text", ["[/]", "[red]x[/red]", "a :smile: b", "x" * 500, "[link=file:///x]y[/link]"])
def test_text_is_shown_as_it_is_and_on_one_line(text):
    for stream in (io.StringIO(), Terminal()):
        with Screen(stream, width=40) as screen:
            screen.emit(Note(kind="saved", text=text))
        assert plain(stream.getvalue()) == f"saved: {text}\n"


def test_control_characters_in_a_name_do_not_reach_the_terminal():
    stream = Terminal()
    with Screen(stream) as screen:
        screen.emit(Note(kind="saved", text="a\x1b[2Jb\rc"))
    assert plain(stream.getvalue()) == "saved: a\\x1b[2Jb\\x0dc\n"


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (end(), ["pretrain", "verify-manifest", ATTEMPT]),
        (end(verdict="interrupted"), ["pretrain", "resume", "--attempt", ATTEMPT]),
        (end(verdict="storage"), ["pretrain", "resume", "--attempt", ATTEMPT]),
        (end(verdict="interrupted", run="runs/a b"), ["pretrain", "resume", "--attempt", "runs/a b"]),
        (end(verdict="interrupted", run="-a"), ["pretrain", "resume", "--attempt", "./-a"]),
        (end(verdict="diverged", resumable=False), ["cat", f"{ATTEMPT}/outcome.json"]),
        (
            end(verdict="diverged", resumable=False, incidents=2, incident="-a b/i.json"),
            ["pretrain", "replay", "--incident", "./-a b/i.json"],
        ),
        (end(verdict="interrupted", incidents=2, incident="i.json"), ["pretrain", "resume", "--attempt", ATTEMPT]),
        (end(attempt="-x", verdict="diverged", resumable=False), ["cat", "./-x/outcome.json"]),
        (end(attempt="it's $HOME/`x`\n"), ["pretrain", "verify-manifest", "it's $HOME/`x`\n"]),
        (end(attempt="-rf/attempts/0001"), ["pretrain", "verify-manifest", "./-rf/attempts/0001"]),
    ],
)
def test_the_command_to_type_next_survives_a_shell(ended, words):
    assert shlex.split(closing_command(ended)) == words


@pytest.mark.parametrize(("count", "said"), [(1, "1 incident"), (3, "3 incidents")])
def test_an_end_with_incidents_says_how_to_see_the_last(count, said):
    stream = io.StringIO()
    Screen(stream, quiet=True).emit(end(incidents=count, incident="runs/a b/incident_0003.json"))
    replay = "pretrain replay --incident 'runs/a b/incident_0003.json'"
    assert f"{said}; of the last: {replay}\n" in stream.getvalue()
    assert stream.getvalue().splitlines()[-1].startswith("next: pretrain verify-manifest ")


@pytest.mark.parametrize("width", range(20, 90))
def test_the_live_line_has_whole_parts_and_the_time_left_is_among_the_last_to_go(width):
    stream = Terminal()
    with Screen(stream, width=width) as screen:
        screen.emit(begin(max_steps=1000))
        start = len(stream.getvalue())
        screen.emit(row(1000, gradient_norm=0.5, tokens_per_second=12345.6, seconds_left=3725.0))
    drawn = plain(stream.getvalue()[start:]).removeprefix("\r\x1b[2K").removesuffix("\n")
    whole = ["step 1000/1000", "loss 1.2500", "lr 3.00e-03", "norm 0.5", "12,346 tokens/s", "left 1:02:05"]
    parts = drawn.split("  ")
    assert [part for part in whole if part in parts] == parts
    assert len(drawn) < width
    assert (whole[-1] in parts) == (width > len("step 1000/1000  loss 1.2500  left 1:02:05"))
    assert width < 80 or len(parts) >= 5


def test_advice_is_shown():
    stream = io.StringIO()
    Screen(stream).emit(end(verdict="storage", reason="disk full", advice="free space, then resume"))
    assert stream.getvalue().splitlines()[:2] == ["storage at step 25: disk full", "free space, then resume"]


def everything(screen: Screen) -> None:
    with screen:
        screen.emit(begin(details=(("a", "b"),)))
        for step in range(1, 26):
            screen.emit(row(step))
            screen.emit(Note(kind="saved", text=f"step {step}"))
        screen.emit(ValidationShown(step=25, domain="d", measures={"loss": 1.0}))
        screen.emit(end())


@pytest.mark.parametrize("live", [False, True])
def test_a_pipe_that_nobody_reads_stops_nothing(live):
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w")
    everything(Screen(stream, live=live))
    with pytest.raises(BrokenPipeError):
        stream.close()


@pytest.mark.parametrize("live", [False, True])
def test_a_pipe_that_breaks_half_way_stops_nothing(live):
    class Breaking(io.StringIO):
        left = 3

        def write(self, text):
            self.left -= 1
            if self.left < 0:
                raise OSError(5, "Input/output error")  # what a terminal that hung up says
            return super().write(text)

    everything(Screen(Breaking(), live=live))


@pytest.mark.parametrize("live", [False, True])
def test_a_closed_stream_and_a_full_pipe_stop_nothing(live):
    closed = io.StringIO()
    screen = Screen(closed, live=live)
    closed.close()
    everything(screen)
    everything(Screen(closed))

    class Full(io.StringIO):
        refused = False

        def write(self, text):
            if not self.refused:
                self.refused = True
                raise BlockingIOError(11, "try again", 0)
            return super().write(text)

    full = Full()
    everything(Screen(full, live=live))
    assert "done at step 25" in full.getvalue()


def test_a_stream_that_cannot_encode_a_name_shows_its_code():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="strict", write_through=True)
    with Screen(stream) as screen:
        screen.emit(Note(kind="saved", text="pfad/ü/\udcff"))
    assert raw.getvalue() == b"saved: pfad/\\xfc/\\udcff\n"


@pytest.mark.parametrize("live", [False, True])
def test_without_a_stream_nothing_is_shown_and_nothing_stops(live, monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    everything(Screen(live=live))
    everything(Screen())


@pytest.mark.parametrize("live", [False, True])
def test_a_terminal_of_no_columns_has_eighty(live, monkeypatch):
    for columns in ("0", "80"):
        monkeypatch.setenv("COLUMNS", columns)
        stream = Terminal()
        everything(Screen(stream, live=live, clock=Clock()))
        assert f"attempt {ATTEMPT}\n" in plain(stream.getvalue())
        assert "step 25/25  loss 1.2500" in plain(stream.getvalue())


@pytest.mark.parametrize("live", [False, True])
def test_a_step_costs_far_less_than_a_tenth_of_a_millisecond(live):
    stream, clock = Terminal(), Clock()
    screen = Screen(stream, live=live, width=120, clock=clock)
    screen.emit(begin(max_steps=10**6))
    rows = [row(step, gradient_norm=0.5, tokens_per_second=1e5, seconds_left=60.0) for step in range(1, 2001)]
    best = math.inf
    for _ in range(3):
        began = time.perf_counter()
        for each in rows:
            clock.now += 0.025  # a redraw at every tenth step
            screen.emit(each)
        best = min(best, (time.perf_counter() - began) / len(rows))
    assert best < 1e-4
