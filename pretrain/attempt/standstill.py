"""Whether the newest attempts of a run have come and gone without a checkpoint, so that none of them brought it on."""

from pathlib import Path

from pretrain.evidence import checkpoint, namespace

_ATTEMPTS = 3


def standstill(run_dir: Path, number: int, step: int, every_n_steps: int) -> list[str]:
    """Return what to tell of the attempts right before `number`, which goes on from `step`; of fewer than 3, nothing.

    every_n_steps: between two checkpoints.
    """
    barren: list[int] = []
    for earlier in reversed(namespace.list_attempts(run_dir)):
        if earlier >= number:
            continue
        if checkpoint.list_checkpoints(namespace.attempt_folder(run_dir, earlier)):
            break
        barren.append(earlier)
    if len(barren) < _ATTEMPTS:
        return []
    return [
        f"no progress in {len(barren)} attempts: {barren[-1]:04d} to {barren[0]:04d} left no checkpoint, and the run "
        f"stands at step {step}; one is saved every {every_n_steps} steps (checkpoint.checkpoint_every_n_steps), and "
        "when a signal ends an attempt: let one live longer, or end it by SIGTERM"
    ]
