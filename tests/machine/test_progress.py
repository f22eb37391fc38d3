"""Every place that counts progress: the number rises with each piece of the real work, and no place is unlisted."""

import ast
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pretrain import files, reading
from pretrain.data.byte_source import FileBytes
from pretrain.data.text import TextSettings as TextSource
from pretrain.data.text import build_text as open_text
from pretrain.data.windows import Indices
from pretrain.evidence.checkpoint import load_checkpoint
from pretrain.gradients import accumulate
from pretrain.machine.signals import StopRequest
from pretrain.models import DecoderSettings, build_decoder
from pretrain.replay import Conditions, Twin
from pretrain.tasks import Task, TextSettings, build_text
from pretrain.telemetry.trackers import feed
from pretrain.validation import Validator
from tests.contract.rows import Tokens
from tests.data.test_loader import Numbers, make
from tests.evidence.checkpoint_samples import like, save
from tests.gradients.masked import CPU, MaskedSquares, cut
from tests.loop.test_full_disk import Waiting
from tests.machine.moves import counting, moves, places
from tests.machine.test_thermometer import thermometer
from tests.optimizers.parts import HIDDEN, parameters, take_steps
from tests.optimizers.test_galore import build as build_galore
from tests.telemetry.test_trackers import Fed
from tests.tiny import tiny, train

Work = Callable[[], object]
Case = Callable[[Path, pytest.MonkeyPatch], tuple[Work, int]]

