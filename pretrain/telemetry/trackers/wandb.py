"""Weights & Biases: one of its runs per attempt, in one group, offline unless it is set to go online."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pretrain.errors import ConfigError
from pretrain.registry import limited
from pretrain.telemetry.trackers.tracker import TrackedRun

# At the end of the process the library waits for its uploads as well, without an end unless it is given one.
_FINISH_SECONDS = 4
_FLUSH_SECONDS = 1  # until others see a row; the library's own process writes it even when this one is killed


@dataclass(frozen=True)
class WandbSettings:
    """A project of Weights & Biases.

    project: the project that the runs belong to.
    entity: the user or team that owns it; null = the default of the account.
    mode: `offline` only writes `wandb` in the run's folder, for `wandb sync` to upload; `online` sends it as it comes,
      the settings of the run too.
    """

    project: str = "pretrain"
    entity: str | None = None
    mode: str = limited("offline", choices=("offline", "online"))


def wandb_command(settings: WandbSettings, run_dir: Path) -> str:
    """Return the command that uploads what an offline run leaves."""
    folder = shlex.quote(str(run_dir / "wandb"))
    return f"online, project {settings.project}" if settings.mode == "online" else f"wandb sync {folder}/offline-run-*"


class WandbTracker:
    """Logs rows that say of which step they are, and never by the library's own count, which cannot go back.

    A row has `step`, `attempt` and `went_back`, how often the attempt had been rolled back: of several rows of a step
    the one with the greatest attempt and then the greatest `went_back` is what the run went on from. The library does
    not resume its runs offline, so that each attempt is one, and the group is the run. It writes its files itself:
    they are no evidence, and files.py has no part in them.
    """

    def __init__(self, settings: WandbSettings, run: TrackedRun) -> None:
        import wandb

        if settings.mode == "online" and not wandb.login(prompt=False):
            raise ConfigError("no API key is known; set WANDB_API_KEY, or choose telemetry.trackers.wandb.mode=offline")
        quiet = wandb.Settings(
            silent=True,
            console="off",  # the screen is ours
            disable_git=True,
            disable_code=True,
            save_code=False,
            finish_timeout=_FINISH_SECONDS,
            x_disable_stats=True,
            x_transaction_log_flush_interval=_FLUSH_SECONDS,
        )
        self._attempt, self._times_back = run.attempt, 0
        self._run = wandb.init(
            project=settings.project,
            entity=settings.entity,
            mode=settings.mode,
            dir=str(run.folder),  # the library makes `wandb` in it
            name=f"{run.folder.name}-{run.attempt:04d}",
            group=f"{run.folder.name}-{run.identity[:8]}",
            config=dict(run.config),
            settings=quiet,
        )
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log one row."""
        told = {"step": step, "attempt": self._attempt, "went_back": self._times_back}
        self._run.log({**values, **told})

    def went_back(self, step: int) -> None:
        """Mark the rows from here on: what was logged cannot be taken back."""
        self._times_back += 1

    def close(self) -> None:
        """Finish the run, for at most a few seconds; what is not uploaded then lies in its folder."""
        self._run.finish()
