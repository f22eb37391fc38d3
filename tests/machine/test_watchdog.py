"""A watchdog by a clock of the test: when it ends the process, what it says before, and that nothing holds it up."""

import threading
from collections.abc import Callable

import pytest

from pretrain import progress
from pretrain.errors import StalledError
from pretrain.machine import watchdog
from pretrain.machine.watchdog import Watchdog

PATIENCE_SECONDS = 30
TIMEOUT = 0.01  # of the naps between two looks, which are real; what has passed is said by the clock


class Clock:
    """A clock that moves by `each` when it is looked at, and does something then; `passed` after `looks` of them."""

    def __init__(self, each: float = TIMEOUT / 10, looks: int = 100, then: Callable[[], None] = lambda: None) -> None:
        self.now, self._each, self._left, self._then = 0.0, each, looks, then
        self.passed = threading.Event()

    def __call__(self) -> float:
        self.now += self._each
        self._left -= 1
        self._then()
        if self._left == 0:
            self.passed.set()
        return self.now


class Process:
    """What would be ended, and what would be put on record."""

    def __init__(self, clock: Clock, speak: Callable[[], object] = lambda: None) -> None:
        self.codes: list[int] = []
        self.said: list[tuple[StalledError, str]] = []
        self.over = threading.Event()
        self._speak = speak
        self.dog = Watchdog(TIMEOUT, self._hear, clock=clock, leave=self._leave)

    def _hear(self, error: StalledError, stacks: str) -> None:
        self.said.append((error, stacks))
        self._speak()

    def _leave(self, code: int) -> None:
        self.codes.append(code)
        self.over.set()


def watchdogs() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "watchdog" or "stalled" in thread.name]


def test_it_ends_the_process_and_says_where_it_hangs(capsys: pytest.CaptureFixture[str]) -> None:
    process = Process(Clock())
    process.dog.start()
    assert process.over.wait(PATIENCE_SECONDS)
    process.dog.close()
    assert process.codes == [8]
    ((error, stacks),) = process.said
    assert (error.exit_code, error.verdict) == (8, "stalled")
    assert str(error).startswith("nothing has moved for 0.01 s; the main thread is in wait (")
    assert __file__ in str(error)
    assert "thread MainThread:\n  wait (" in stacks
    assert f"  test_it_ends_the_process_and_says_where_it_hangs ({__file__}:" in stacks
    assert "thread watchdog" not in stacks
    assert capsys.readouterr().err == f"pretrain: stalled: {error}\n{stacks}\n"


@pytest.mark.parametrize(
    "clock",
    [Clock(then=progress.moved), Clock(each=TIMEOUT)],
    ids=["something moves", "the process sleeps between two looks"],
)
def test_it_leaves_the_process_alone(clock: Clock) -> None:
    process = Process(clock)
    process.dog.start()
    assert clock.passed.wait(PATIENCE_SECONDS)
    process.dog.close()
    assert (process.codes, process.said) == ([], [])
    assert not watchdogs()


def test_without_a_timeout_there_is_no_thread() -> None:
    dog = Watchdog(0.0, lambda *_: None)
    dog.start()
    assert not watchdogs()
    dog.close()


def test_a_record_that_hangs_does_not_keep_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "_PATIENCE_SECONDS", 0.01)
    never = threading.Event()
    process = Process(Clock(), never.wait)
    process.dog.start()
    assert process.over.wait(PATIENCE_SECONDS)
    assert process.codes == [8]
    never.set()
    process.dog.close()


def test_a_screen_that_takes_nothing_keeps_neither_record_nor_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "_PATIENCE_SECONDS", 0.01)
    never = threading.Event()
    monkeypatch.setattr(watchdog, "_tell", lambda _: never.wait())
    process = Process(Clock())
    process.dog.start()
    assert process.over.wait(PATIENCE_SECONDS)
    assert (process.codes, len(process.said)) == ([8], 1)
    never.set()
    process.dog.close()


def test_it_says_what_it_was_told_last_to_say() -> None:
    process, said = Process(Clock()), []
    process.dog.say_instead(lambda error, stacks: said.append((error.verdict, stacks)))
    process.dog.start()
    assert process.over.wait(PATIENCE_SECONDS)
    process.dog.close()
    assert (process.codes, process.said) == ([8], [])
    ((verdict, stacks),) = said
    assert verdict == "stalled"
    assert "thread MainThread:" in stacks


def test_a_main_thread_that_comes_back_during_the_last_words_goes_no_further() -> None:
    process = Process(Clock())
    process.dog.start()
    assert process.over.wait(PATIENCE_SECONDS)
    comes_back = threading.Thread(target=process.dog.say_instead, args=(process._hear,), daemon=True)
    comes_back.start()
    comes_back.join(0.2)
    assert comes_back.is_alive()
    process.dog._speaking.release()  # or it would wait until the end of the tests
    comes_back.join(PATIENCE_SECONDS)
    process.dog.close()
