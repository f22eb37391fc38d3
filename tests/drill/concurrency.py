"""L11: eight processes at once on one run: one of them writes it, the others refuse or read, and nothing is lost."""

import ctypes
import fcntl
import json
import random
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pretrain import cli
from pretrain.evidence import checkpoint, events, namespace
from tests.drill.layer import Layer
from tests.loop.forks import Forks, Life, Order
from tests.loop.lineages import Lineage, end_of, small_config, tree

EIGHT = 8
_HERE, READERS = "tests.drill.concurrency", "tests.drill.readers"


class Concurrency:
    """A short run, and how it ends when one process alone trains it."""

    def __init__(self, forks: Forks, folder: Path, seed: int) -> None:
        self._forks, self._seed = forks, seed
        self._config = small_config(folder, "text", 12, 2)
        self._untouched = folder / "untouched"
        life = forks.live(Order(str(self._untouched), str(folder / "log"), str(self._config)))
        self._end, self._changes = end_of(self._untouched), life.changes

    def points(self, *, whole: bool) -> Sequence[str]:
        """Rounds of each kind, at other moments in each."""
        rounds = {"resume": 7, "train": 5, "read": 6, "mixed": 2} if whole else {"resume": 1, "read": 1}
        names = [f"{kind} {number}" for kind, count in rounds.items() for number in range(count)]
        return [*names, "read-only", "held lock"] if whole else names

    def check(self, point: str, folder: Path) -> None:
        """Let the processes of a round begin together, and look at what each came to."""
        kind = point.rstrip(" 0123456789")
        chance = random.Random(f"{self._seed} {point}")
        {
            "resume": self._resume,
            "train": self._train,
            "read": self._read,
            "mixed": self._mixed,
            "read-only": self._read_only,
            "held lock": self._held_lock,
        }[kind](folder, chance)

    def _resume(self, folder: Path, chance: random.Random) -> None:
        """Of eight that go on from where a kill has left a run, and its lock file, one does."""
        run = folder / "run"
        parent = Lineage(self._forks, self._config, run)
        parent.live(kill_at=chance.randint(self._changes // 3, self._changes - 1))
        before = tree(namespace.attempt_folder(run, 1))
        assert (run / namespace.LOCK).exists()
        lives, answers = self._commands(folder, chance, "resume", "--attempt", str(run))
        assert namespace.list_attempts(run) == [1, 2], f"more than one child: {answers}"
        assert {life.exit_code for life in lives} <= {0, 7}, answers
        done = [answer for answer in answers if answer["exit_code"] == 0]
        assert done
        assert {(answer["verdict"], answer["attempt"]) for answer in done} == {("done", 2)}, answers
        assert tree(namespace.attempt_folder(run, 1)) == before, "the parent was touched"
        assert end_of(run) == self._end, "another end"

    def _train(self, folder: Path, chance: random.Random) -> None:
        """Of eight that begin the same run, one does."""
        run = folder / "run"
        lives, answers = self._commands(folder, chance, "train", "--config", str(self._config), f"run.dir={run}")
        assert {life.exit_code for life in lives} <= {0, 2, 7}, answers
        assert [answer["exit_code"] for answer in answers].count(0) == 1, answers
        assert namespace.list_attempts(run) == [1]
        assert end_of(run) == self._end, "another end"

    def _read(self, folder: Path, chance: random.Random) -> None:
        """One that trains, and prunes its checkpoints; four that verify the run meanwhile, and three that inspect."""
        run = str(folder / "run")
        writer = Order(run, str(folder / "0.log"), str(self._config))
        verifiers = [self._order(folder, number, f"{READERS}:verify_until_done", run) for number in range(1, 5)]
        readers = [self._order(folder, number, f"{READERS}:inspect_until_done", run) for number in range(5, EIGHT)]
        lives = self._forks.together([writer, *verifiers, *readers])
        logs = "\n".join((folder / f"{number}.log").read_text() for number in range(EIGHT))
        assert {life.exit_code for life in lives} == {0}, f"{lives}\n{logs}"
        assert end_of(Path(run)) == self._end, "another end"

    def _mixed(self, folder: Path, chance: random.Random) -> None:
        """Two that go on from where a kill has left a run, two that begin it, two that verify and two that inspect it.

        No command prunes: what is pruned beside the readers is what the retention of the one that writes lets go.
        """
        run = folder / "run"
        Lineage(self._forks, self._config, run).live(kill_at=chance.randint(self._changes // 3, self._changes // 2))
        before = tree(namespace.attempt_folder(run, 1))
        resume = ("resume", "--attempt", str(run))
        train = ("train", "--config", str(self._config), f"run.dir={run}")
        writers = [self._late(folder, at, chance.uniform(0.0, 0.6), *(resume, train)[at % 2]) for at in range(4)]
        readers = [
            self._order(folder, at, f"{READERS}:{'verify' if at % 2 else 'inspect'}_by_command", str(run))
            for at in range(4, EIGHT)
        ]
        lives = self._forks.together([*writers, *readers])
        answers = [_answer(order, life) for order, life in zip(writers, lives[:4], strict=True)]
        assert {answer["exit_code"] for answer in answers[0::2]} <= {0, 7}, answers
        assert {answer["exit_code"] for answer in answers[1::2]} <= {2, 7}, answers
        assert {answer["attempt"] for answer in answers if answer["exit_code"] == 0} == {2}, answers
        logs = "\n".join(Path(order.log).read_text() for order in readers)
        assert {life.exit_code for life in lives[4:]} == {0}, f"{lives}\n{logs}"
        assert "Traceback" not in logs, logs
        assert namespace.list_attempts(run) == [1, 2]
        assert "pruned" in {row["event"] for row in events.read(namespace.attempt_folder(run, 2))}
        assert tree(namespace.attempt_folder(run, 1)) == before, "the parent was touched"
        assert end_of(run) == self._end, "another end"

    def _read_only(self, folder: Path, chance: random.Random) -> None:
        """A folder that nobody may write to is read as ever, and refused with one message where it would be written."""
        run = folder / "run"
        shutil.copytree(self._untouched, run)
        step = str(checkpoint.list_checkpoints(namespace.attempt_folder(run, 1))[-1][1])
        for place in (run, *run.rglob("*")):
            place.chmod(0o555 if place.is_dir() else 0o444)
        before = tree(run)
        for code, *words in (
            (0, "verify-manifest", str(run), "--json"),
            (0, "inspect-checkpoint", step, "--json"),
            (6, "resume", "--attempt", str(run), "training.max_steps=14", "--json", "--quiet"),
            (6, "train", "--config", str(self._config), f"run.dir={run / 'another'}", "--json", "--quiet"),
        ):
            order = self._order(folder, 1, "command_without_rights", *map(str, words))
            (life,) = self._forks.together([order])
            said = Path(order.log).read_text()
            assert life.exit_code == code, f"{words}: expected {code}, found {life}\n{said}"
            assert "Traceback" not in said, said
            assert code == 0 or "must be writable" in said, said
        assert tree(run) == before, "something was changed"

    def _held_lock(self, folder: Path, chance: random.Random) -> None:
        """While somebody holds the lock all eight are refused, also where the file says nothing; then one goes on."""
        run = folder / "run"
        Lineage(self._forks, self._config, run).live(kill_at=self._changes // 2)
        lock = run / namespace.LOCK
        lock.write_bytes(b"12345\n")  # of no writer of ours: what it holds is never read
        with lock.open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            lives, answers = self._commands(folder, chance, "resume", "--attempt", str(run))
            assert {life.exit_code for life in lives} == {7}, answers
            assert namespace.list_attempts(run) == [1]
        self._forks.live(Order(str(run), str(folder / "log")))
        assert end_of(run) == self._end, "another end"

    def _commands(
        self, folder: Path, chance: random.Random, *words: str
    ) -> tuple[Sequence[Life], Sequence[Mapping[str, Any]]]:
        """Run the same command eight times, each a little later than the one before; return their answers."""
        delays = [0.0, 0.0, *(chance.uniform(0.0, 0.6) for _ in range(EIGHT - 2))]
        orders = [self._late(folder, number, delay, *words) for number, delay in enumerate(delays)]
        lives = self._forks.together(orders)
        return lives, [_answer(order, life) for order, life in zip(orders, lives, strict=True)]

    def _late(self, folder: Path, number: int, delay: float, *words: str) -> Order:
        return self._order(folder, number, "command", f"{delay:.3f}", *words, "--json", "--quiet")

    def _order(self, folder: Path, number: int, does: str, *words: str) -> Order:
        return Order(
            str(folder / "run"),
            str(folder / f"{number}.log"),
            does=does if ":" in does else f"{_HERE}:{does}",
            words=words,
        )


def _answer(order: Order, life: Life) -> Mapping[str, Any]:
    """Return what a command that was to answer as JSON has said, with the exit code that it ended in."""
    said = Path(order.log).read_text()
    assert "Traceback" not in said, said
    (line,) = [line for line in said.splitlines() if line.startswith("{")]
    answer: Mapping[str, Any] = json.loads(line)
    assert answer["exit_code"] == life.exit_code, said
    return answer


def command(order: Order) -> int:
    """In a child: after a number of seconds, the command line."""
    delay, *words = order.words
    time.sleep(float(delay))
    return run_pretrain(words)


def command_without_rights(order: Order) -> int:
    """In a child: the command line, with no right that the modes of the files do not give."""

    class Header(ctypes.Structure):
        _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))

    header, none = Header(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None).capset(ctypes.byref(header), none) != 0:
        raise OSError("capset failed")
    return run_pretrain(order.words)


def run_pretrain(words: Sequence[str]) -> int:
    """Run the command line in this process and return its exit code."""
    try:
        cli.application([*words], prog_name="pretrain")
    except SystemExit as ended:
        return int(ended.code or 0)
    raise AssertionError("a command always leaves by an exit code")


@contextmanager
def opened(folder: Path, seed: int) -> Iterator[Concurrency]:
    """Start the process that forks; `seed` chooses where the dead have died, and how much later the late begin."""
    with Forks() as forks:
        yield Concurrency(forks, folder, seed)


LAYER = Layer("L11", "eight processes at once: resume, train, verify, inspect, locks", (2, 20), opened)
