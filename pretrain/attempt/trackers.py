"""The trackers of an attempt, each behind a feed of its own."""

from functools import partial
from pathlib import Path
from typing import Any

from pretrain.attempt.origin import Origin
from pretrain.attempt.prepare import Prepared
from pretrain.config import leaves, tree_of
from pretrain.loop import LoopParts, warn
from pretrain.telemetry.trackers import TRACKERS, TrackedRun
from pretrain.telemetry.trackers.feed import Feed


def open_feeds(parts: LoopParts, prepared: Prepared, run_dir: Path, origin: Origin | None) -> list[Feed]:
    """Return a sink for each tracker of the config; what happens to one is shown and stands in events.jsonl."""
    run = TrackedRun(
        folder=run_dir,
        identity=prepared.identity,
        attempt=parts.writer.number,
        step=parts.state.step,
        goes_on=origin is not None,
        config=dict(leaves(tree_of(prepared.config))),
    )
    chosen: dict[str, Any] = prepared.config.telemetry.trackers
    return [
        Feed(name, partial(TRACKERS[name].build, settings, run), partial(warn, parts))
        for name, settings in chosen.items()
    ]
