"""What an attempt comes to: the answer that `train` and `resume` print with --json."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pretrain.evidence.checkpoint import SavedCheckpoint


@dataclass(frozen=True)
class AttemptResult:
    """How an attempt ended. verdict: `done`, or that of outcome.json. validation: the newest figures by domain."""

    verdict: str
    exit_code: int
    attempt: int
    step: int
    manifest_sha256: str | None = None
    checkpoint: SavedCheckpoint | None = None
    validation: Mapping[str, Any] = field(default_factory=dict)

    def answer(self) -> dict[str, Any]:
        """Return the object that the command line prints."""
        saved = self.checkpoint
        return {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "attempt": self.attempt,
            "step": self.step,
            "manifest_sha256": self.manifest_sha256,
            "checkpoint": saved and {"step": saved.step, "record_sha256": saved.record_sha256},
            "validation": dict(self.validation),
        }


Answer = Callable[[AttemptResult], object]


def unheard(result: AttemptResult) -> None:
    """Take a result that nobody asked for."""
