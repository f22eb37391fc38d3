"""What a checkpoint holds, and where two differ, as plain values and as text: no pickle, no code, no torch."""

from pathlib import Path
from typing import Any

from pretrain.errors import ConfigError
from pretrain.evidence import checkpoint, namespace
from pretrain.evidence.checkpoint_record import RECORD_NAME


def inspect(path: Path, other: Path | None = None) -> dict[str, Any]:
    """Return the answer of `inspect-checkpoint --json`; `differs` is null unless there is an `other`.

    path: a checkpoint folder or its checkpoint.json. Every file is verified on the way: IntegrityError.
    """
    answer = checkpoint.describe(_folder(path))
    differs = None if other is None else list(checkpoint.compare(_folder(path), _folder(other)).names)
    return {**answer, "differs": differs}


def as_text(answer: dict[str, Any]) -> str:
    """Return the answer as lines for a person."""
    tensors = answer["tensors"]
    width = max((len(row["name"]) for row in tensors), default=0)
    lines = [
        f"step {answer['step']}, {len(tensors)} tensors, optimizer state {answer['optimizer_bytes']:,} bytes",
        f"record  {answer['record_sha256']}",
        f"content {answer['content_sha256']}",
    ]
    if answer["differs"] is not None:
        lines.append(f"{len(answer['differs'])} tensors differ" + (":" if answer["differs"] else ""))
        lines += [f"  {name}" for name in answer["differs"]]
    for row in tensors:
        shape = "x".join(str(size) for size in row["shape"]) or "scalar"
        lines.append(f"  {row['name']:<{width}}  {row['dtype']:<5} {shape:<14} {row['sha256'][:16]}")
    return "\n".join(lines) + "\n"


def _folder(path: Path) -> Path:
    folder = path.parent if path.name == RECORD_NAME else path
    if not folder.is_dir() or not (folder.name.startswith("step_") or (folder / RECORD_NAME).exists()):
        raise ConfigError(
            f"{path}: expected a checkpoint folder such as RUN/attempts/0001/checkpoints/step_00000100{_there(folder)}"
        )
    return folder


def _there(folder: Path) -> str:
    """Name the checkpoints of an attempt, or of a run's newest one, where `folder` is that."""
    attempt = namespace.attempt_meant(folder)
    if attempt is None:
        return ""
    saved = [str(place) for _, place in checkpoint.list_checkpoints(attempt)]
    return f"; there are {', '.join(saved)}" if saved else "; there is none in it"
