"""TensorBoard: one folder of event files for all attempts of a run, so that a resume goes on in the same curves."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pretrain.telemetry.trackers.tracker import TrackedRun

NAME = "tensorboard"
_FLUSH_SECONDS = 1  # what a kill may cost; the library's own thread writes that often


@dataclass(frozen=True)
class TensorBoardSettings:
    """Curves for `tensorboard --logdir`.

    folder: where the event files lie; null = `tensorboard` in the run's folder.
    """

    folder: str | None = None


def tensorboard_command(settings: TensorBoardSettings, run_dir: Path) -> str:
    """Return the command that shows the curves."""
    return f"tensorboard --logdir {shlex.quote(str(_folder(settings, run_dir)))}"


def _folder(settings: TensorBoardSettings, run_dir: Path) -> Path:
    return run_dir / NAME if settings.folder is None else Path(settings.folder)


class TensorBoardTracker:
    """Writes scalars, as float32, with the library's own writer: its files are no evidence, and none of files.py.

    What was undone is purged: a START of the session at step n hides all that was written before of step n and later.
    """

    def __init__(self, settings: TensorBoardSettings, run: TrackedRun) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from torch.utils.tensorboard import SummaryWriter

        folder = _folder(settings, run.folder)
        purge = run.step + 1 if run.goes_on else None
        self._writer = SummaryWriter(str(folder), purge_step=purge, flush_secs=_FLUSH_SECONDS)
        self._event, self._session = Event, SessionLog

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add one scalar for each value."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def went_back(self, step: int) -> None:
        """Purge the later steps, in the file that is open: a second one could be read in the wrong order."""
        start = self._session(status=self._session.START)
        self._writer.file_writer.add_event(self._event(step=step + 1, session_log=start))

    def close(self) -> None:
        """Write what is left and close the file."""
        self._writer.close()
