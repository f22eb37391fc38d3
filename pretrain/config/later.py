"""Sections and keys that are specified and that nothing obeys yet: using one is an error that says so."""

LATER: frozenset[str] = frozenset(
    [
        "parallel",
        "training.compile",
        "data.max_repeats",
        "data.quarantine",
        "data.augment",
        "data.train.*.weight",
        "checkpoint.asynchronous",
    ]
)
