"""Going back: which checkpoints can be gone back to, and the trajectory put back as one."""

from collections.abc import Mapping
from pathlib import Path

from pretrain.evidence import checkpoint, incident, rows
from pretrain.loop.parts import LoopParts, show
from pretrain.optimizers import set_learning_rate
from pretrain.policy.recovery import Decision, Target, newest_targets
from pretrain.telemetry.sink import Note, WentBack


def keep_target(parts: LoopParts) -> None:
    """Remember the checkpoint of the regular cadence that was just saved, and keep copies of the newest in memory."""
    state, kept = parts.state, parts.config.spikes.targets_in_memory
    folder = checkpoint.folder_of(parts.writer.folder, state.step)
    limit_targets(parts, {**parts.targets, Target(state.step, state.batch): folder})
    spare = None
    while len(parts.memory) >= max(kept, 1):
        spare = parts.memory.pop(min(parts.memory))
    if kept:
        parts.memory[state.step] = state.snapshot(spare)


def limit_targets(parts: LoopParts, found: Mapping[Target, Path]) -> None:
    """Let the run go back to the newest of these alone, so that it goes to the same ones wherever it was stopped."""
    parts.targets = {target: found[target] for target in newest_targets(found, parts.state.ledger.ladder)}


def forget_targets(parts: LoopParts, steps: tuple[int, ...]) -> None:
    """Forget what was pruned from this attempt; an ancestor's checkpoints are never pruned."""
    here = {checkpoint.folder_of(parts.writer.folder, step) for step in steps}
    parts.targets = {target: folder for target, folder in parts.targets.items() if folder not in here}


def roll_back(parts: LoopParts, decision: Decision) -> None:
    """Put the whole trajectory back to the decision's target, and skip the data that led here.

    Parameters, optimizer state, generators, loader and statistics go back together; the ledger stays. Checkpoints of
    undone steps are removed once the row that says so is durable; a process killed anywhere here finds the target, the
    data and the rules unchanged, and comes to the same rows again.
    """
    state, writer, target, ladder = parts.state, parts.writer, decision.target, decision.state
    assert target is not None
    undone = state.step - target.step
    parts.spent.undo(target.step)
    batch = state.batch - 1
    if target.step in parts.memory:
        state.go_back(parts.memory[target.step])
    else:
        generators = state.generators()
        record = checkpoint.load_checkpoint(parts.targets[target], state.state_tensors(), generators)
        state.restore_trajectory(record.step, record.batch, record.scalars)
        state.restore_generators(generators)
    state.ledger.ladder = ladder
    state.ledger.best = tuple((step, value) for step, value in state.ledger.best if step <= target.step)
    first, last = next(window for window in ladder.quarantined if window[0] <= batch <= window[1])
    state.loader.skip_steps(last + 1 - state.batch)
    state.batch = last + 1
    set_learning_rate(state.optimizer, parts.learning_rate(state.step))
    writer.row(
        rows.rolled_back(
            step=state.step,
            batch=batch,
            undone_steps=undone,
            rung=ladder.rung,
            quarantined=(first, last),
            learning_rate_factor=ladder.learning_rate_factor,
            incident=state.ledger.incidents,
        )
    )
    writer.sync()
    undone_here = tuple(step for step in writer.saved if step > target.step)
    writer.prune(undone_here)
    parts.targets = {kept: folder for kept, folder in parts.targets.items() if kept.step <= target.step}
    parts.memory = {step: copy for step, copy in parts.memory.items() if step <= target.step}
    parts.last_durable_step = target.step
    text = (
        f"to step {target.step}: {undone} steps undone, batches {first} to {last} are not read again, "
        f"{incident.short_name_of(state.ledger.incidents)}"
    )
    writer.event("rolled_back", state.step, undone_steps=undone)
    show(parts, WentBack(step=state.step, undone_steps=undone))
    show(parts, Note(kind="warning", text=f"rolled back {text}"))
