"""What a sealed incident may say: what no incident says, and what its reader has no reason to doubt by itself."""

from collections.abc import Callable, Mapping
from typing import Any

Change = Callable[[dict[str, Any]], object]


def _at(path: str, value: object) -> Change:
    """A change of a record: what it has at a path of keys and indices."""

    def change(record: dict[str, Any]) -> None:
        found: Any = record
        *above, last = (int(word) if word.isdigit() else word for word in path.split("."))
        for word in above:
            found = found[word]
        found[last] = value

    return change


REFUSED: Mapping[str, Change] = {
    "step-text": _at("step", "os.system"),
    "step-negative": _at("step", -1),
    "step-true": _at("step", True),
    "batch-none": _at("batch", None),
    "batch-2^63-1": _at("batch", 2**63 - 1),
    "batch-10^12": _at("batch", 10**12),
    "incident-2": _at("incident", 2),
    "schema-2": _at("schema", 2),
    "samples-object": _at("samples", {}),
    "samples-deep": _at("samples", [[[[[[[[]]]]]]]]),
    "sample-text": _at("samples.0", "x"),
    "loss-object": _at("samples.0.loss", {"a": 1}),
    "loss-text": _at("samples.0.loss", "1.0"),
    "loss-true": _at("samples.0.loss", True),
    "offset-elsewhere": _at("samples.0.offset", 2**62),
    "position-text": _at("samples.0.position", "0"),
    "source-number": _at("samples.0.source", 0),
    "blocks-text": _at("blocks", "blocks"),
    "norm-text": _at("blocks.0.gradient_norm", "nan nan"),
    "activations-nested": _at("activations", [[0.0]]),
    "context-more": _at("context.__class__", "x"),
    "precision-object": _at("context.precision", {}),
    "scale-text": _at("context.loss_scale", "x"),
    "history-numbers": _at("history", [1, 2]),
    "history-event": _at("history.0.event", "exec"),
    "replay-list": _at("experiments.other_batch", []),
    "replay-deep": _at("experiments.other_batch.block_gradient_norms", [[]]),
    "action-unknown": _at("action", "os.system"),
    "cause-unknown": _at("cause", "__import__"),
    "evidence-list": _at("evidence", []),
    "evidence-number": _at("evidence.for.0.value", "many"),
    "evidence-expected": _at("evidence.for.0.expected", 1),
    "remedy-none": _at("remedy", None),
    "trigger-none": _at("trigger", None),
    "more": _at("__reduce__", "os.system"),
}
READ: Mapping[str, Change] = {
    "value-nan": _at("trigger.value", "nan"),
    "rate-nan": _at("learning_rate", "nan"),
    "rate-inf": _at("learning_rate", "inf"),
    "rate-negative": _at("learning_rate", -1e308),
    "rate-huge": _at("learning_rate", 1e308),
    "peak-0": _at("context.peak_learning_rate", 0.0),
    "clip-nan": _at("context.clip_max_norm", "nan"),
    "clip-0": _at("context.clip_max_norm", 0.0),
    "scales-nan": lambda record: record["context"].update(loss_scale="nan", greatest_loss_scale="nan"),
    "scales-0": lambda record: record["context"].update(loss_scale=0.0, greatest_loss_scale=0.0),
    "uniform-0": _at("context.uniform_loss", 0.0),
    "losses-nan": lambda record: [one.update(loss="nan") for one in record["samples"]],
    "step-2^63-1": _at("step", 2**63 - 1),
    "warmup-2^63-1": _at("context.warmup_steps", 2**63 - 1),
    "norms-inf": _at("blocks.0.gradient_norm", "inf"),
    "no-samples": _at("samples", []),
    "no-blocks": _at("blocks", []),
    "no-activations": _at("activations", []),
    "more-blocks": lambda record: record["blocks"].extend([{"name": "x\x1b[2J\n", "gradient_norm": 1.0}] * 1000),
    "more-history": lambda record: record["history"].extend(record["history"] * 20_000),
    "no-history": _at("history", []),
    "no-evidence": _at("evidence", {"for": [], "against": []}),
    "terminal": _at("remedy", "\x1b]0;x\x07\x1b[2J"),
    "long": _at("phase", "x" * 1_000_000),
    "source-escaping": _at("samples.0.source", "../../../outside/secret"),
}
