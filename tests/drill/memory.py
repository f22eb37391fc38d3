"""L14: memory that is exhausted, by a limit or at a chosen place: one message, exit code 9, and nothing lost."""

import json
import os
import re
import resource
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pretrain.config import load
from pretrain.evidence import namespace
from tests.cli.calling import pretrain
from tests.drill.concurrency import run_pretrain
from tests.drill.layer import Layer
from tests.drill.standing import at
from tests.loop.forks import Forks, Order
from tests.loop.lineages import end_of, small_config, tree
from tests.tiny import train

# Where an allocation fails: the phases of `standing`, of a run that begins, and of one that goes on.
PLACES = (
    *("building", "opening the attempt", "step", "baselines", "second validation", "save", "second save", "record"),
    *("pruning", "hashing", "manifest"),
)
OF_A_RESUME = ("loading the parent", "verifying the parent", "copying the rows")
MEGABYTES = (0, 1, 2, 4, 8, 16, 32, 64)


class Memory:
    """A short run, what a child of it goes on from, and its end where there is memory enough."""

    def __init__(self, forks: Forks, folder: Path) -> None:
        self._forks = forks
        # Without threads that read ahead: CPython waits for ever for one that had no memory to begin (gh-140746), which
        # is what the watchdog is for.
        overrides = ("model.width=64", "training.batch_size=16", "data.prefetch_steps=0")
        self._config = small_config(folder, "text", 8, 2, *overrides)
        self._parent, untouched = folder / "parent", folder / "untouched"
        train(load(self._config, [f"run.dir={self._parent}"]), stop_after=5)
        assert train(load(self._config, [f"run.dir={untouched}"])).exit_code == 0
        self._end = end_of(untouched)

    def points(self, *, whole: bool) -> Sequence[str]:
        """Each place, and each limit for a run that begins and for one that goes on."""
        if not whole:
            places = ("save", "manifest", "loading the parent", "verifying the parent")
            return [*(f"at {place}" for place in places), "train with 4 MB", "resume with 16 MB"]
        limits = [f"{what} with {more} MB" for what in ("train", "resume") for more in MEGABYTES]
        return [*(f"at {place}" for place in (*PLACES, *OF_A_RESUME)), *limits]

    def check(self, point: str, folder: Path) -> None:
        """Live without that memory, look at how it ended, and go on to the end with it."""
        run = folder / "run"
        how, _, what = point.partition(" ")
        if how == "resume" or what in OF_A_RESUME:
            shutil.copytree(self._parent, run)
        before = _attempts(run)
        words = ["resume", "--attempt", str(run)]
        if not run.exists():
            words = ["train", "--config", str(self._config), f"run.dir={run}"]
        does = "tests.drill.memory:" + ("exhausted_at" if how == "at" else "limited")
        amount = what if how == "at" else re.findall(r"\d+", what)[0]
        order = Order(str(run), str(folder / "log"), does=does, words=(amount, *words, "--json", "--quiet"))
        (life,) = self._forks.together([order])
        said = Path(order.log).read_text()
        assert life.exit_code in ({9} if how == "at" else {0, 9}), f"{life}\n{said}"
        assert "Traceback" not in said, said
        after = _attempts(run)
        assert {number: after.get(number) for number in before} == before, "the parent was touched"
        if life.exit_code == 9:
            (line,) = [line for line in said.splitlines() if line.startswith("{")]
            assert json.loads(line)["verdict"] == "out_of_memory", said
            if len(after) > len(before):
                outcome = json.loads((namespace.attempt_folder(run, max(after)) / "outcome.json").read_bytes())
                assert (outcome["verdict"], outcome["exit_code"]) == ("out_of_memory", 9)
            self._forks.live(Order(str(run), str(folder / "log"), None if after else str(self._config)))
        assert end_of(run) == self._end, "another end"
        assert not list((run / "attempts").glob(".tmp-*")), "temporaries are left"


def _attempts(run: Path) -> dict[int, object]:
    return {number: tree(namespace.attempt_folder(run, number)) for number in namespace.list_attempts(run)}


def exhausted_at(order: Order) -> int:
    """In a child: the command line, in which an allocation fails where a phase begins."""
    phase, *words = order.words

    def fail() -> None:
        raise MemoryError

    at(phase, fail)
    return run_pretrain(words)


def limited(order: Order) -> int:
    """In a child: the command line, with so many megabytes of addresses more than there are now."""
    more, *words = order.words
    pretrain("verify-manifest", "nowhere")  # what a command imports by the way is there before
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + (int(more) << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return run_pretrain(words)


@contextmanager
def opened(folder: Path, seed: int) -> Iterator[Memory]:
    """Start the process that forks; `seed` changes nothing."""
    with Forks() as forks:
        yield Memory(forks, folder)


LAYER = Layer("L14", "exhausted memory: limits, and an allocation that fails at each place", (6, 30), opened)
