"""How many micro-batches a step has while the batch grows to its full size, from its place in the data alone."""


def micro_batches_at(epoch: int, position: int, full: int, warmup_samples: int | None) -> int:
    """Return the micro-batches of the step that begins at `position` of an epoch: from 1 to `full`.

    warmup_samples: the first samples of the first epoch, over which each number from 1 to `full` has an equal share;
    None = no warmup. What decides is where the step lies in the data, not how many steps were completed, so that a
    refused step, a quarantined window, a rollback and a resume change no step but the ones they take.
    """
    if warmup_samples is None or epoch > 0 or position >= warmup_samples:
        return full
    return 1 + position * full // warmup_samples
