"""A child never rests on a name that a power cut can still take: whoever wrote it may have been killed too early."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from pretrain import files, lineage, syscalls
from pretrain.evidence import checkpoint, namespace
from tests.loop.systems import Watched
from tests.tiny import go_on, tiny, train


class Syncs(Watched):
    """The real system, which notes each folder that is synced or made, by its path, in the order of time."""

    def __init__(self) -> None:
        self.done: list[tuple[str, Path]] = []
        self.paths: dict[int, Path] = {}

    def visit(self, name: str, real: Any, arguments: tuple[Any, ...]) -> Any:
        result = real(*arguments)
        if name == "open":
            self.paths[result] = Path(arguments[0])
        if name == "fsync":
            self.done.append((name, self.paths[arguments[0]]))
        if name == "mkdir":
            self.done.append((name, Path(arguments[0])))
        return result

    def is_synced_before_a_birth(self, folder: Path) -> bool:
        born = next((at for at, (name, path) in enumerate(self.done) if name == "mkdir"), len(self.done))
        return ("fsync", folder) in self.done[:born]


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    system = Syncs()
    monkeypatch.setattr(syscalls, "system", system)
    return system


SHORT = ("training.max_steps=4", "checkpoint.checkpoint_every_n_steps=2")


def test_the_checkpoint_that_a_child_binds(tmp_path: Path, syncs: Syncs) -> None:
    train(tiny(tmp_path, "text", *SHORT), stop_after=3)
    attempt = namespace.attempt_folder(tmp_path / "run", 1)
    _, place = checkpoint.list_checkpoints(attempt)[-1]
    syncs.done.clear()
    go_on(tmp_path / "run")
    assert syncs.is_synced_before_a_birth(place)


def test_the_manifest_that_a_child_binds_or_that_is_called_done(tmp_path: Path, syncs: Syncs) -> None:
    train(tiny(tmp_path, "text", *SHORT))
    attempt = namespace.attempt_folder(tmp_path / "run", 1)
    syncs.done.clear()
    assert go_on(tmp_path / "run").attempt == 1
    assert syncs.done == [("fsync", attempt)], "nothing was to be done, and the manifest is durable"
    syncs.done.clear()
    assert go_on(tmp_path / "run", "training.max_steps=6").attempt == 2
    assert syncs.is_synced_before_a_birth(attempt)


class FailsAtTheLastName(Syncs):
    """Lets a manifest be renamed into place, and then fails to make its name durable."""

    def visit(self, name: str, real: Any, arguments: tuple[Any, ...]) -> Any:
        if name == "fsync" and (self.paths[arguments[0]] / namespace.MANIFEST).exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().visit(name, real, arguments)


def test_a_manifest_whose_name_could_not_be_made_durable(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(syscalls, "system", FailsAtTheLastName())
        ended = train(tiny(tmp_path, "text", *SHORT))
    assert (ended.exit_code, ended.verdict) == (6, "storage")
    attempt = namespace.attempt_folder(tmp_path / "run", 1)
    assert not (attempt / "outcome.json").exists(), "it is done, and says that it is not"
    assert lineage.verify(attempt).ok
    assert go_on(tmp_path / "run").exit_code == 0, "nothing is left to do"


def test_the_folders_that_a_run_was_begun_in(tmp_path: Path, syncs: Syncs) -> None:
    run = tmp_path / "runs" / "run"
    (run / "attempts").mkdir(parents=True)
    train(tiny(tmp_path, "text", *SHORT, run="runs/run"))
    assert syncs.is_synced_before_a_birth(run.parent)
    assert syncs.is_synced_before_a_birth(run)


def test_a_run_folder_in_one_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may write there but not list it finds its run.dir made by somebody else."""
    (tmp_path / "run").mkdir()
    may = os.access

    def may_not_read(path: Path, mode: int) -> bool:
        return Path(path) != tmp_path and may(path, mode)

    def denied(path: Path) -> None:
        raise AssertionError(f"{path} was opened")

    monkeypatch.setattr(os, "access", may_not_read)
    monkeypatch.setattr(files, "fsync_folder", denied)
    files.make_folder(tmp_path / "run", is_durable=False)
