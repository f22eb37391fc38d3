"""The feed of a tracker: what it is shown, and that nothing it does comes back to the one who emits."""

import importlib.util
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pretrain.errors import ConfigError
from pretrain.telemetry.sink import Begin, Event, MonitorShown, Note, StepRow, ValidationShown, WentBack
from pretrain.telemetry.trackers import TRACKERS, TrackerEntry, check_installed, feed, places
from pretrain.telemetry.trackers.feed import Feed, row_of
from pretrain.telemetry.trackers.tensorboard import TensorBoardSettings
from pretrain.telemetry.trackers.wandb import WandbSettings

PATIENCE_SECONDS = 30


def row(step: int, action: str = "accept") -> StepRow:
    return StepRow(attempt=1, step=step, batch=step - 1, loss=step / 2, learning_rate=0.5, action=action)


class Fake:
    """A tracker that keeps what it is told; `at` maps open, log, went_back or close to what it does there first."""

    def __init__(self, at: dict[str, Callable[[], Any]]) -> None:
        self.calls: list[Any] = []
        self.at = at
        self._do("open")

    def _do(self, place: str) -> None:
        self.at.get(place, lambda: None)()

    def log(self, step: int, values: Any) -> None:
        self._do("log")
        self.calls.append((step, values["train/loss"]))

    def went_back(self, step: int) -> None:
        self._do("went_back")
        self.calls.append(step)

    def close(self) -> None:
        self._do("close")
        self.calls.append("closed")


class Fed:
    """A feed of a fake, and what it told."""

    def __init__(self, at: dict[str, Callable[[], Any]] | None = None) -> None:
        self.told: list[str] = []
        self.fakes: list[Fake] = []
        self.feed = Feed("fake", lambda: self._open(at or {}), self._tell)

    def _open(self, at: dict[str, Callable[[], Any]]) -> Fake:
        self.fakes.append(Fake(at))
        return self.fakes[0]

    def _tell(self, text: str) -> None:
        self.told.append(text)
        self.feed.emit(Note(kind="warning", text=text))  # as the loop does, which shows it to every sink

    def emit(self, *events: Event) -> None:
        for event in events:
            self.feed.emit(event)

    def end(self) -> None:
        """Wait for the thread to end by itself."""
        self.feed._thread.join(PATIENCE_SECONDS)
        assert not self.feed._thread.is_alive()


def fail(error: BaseException) -> Callable[[], None]:
    def raises() -> None:
        raise error

    return raises


def test_what_a_tracker_is_shown():
    taken = row_of(row(3))
    assert taken is not None
    assert (taken.step, taken.values) == (
        3,
        {"train/batch": 2, "train/loss": 1.5, "train/learning_rate": 0.5},
    )
    for action in ("skip", "fail", "roll_back"):
        refused = row_of(row(3, action))
        assert refused is not None
        assert (refused.step, refused.values["refused/loss"]) == (4, 1.5)
        assert not [name for name in refused.values if not name.startswith("refused/")]
    blocks = row_of(
        StepRow(
            **{
                **{name: getattr(row(1), name) for name in StepRow.__slots__},
                "mfu": 0.5,
                "block_gradient_norms": (0.25, None),
            }
        )
    )
    assert blocks is not None
    assert (blocks.values["train/mfu"], blocks.values["train/block_00_gradient_norm"]) == (0.5, 0.25)
    assert "train/block_01_gradient_norm" not in blocks.values
    validation = ValidationShown(
        step=4, domain="a.b", measures={"loss": 1.0}, baselines={"bigram": 2.0}, classes={"qam": 3.0}
    )
    assert row_of(validation) == feed.Row(
        4, {"validation/a.b/loss": 1.0, "validation/a.b/baseline/bigram": 2.0, "validation/a.b/class/qam": 3.0}
    )
    monitor = MonitorShown(step=5, name="rank", values={"entropy": {"block_00": 1.0, "block_01": 2.0}})
    assert row_of(monitor) == feed.Row(
        5, {"monitors/rank/entropy/block_00": 1.0, "monitors/rank/entropy/block_01": 2.0}
    )
    assert row_of(Begin(attempt="a", step=0, max_steps=1, unit="tokens")) is None
    assert row_of(Note(kind="saved", text="")) is None


def test_rows_come_in_order_and_the_tracker_is_closed():
    fed = Fed()
    fed.emit(row(1), row(2), WentBack(step=1, undone_steps=1), Note(kind="saved", text=""), row(2))
    fed.feed.close()
    fed.feed.close()
    fed.emit(row(3))
    assert fed.fakes[0].calls == [(1, 0.5), (2, 1.0), 1, (2, 1.0), "closed"]
    assert fed.told == []


