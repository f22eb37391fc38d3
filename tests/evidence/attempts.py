"""Small attempts, finished or not, written through the same functions as a real one."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from pretrain import files
from pretrain.evidence import checkpoint, manifest, metrics, namespace, rows
from pretrain.evidence.canonical import encode, seal
from pretrain.evidence.checkpoint import SavedCheckpoint
from pretrain.evidence.events import EventLog
from pretrain.evidence.metrics import EMPTY, Cursor, MetricStream
from pretrain.evidence.namespace import Parent

IDENTITY = "ab" * 32
CONFIG = b"run:\n  dir: runs/tiny\ntraining:\n  max_steps: 4\n"
SCALARS: dict[str, Any] = {
    "loader": {"epoch": 0, "position": 8},
    "ledger": {
        "retries": [],
        "rollbacks": 0,
        "rung": 0,
        "incidents": 0,
        "quarantined": [],
        "learning_rate_factor": 1.0,
        "faults_fired": [],
    },
    "guard": {},
    "spikes": {},
    "scaler": None,
    "best": [],
}


def environment(number: int, parent: Parent | None = None) -> dict[str, Any]:
    """An environment record."""
    row = {"path": "builtin:pydoc", "bytes": 9, "sha256": "cd" * 32, "windows": 3, "remainder": 1}
    return namespace.environment_record(
        attempt=number,
        parent=parent,
        versions={"python": "3.11.7"},
        device="cpu",
        threads=1,
        cpu_capability="AVX2",
        determinism={"tf32": False},
        data=[{"domain": "train.prose", **row}],
        tokenizer_sha256=None,
    )


def tensors(step: int) -> dict[str, torch.Tensor]:
    """A small state, another one for every step."""
    generator = torch.Generator().manual_seed(step)
    return {
        "model.weight": torch.randn(8, 5, generator=generator),
        "optimizer.weight.exp_avg": torch.randn(8, 5, generator=generator),
        "rng.cpu": torch.randint(0, 256, (32,), generator=generator, dtype=torch.uint8),
    }


def step_row(step: int) -> dict[str, Any]:
    """The row of one step."""
    return rows.step(
        step=step,
        batch=step - 1,
        loss=5.0 / step,
        learning_rate=0.001,
        gradient_norm=1.5,
        clip_ratio=1.0,
        supervised=64,
    )


def save(attempt: Path, step: int, cursor: Cursor) -> SavedCheckpoint:
    """A checkpoint of `step` that binds `cursor`."""
    return checkpoint.save_checkpoint(
        checkpoint.folder_of(attempt, step),
        tensors(step),
        step=step,
        batch=step,
        identity_sha256=IDENTITY,
        layout={},
        metrics=cursor,
        scalars=SCALARS,
    )


def begin_attempt(run_dir: Path, number: int = 1, parent: Parent | None = None, prefix: Iterable[bytes] = ()) -> Path:
    """The folder of a new attempt."""
    return namespace.create(run_dir, number, CONFIG, environment(number, parent), prefix)


def train(attempt: Path, first: int, last: int, cursor: Cursor = EMPTY) -> tuple[SavedCheckpoint, Cursor]:
    """Rows of the steps after `first` up to `last`, a checkpoint every second one; returns the last of both."""
    stream = MetricStream(attempt / metrics.NAME, cursor)
    events = EventLog(attempt / "events.jsonl", clock=lambda: 1.7e9)
    files.publish(attempt / "telemetry.csv", b"attempt,step\n1,1\n")
    events.write("start", first)
    if first == 0:
        stream.append(rows.begin(task="text", parameters=80))
        saved = save(attempt, 0, EMPTY)
    for step in range(first + 1, last + 1):
        stream.append(step_row(step))
        if step == 3:
            stream.append(
                rows.skipped(
                    step=step,
                    batch=step,
                    reason="non_finite_loss",
                    loss=float("nan"),
                    gradient_norm=float("inf"),
                    largest=None,
                    retries=1,
                )
            )
        if step % 2 == 0:
            stream.append(rows.validation(step=step, domain="prose", samples=4, loss=2.0 / step))
            stream.sync()
            saved = save(attempt, step, stream.cursor)
            events.write("saved", step)
    stream.sync()
    stream.close()
    events.close()
    return saved, stream.cursor


def finish(attempt: Path, saved: SavedCheckpoint, cursor: Cursor, parent: Parent | None = None) -> str:
    """Publish the manifest and return its SHA-256."""
    built = manifest.build_manifest(
        attempt,
        number=int(attempt.name),
        step=saved.step,
        batch=saved.step + 1,
        identity_sha256=IDENTITY,
        bit_exact=True,
        reasons=[],
        validation="held out",
        parent=parent,
        latest=manifest.Latest(saved.step, saved.record_sha256),
        best=[manifest.Best(saved.step, 0.5, saved.record_sha256)],
        metrics_cursor=cursor,
    )
    return manifest.publish_manifest(attempt, built)


def finished_attempt(run_dir: Path, number: int = 1) -> tuple[Path, str]:
    """A whole attempt of four steps and three checkpoints, and the SHA-256 of its manifest."""
    attempt = begin_attempt(run_dir, number)
    saved, cursor = train(attempt, 0, 4)
    return attempt, finish(attempt, saved, cursor)


def rewrite(path: Path, change: dict[str, Any]) -> bytes:
    """The record at `path` with other fields and a digest that is right again, as a forger would write it."""
    record = {**json.loads(path.read_bytes()), **change}
    record.pop("self_sha256")
    return encode(seal(record))


def set_at(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change of a record: what it has at a path of keys and indices."""
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]

    def change(whole: dict[str, Any]) -> None:
        inner: Any = whole
        for part in parents:
            inner = inner[part]
        inner[last] = value

    return change
