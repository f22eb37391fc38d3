"""One finished run and one that was stopped, made once by the command line; and signals put back as they were."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pretrain.machine.signals import STOP_SIGNALS
from tests.cli.calling import pretrain
from tests.tiny import tiny, train, write_config


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    assert pretrain("train", "--config", write_config(folder), f"run.dir={folder / 'finished'}", "--quiet").code == 0
    for number, handler in handlers.items():
        signal.signal(number, handler)
    assert train(tiny(folder, run="stopped"), stop_after=6).verdict == "interrupted"
    return folder


@pytest.fixture
def finished(made: Path, tmp_path: Path) -> Path:
    """A run of its own whose attempt 0001 is done at step 12."""
    return shutil.copytree(made / "finished", tmp_path / "finished")


@pytest.fixture
def stopped(made: Path, tmp_path: Path) -> Path:
    """A run of its own whose attempt 0001 was stopped at step 6 of 12."""
    return shutil.copytree(made / "stopped", tmp_path / "stopped")
