"""Runs that several files copy, made once for each process that tests."""

import shutil
from pathlib import Path

import pytest

from tests.loop.lineages import whole_and_stopped


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_and_stopped(tmp_path_factory.mktemp("made"))


@pytest.fixture
def whole(made: Path, tmp_path: Path) -> Path:
    """A run of its own whose attempt 0001 is done at step 16."""
    return shutil.copytree(made / "whole", tmp_path / "run")


@pytest.fixture
def stopped(made: Path, tmp_path: Path) -> Path:
    """A run of its own whose attempt 0001 was stopped at step 14 of 16."""
    return shutil.copytree(made / "stopped", tmp_path / "run")