BLOCKS = 3
STATE = {"model.a": torch.zeros(BLOCKS, reading.BLOCK // 4), "model.b": torch.zeros(4)}
TASK = build_text(TextSettings(), Tokens(), 12)


def model_of(task: Task) -> nn.Module:
    return build_decoder(DecoderSettings(width=16, heads=2, kv_heads=1), task.input_spec, task.max_positions, 1)


class Held:
    """Windows that lie in memory, so that reading them counts nothing."""

    def __init__(self, count: int) -> None:
        self.tokens = torch.arange(count * 13).view(count, 13) % 16

    def __len__(self) -> int:
        return len(self.tokens)

    def read(self, indices: Indices) -> torch.Tensor:
        return self.tokens[torch.from_numpy(indices)]

    def labels(self, indices: Indices) -> tuple[str, ...]:
        return ("",) * len(indices)


def validator(fitted: int, scored: int, task: Task = TASK) -> Validator:
    """A validation of so many windows in batches of four, beside baselines that are fitted on so many."""
    held: list[Any] = [Held(fitted), Held(scored)]
    return Validator(task, held[0], {"held": held[1]}, 4, "float32", CPU)


def large(folder: Path) -> Path:
    path = folder / "large"
    path.write_bytes(bytes(BLOCKS * reading.BLOCK))
    return path


def saves(folder: Path, _: pytest.MonkeyPatch) -> tuple[Work, int]:
    return lambda: save(folder / "step", STATE), 1 + BLOCKS + 1 + 1  # the header, both tensors, the record


def appends(folder: Path, _: pytest.MonkeyPatch) -> tuple[Work, int]:
    stream = files.Appender(folder / "stream")
    return lambda: [stream.append(b"row\n") for _ in range(4)] + [stream.close()], 4


def reads_back(folder: Path, _: pytest.MonkeyPatch) -> tuple[Work, int]:
    path = large(folder)
    return lambda: list(reading.read_blocks(path)), BLOCKS + 1  # and the end


def hashes(folder: Path, _: pytest.MonkeyPatch) -> tuple[Work, int]:
    path = large(folder)
    return lambda: reading.verify_all([(path, BLOCKS * reading.BLOCK, "0" * 64)]), BLOCKS


def hashes_data(folder: Path, _: pytest.MonkeyPatch) -> tuple[Work, int]:
    path = large(folder)
    return lambda: FileBytes(path), BLOCKS


def loads(folder: Path, _: pytest.MonkeyPatch) -> tuple[Work, int]:
    save(folder / "step", STATE)
    return lambda: load_checkpoint(folder / "step", like(STATE)), 2 + len(STATE)  # the header in two parts


def reads_data(folder: Path, _: pytest.MonkeyPatch) -> tuple[Work, int]:
    windows = open_text(TextSource(str(large(folder))), sequence_length=8, stride=None, seed=1, name="large")
    return lambda: windows.read(np.arange(5, dtype=np.int64)), 5


def looks_at_data(folder: Path, _: pytest.MonkeyPatch) -> tuple[Work, int]:
    for number in range(6):
        (folder / f"{number}.txt").write_text("a document")
    windows = open_text(TextSource(str(folder)), sequence_length=8, stride=None, seed=1, name="folder")
    return windows.check_unchanged, 6


def builds_steps(_: Path, __: pytest.MonkeyPatch) -> tuple[Work, int]:
    loader = make(Numbers(40), batch_size=2, k=3)
    return lambda: [loader.next_step() for _ in range(2)], 2 * 3


def steps(folder: Path, _: pytest.MonkeyPatch) -> tuple[Work, int]:
    config = tiny(folder, "text", "training.max_steps=5")
    return lambda: train(config), 5


def accumulates(_: Path, __: pytest.MonkeyPatch) -> tuple[Work, int]:
    step = cut(torch.ones(8, 6), [2, 2, 2, 2])
    return lambda: accumulate(nn.Linear(6, 6), MaskedSquares(), step, CPU, nullcontext()), 4


def validates(_: Path, __: pytest.MonkeyPatch) -> tuple[Work, int]:
    one, model = validator(4, 22), model_of(TASK)
    return lambda: one.run(model, StopRequest()), 2 * 6  # the baselines first


def fits_baselines(_: Path, __: pytest.MonkeyPatch) -> tuple[Work, int]:
    one, model = validator(3 * 256 + 1, 4), model_of(TASK)
    return lambda: one.run(model, StopRequest()), 4


def looks_at_samples(_: Path, __: pytest.MonkeyPatch) -> tuple[Work, int]:
    twin = Twin(
        model_of(TASK), lambda model: torch.optim.SGD(model.parameters()), Conditions(TASK, CPU, "float32", 0, 1)
    )
    step = cut(Held(6).tokens, [2, 2, 2])
    return lambda: twin.look(step), 3


def decomposes(_: Path, __: pytest.MonkeyPatch) -> tuple[Work, int]:
    named = parameters()
    optimizer = build_galore("adamw", named)
    return lambda: take_steps(optimizer, named, range(8)), 2 * len(HIDDEN)  # in the first step and the eighth


def cools_down(_: Path, __: pytest.MonkeyPatch) -> tuple[Work, int]:
    guard, _clock, _left = thermometer(90.0, gpu_temp_poll_interval_seconds=0.95)
    guard.poll()
    return lambda: guard.wait(StopRequest()), 10


def waits_for_space(_: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Work, int]:
    waiting = Waiting(monkeypatch, good_from=0.95)
    waiting.wait._clock = lambda: round(waiting.clock.now, 6)
    return lambda: waiting.wait(waiting.work), 10


def gives_up_a_tracker(_: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Work, int]:
    """One that hangs, by a clock that only waiting for it moves."""
    release, naps = threading.Event(), list[float]()
    fed = Fed({"close": release.wait})
    monkeypatch.setattr(feed, "time", SimpleNamespace(monotonic=lambda: round(sum(naps), 6)))
    thread = fed.feed._thread

    def close() -> None:
        fed.feed._thread = SimpleNamespace(is_alive=lambda: True, join=naps.append)  # type: ignore[assignment]
        fed.feed.close()
        release.set()
        thread.join()

    return close, 50


TABLE: list[tuple[str, Case]] = [
    ("data/byte_source.py: FileBytes._fill", reads_data),
    ("data/byte_source.py: FileBytes.check_unchanged", looks_at_data),
    ("data/loader.py: _Plan.build_step", builds_steps),
    ("evidence/safetensors_file.py: ShardFile.read_into", loads),
    ("reading.py: _blocks", reads_back),
    ("reading.py: _hash", hashes),
    ("reading.py: _hash", hashes_data),
    ("files.py: _write_fully", appends),
    ("files.py: _write_fully", saves),
    ("gradients.py: accumulate", accumulates),
    ("loop/steps.py: train", steps),
    ("loop/storage.py: DiskWait._nap", waits_for_space),
    ("machine/thermometer.py: Thermometer.wait", cools_down),
    ("optimizers/galore.py: GaLore.step", decomposes),
    ("replay.py: Twin.look", looks_at_samples),
    ("telemetry/trackers/feed.py: Feed.close", gives_up_a_tracker),
    ("validation.py: Validator._reference_batches", fits_baselines),
    ("validation.py: _add", validates),
]


@pytest.mark.parametrize(("place", "case"), TABLE, ids=[case.__name__ for _, case in TABLE])
def test_each_piece_of_work_counts(place: str, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, times = case(tmp_path, monkeypatch)
    with moves() as found:
        work()
    assert found[place] == times, found


def test_every_place_that_counts_has_a_row_above() -> None:
    found = places()
    assert set(found) == {place for place, _ in TABLE}
    assert set(found.values()) == {1}, "a row tells one place in a function from none, not two from one"


@pytest.mark.parametrize(
    "text",
    [
        "from pretrain.progress import moved",
        "import pretrain.progress as p",
        "from pretrain import files, progress as p",
        "class A:\n    def f(self):\n        def g():\n            return progress.moved",
        "def f():\n    h(lambda: progress.moved())",
    ],
)
def test_a_place_is_found_however_it_is_written(text: str) -> None:
    (found,) = counting(ast.parse(text))
    assert "imports" in found or found in ("A.f.<locals>.g", "f.<locals>.<lambda>")