@pytest.mark.parametrize("error", [RuntimeError("no\nway"), SystemExit(3), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("place", ["open", "log", "went_back", "close"])
def test_a_failure_is_told_once_and_ends_it(place: str, error: BaseException):
    fed = Fed({place: fail(error)})
    fed.emit(row(1), WentBack(step=0, undone_steps=1))
    if place != "close":
        fed.end()
        fed.emit(row(2), row(3))
    fed.feed.close()
    fed.emit(row(4))
    (told,) = fed.told
    assert told.startswith(f"telemetry.trackers.fake: {type(error).__name__}:")
    assert ("no way" in told) == isinstance(error, RuntimeError)
    assert fed.feed._waiting.qsize() <= 2, "rows are still kept for a tracker that is off"


def test_a_failure_after_the_last_row_is_told_at_the_end():
    fed = Fed({"log": fail(OSError("full"))})
    fed.emit(row(1), row(2))
    fed.feed.close()
    assert fed.told == ["telemetry.trackers.fake: OSError: full; 2 rows are lost"]


def test_whatever_an_error_says_can_be_put_on_record():
    fed = Fed({"open": fail(RuntimeError("\ud800 " + "x" * 5000))})
    fed.feed.close()
    (told,) = fed.told
    assert len(told.encode()) < 500
    assert "\\ud800" in told


@pytest.mark.parametrize(("place", "lost"), [("open", 2), ("log", 2), ("close", 0)])
def test_one_that_hangs_is_given_up(place: str, lost: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feed, "CLOSE_SECONDS", 0.2)
    release = threading.Event()
    fed = Fed({place: release.wait})
    fed.emit(row(1), row(2))
    fed.feed.close()
    assert fed.feed._thread.daemon
    assert fed.told == [f"telemetry.trackers.fake: has not ended within 0.2 seconds; {lost} rows are lost"]
    release.set()
    fed.end()
    calls = fed.fakes[0].calls
    assert calls == {"open": [], "log": [(1, 0.5)], "close": [(1, 0.5), (2, 1.0), "closed"]}[place]


def test_one_that_is_slow_loses_rows_and_no_word_of_going_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feed, "ROWS_WAITING", 3)
    inside, release = threading.Event(), threading.Event()
    fed = Fed({"log": lambda: (inside.set(), release.wait())})
    fed.emit(row(1))
    assert inside.wait(PATIENCE_SECONDS)
    fed.emit(*(row(step) for step in range(2, 12)))  # each of them returns while `log` stands still
    fed.emit(WentBack(step=2, undone_steps=9))
    assert fed.told == [
        "telemetry.trackers.fake: is too slow: 3 rows wait for it, and newer ones are dropped until it takes some"
    ]
    release.set()
    fed.feed.close()
    assert [call for call in fed.fakes[0].calls if isinstance(call, tuple)] == [(n, n / 2) for n in (1, 2, 3, 4)]
    assert fed.fakes[0].calls[-2:] == [2, "closed"]
    assert fed.told[1:] == ["telemetry.trackers.fake: was too slow; 7 rows were dropped"]


def test_what_shows_the_rows_is_said(tmp_path: Path) -> None:
    run = tmp_path / "a b"
    assert places({"tensorboard": TensorBoardSettings(), "wandb": WandbSettings()}, run) == [
        ("tensorboard", f"tensorboard --logdir '{run}/tensorboard'"),
        ("wandb", f"wandb sync '{run}/wandb'/offline-run-*"),
    ]
    assert places({"tensorboard": TensorBoardSettings(folder="curves")}, run)[0][1] == "tensorboard --logdir curves"
    assert places({"wandb": WandbSettings(mode="online")}, run) == [("wandb", "online, project pretrain")]


def test_a_missing_library_is_refused_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "only_a_folder").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.util.find_spec("only_a_folder") is not None
    for library in ("there_is_no_such_library", "only_a_folder"):
        monkeypatch.setitem(TRACKERS, "fake", TrackerEntry(dict, Fake, library))
        with pytest.raises(
            ConfigError, match=rf"trackers\.fake: the library {library} is missing: pip install -e '\.\[fake\]'"
        ):
            check_installed(["fake"])
    check_installed([])


def test_no_library_is_imported_before_it_is_chosen():
    code = "import sys, pretrain.telemetry.trackers, pretrain.telemetry.trackers.feed; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {entry.library for entry in TRACKERS.values()} & set(done.stdout.split())


def test_every_tracker_is_an_extra_of_its_name():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
    for name, entry in TRACKERS.items():
        assert f'\n{name} = ["{entry.library}>=' in text
