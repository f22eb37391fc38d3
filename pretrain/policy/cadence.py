"""When something that happens every n steps is due."""


def is_due(step: int, every: int) -> bool:
    """Whether what is done every `every` completed steps (0 = never) is due after `step` steps, not at 0."""
    return every > 0 and step > 0 and step % every == 0


def is_due_or_last(step: int, every: int, max_steps: int) -> bool:
    """Like `is_due`, and at the last step of the run too; `every` = 0 is never, at the last step either."""
    return is_due(step, every) or (every > 0 and step == max_steps)


def is_on_cadence(step: int, every: int) -> bool:
    """Whether a checkpoint of `step` belongs to the regular cadence: step 0 and every multiple of `every`."""
    return step % every == 0
