"""Exhausted memory is exit code 9 with what to change, and the run goes on from its checkpoint as if untouched."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain import syscalls
from pretrain.attempt.memory import remedy
from pretrain.batch import Batch
from pretrain.errors import OutOfMemoryRunError
from pretrain.machine.memory import is_exhausted
from tests.loop.lineages import end_of
from tests.loop.probes import Unsynced, hook_loss, newest_attempt
from tests.tiny import go_on, tiny, train

ROOT = Path(__file__).parents[2]
CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "4096 bytes. Error code 12 (Cannot allocate memory)"
)
FAULTS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore"),
    RuntimeError(CPU),
    RuntimeError("[enforce fail at alloc_cpu.cpp:81] data. DefaultCPUAllocator: not enough memory: you tried ..."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    MemoryError(),
]


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "system", Unsynced())


def raising(error: BaseException, position: int) -> Any:
    """A hook of the loss that raises at one micro-batch."""

    def hook(batch: Batch, loss: torch.Tensor) -> torch.Tensor:
        if batch.position == position:
            raise error
        return loss

    return hook


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_it_ends_with_9_and_what_to_change(
    fault: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tiny(tmp_path, "text", run="whole"))
    with monkeypatch.context() as patch:
        hook_loss(patch, raising(fault, 4 * 6 + 2))  # the second micro-batch of the seventh step
        result = train(tiny(tmp_path, "text"))
    assert (result.verdict, result.exit_code, result.step) == ("out_of_memory", 9, 6)
    record = json.loads((newest_attempt(tmp_path / "run") / "outcome.json").read_text())
    assert (record["verdict"], record["exit_code"], record["step"], record["batch"]) == ("out_of_memory", 9, 6, 6)
    assert record["checkpoint"]["step"] == 4
    assert record["resume"] == f"pretrain resume --attempt {tmp_path / 'run'}"
    said = (str(fault).splitlines() or [type(fault).__name__])[0]
    assert record["reason"].startswith(f"batch 6 at step 6: {said}; a micro-batch holds 2 windows of 16: ")
    assert "training.batch_size=1 training.gradient_accumulation_steps=4," in record["reason"]
    assert "a shorter data.sequence_length than 16" in record["reason"]
    assert go_on(tmp_path / "run").verdict == "done"
    assert end_of(tmp_path / "run") == end_of(tmp_path / "whole")


def test_no_room_for_the_update_or_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr("pretrain.loop.updates.UpdateNorm.after", full)  # the update is made, its step is not
        result = train(tiny(tmp_path, "text"))
    assert (result.verdict, result.checkpoint and result.checkpoint.step) == ("out_of_memory", 0)
    assert go_on(tmp_path / "run").verdict == "done"
    train(tiny(tmp_path, "text", run="whole"))
    assert end_of(tmp_path / "run") == end_of(tmp_path / "whole")
    monkeypatch.setattr(torch.nn.Module, "to", full)
    with pytest.raises(OutOfMemoryRunError, match=r"before the first step: no room; .* or a smaller model"):
        train(tiny(tmp_path, "text", run="unborn"))
    assert not (tmp_path / "unborn").exists()


def test_other_faults_are_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_exhausted(RuntimeError("a shape is wrong"))
    assert not is_exhausted(ValueError("out of memory"))
    hook_loss(monkeypatch, raising(RuntimeError("a shape is wrong"), 0))
    with pytest.raises(RuntimeError, match="a shape is wrong"):
        train(tiny(tmp_path, "text"))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("training.batch_size=16",), "training.batch_size=8 training.gradient_accumulation_steps=4, which takes the "),
        (("training.batch_size=15",), "training.batch_size=5 training.gradient_accumulation_steps=6, which takes the "),
        (("training.batch_size=7",), "training.batch_size=1 training.gradient_accumulation_steps=14, which takes "),
        (("training.batch_size=1",), "start another run with training.activation_checkpointing=full, which makes"),
        (
            ("training.batch_size=1", "training.activation_checkpointing=full", "task.chunk_tokens=64"),
            "start another run with a shorter data.sequence_length than 16, or a smaller model",
        ),
        (("training.activation_checkpointing=full",), "task.chunk_tokens=1024, which makes logits for so many"),
        (("validation.batch_size=8",), "or validation.batch_size=2, or"),
    ],
)
def test_the_remedy_has_the_numbers(overrides: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    assert expected in remedy(tiny(tmp_path, "text", *overrides))


LIMITED = """
import resource, sys
from pathlib import Path
from tests.loop.probes import hook_loss
from tests.tiny import tiny, train
import pytest, torch

def greedy(batch, loss):
    if batch.position >= 20:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
        return loss + torch.empty(1 << 30)[:1].sum() * 0
    return loss

hook_loss(pytest.MonkeyPatch(), greedy)
sys.exit(train(tiny(Path(sys.argv[1]), "text")).exit_code)
"""


def test_the_allocator_of_the_cpu_itself(tmp_path: Path) -> None:
    words = [sys.executable, "-c", LIMITED, tmp_path]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 9, done.stderr
    record = json.loads((newest_attempt(tmp_path / "run") / "outcome.json").read_text())
    assert "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4294967296 bytes" in record["reason"]
    assert go_on(tmp_path / "run").verdict == "done"
