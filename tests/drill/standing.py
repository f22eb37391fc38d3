"""python -m tests.drill.standing PHASE[,PHASE] WORD...: `python -m pretrain WORD...` that stops itself at each phase.

It sends itself SIGSTOP where the phase begins, so that whoever started it can see by `waitpid` that it is there, send
whatever is to come at just that moment, and let it go on by SIGCONT.
"""

import functools
import os
import pkgutil
import runpy
import signal
import sys
from collections.abc import Callable
from typing import Any

# Where a phase begins: an import, or the n-th call of a function of a module or class that is looked up when it is
# called; for a file by the end of its name.
IMPORTS = {"before it listens": "typer", "imports": "torch", "more imports": "pretrain.console"}
CALLS: dict[str, tuple[str, str, int, str]] = {
    "building": ("pretrain.attempt.begin", "prepare", 1, ""),
    "loading the parent": ("pretrain.evidence.checkpoint", "load_checkpoint", 1, ""),
    "verifying the parent": ("pretrain.attempt.begin", "find_origin", 1, ""),
    "copying the rows": ("pretrain.evidence.metrics", "verify_prefix", 1, ""),
    "opening the attempt": ("pretrain.evidence.namespace", "create", 1, ""),
    "step": ("pretrain.loop.steps", "accumulate", 4, ""),
    "baselines": ("pretrain.validation:Validator", "_score_baselines", 1, ""),
    "validation": ("pretrain.validation:Validator", "_run", 1, ""),
    "second validation": ("pretrain.validation:Validator", "_run", 2, ""),
    "pause": ("pretrain.machine.thermometer:Thermometer", "wait", 1, ""),
    "save": ("pretrain.evidence.shard_writer", "_host_bytes", 5, ""),
    "second save": ("pretrain.evidence.shard_writer", "_host_bytes", 60, ""),
    "third save": ("pretrain.evidence.shard_writer", "_host_bytes", 100, ""),
    "record": ("pretrain.files", "publish", 2, "checkpoint.json"),
    "pruning": ("pretrain.evidence.checkpoint", "remove_checkpoint", 1, ""),
    "hashing": ("pretrain.evidence.manifest", "build_manifest", 1, ""),
    "manifest": ("pretrain.files", "publish", 1, "manifest.json"),
    "end": ("pretrain.attempt.ending", "time_lines", 1, ""),
}


def stand() -> None:
    """Stop this process until somebody lets it go on."""
    os.kill(os.getpid(), signal.SIGSTOP)


class _Importing:
    """A finder that finds nothing, and does something when a module is looked for the first time."""

    def __init__(self, name: str, do: Callable[[], None]) -> None:
        self._name, self._do = name, do

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        if name == self._name:
            self._name = ""
            self._do()


def at(phase: str, do: Callable[[], None]) -> None:
    """Do something once, where a phase of this process begins."""
    if phase in IMPORTS:
        sys.meta_path.insert(0, _Importing(IMPORTS[phase], do))  # type: ignore[arg-type]
        return
    where, name, count, ending = CALLS[phase]
    owner = pkgutil.resolve_name(where)
    real, left = getattr(owner, name), count

    @functools.wraps(real)
    def watched(*arguments: Any, **words: Any) -> Any:
        nonlocal left
        left -= str(arguments[0]).endswith(ending)
        if left == 0:
            left = -1
            do()
        return real(*arguments, **words)

    setattr(owner, name, watched)


if __name__ == "__main__":
    for one in sys.argv[1].split(","):
        at(one, stand)
    sys.argv = ["pretrain", *sys.argv[2:]]
    runpy.run_module("pretrain", run_name="__main__", alter_sys=True)
