"""L7: every file that an attempt answers for is damaged in every way; it is named, and nothing goes on from it."""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from unittest import mock

from pretrain import lineage, reading, syscalls
from pretrain.config import load
from pretrain.errors import IntegrityError
from tests.drill.kill_sweep import HURT
from tests.drill.layer import Layer
from tests.drill.rights import without_override
from tests.loop.lineages import end_of, small_config, tree
from tests.loop.probes import Unsynced, newest_attempt
from tests.tiny import go_on, train

STEPS, STOPPED_AFTER, BLOCK = 8, 7, 4096
# For each file; fewer where a run may go on from what is damaged, to the end, which takes four times as long.
FLIPS, FLIPS_OF_STOPPED = 64, 32
# What a file system may take for a name that is there, or a person for nothing.
EXTRA = {
    "hidden": ".hidden",
    "code": "__pycache__/pretrain.cpython-311.pyc",
    "temporary": ".tmp-1-1-manifest.json",
    "in-checkpoints": "checkpoints/latest",
    "in-step": "checkpoints/step_00000008/optimizer.pt",
    "second-shard": "checkpoints/step_00000008/shard_00001.safetensors",
    "in-incidents": "incidents/incident_9999.json",
    "outcome": "outcome.json",
    "case": "METRICS.jsonl",
    "case-of-manifest": "Manifest.json",
    "cyrillic": "m\u0435trics.jsonl",
    "wide": "\uff4detrics.jsonl",
    "not-composed": "caf\u0065\u0301.json",
    "no-width": "metrics.jsonl\u200b",
    "space": "metrics.jsonl ",
    "dot": "metrics.jsonl.",
    "line": "metrics.jsonl\n",
    "terminal": "\x1b[2Jmetrics.jsonl",
    "backslash": "checkpoints\\step_00000008",
}
Damage = Callable[..., tuple[str, ...]]


def _flip(attempt: Path, name: str, at: str, bit: str) -> tuple[str, ...]:
    data = bytearray((attempt / name).read_bytes())
    data[int(at)] ^= 1 << int(bit)
    (attempt / name).write_bytes(data)
    return (name,)


def _cut(attempt: Path, name: str, length: str) -> tuple[str, ...]:
    os.truncate(attempt / name, int(length))
    return (name,)


def _longer(attempt: Path, name: str, byte: str) -> tuple[str, ...]:
    with (attempt / name).open("ab") as file:
        file.write(bytes([int(byte)]))
    return (name,)


def _zeros(attempt: Path, name: str, at: str) -> tuple[str, ...]:
    data = bytearray((attempt / name).read_bytes())
    data[int(at) : int(at) + BLOCK] = bytes(len(data[int(at) : int(at) + BLOCK]))
    (attempt / name).write_bytes(data)
    return (name,)


def _swap(attempt: Path, one: str, other: str) -> tuple[str, ...]:
    away = attempt / "away"
    (attempt / one).rename(away)
    (attempt / other).rename(attempt / one)
    away.rename(attempt / other)
    if "manifest.json" in (one, other):  # without it nobody knows what the other one was
        return ("manifest.json",)
    return (f"{one}/checkpoint.json", f"{other}/checkpoint.json") if (attempt / one).is_dir() else (one, other)


def _older(attempt: Path, old: str, name: str) -> tuple[str, ...]:
    shutil.copyfile(attempt / old, attempt / name)
    return (name,)


def _again(attempt: Path, old: str, new: str) -> tuple[str, ...]:
    shutil.copytree(attempt / old, attempt / new)
    return (f"{new}/checkpoint.json",)


def _delete(attempt: Path, name: str) -> tuple[str, ...]:
    (attempt / name).unlink()
    return (name,)


def _rename(attempt: Path, name: str, letters: str) -> tuple[str, ...]:
    path = attempt / name
    path.rename(path.with_name(path.name.upper() if letters == "upper" else f"{path.name}{letters}"))
    return (name,)


def _closed(attempt: Path, name: str) -> tuple[str, ...]:
    (attempt / name).chmod(0)
    return (name,)


def _link(attempt: Path, name: str) -> tuple[str, ...]:
    (attempt / name).rename(_outside(attempt) / "same")
    (attempt / name).symlink_to(_outside(attempt) / "same")
    return (name,)


def _link_folder(attempt: Path, name: str) -> tuple[str, ...]:
    (attempt / name).rename(_outside(attempt) / "same")
    (attempt / name).symlink_to(_outside(attempt) / "same", target_is_directory=True)
    return (name,)


def _hard_link(attempt: Path, name: str) -> tuple[str, ...]:
    other = _outside(attempt) / "other"
    other.write_bytes(bytes((attempt / name).stat().st_size))
    (attempt / name).unlink()
    (attempt / name).hardlink_to(other)
    return (name,)


def _folder(attempt: Path, name: str) -> tuple[str, ...]:
    (attempt / name).unlink()
    (attempt / name).mkdir()
    return (name,)


def _pipe(attempt: Path, name: str) -> tuple[str, ...]:
    (attempt / name).unlink()
    os.mkfifo(attempt / name)
    return (name,)


def _extra(attempt: Path, which: str) -> tuple[str, ...]:
    path = attempt / EXTRA[which]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"?")
    return (EXTRA[which],)


def _outside(attempt: Path) -> Path:
    """A folder that belongs to no run."""
    folder = attempt.parents[2] / "outside"
    folder.mkdir(exist_ok=True)
    return folder


DAMAGES: dict[str, Damage] = {
    "flip": _flip,
    "cut": _cut,
    "longer": _longer,
    "zeros": _zeros,
    "swap": _swap,
    "older": _older,
    "again": _again,
    "delete": _delete,
    "rename": _rename,
    "closed": _closed,
    "link": _link,
    "link-folder": _link_folder,
    "hard-link": _hard_link,
    "folder": _folder,
    "pipe": _pipe,
    "extra": _extra,
}


class Corruption:
    """A finished run, and one that was stopped; both have refusals, a rollback and incidents behind them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        config = small_config(folder, "text", STEPS, 2, HURT, "checkpoint.keep_every_n_steps=2")
        train(load(config, [f"run.dir={folder / 'finished'}"]))
        train(load(config, [f"run.dir={folder / 'stopped'}"]), STOPPED_AFTER)
        self._end = end_of(folder / "finished")

    def points(self, *, whole: bool) -> Sequence[str]:
        """Every damage of every file that is bound; of a quick part every 13th, and fewer after which a run trains."""
        finished, stopped = ([f"{run} {damage}" for damage in self._damages(run)] for run in ("finished", "stopped"))
        return [*finished, *stopped] if whole else [*finished[::13], *stopped[::67]]

    def _damages(self, run: str) -> Iterator[str]:
        attempt = self._folder / run / "attempts/0001"
        is_finished = run == "finished"
        random_ = random.Random(f"{self._seed} {run}")
        names = [name for name, kind in reading.walk(attempt) if kind == "file"]
        if not is_finished:  # no record binds these yet
            names = [name for name in names if name not in ("events.jsonl", "outcome.json", "telemetry.csv")]
        steps = [name for name, _ in reading.walk(attempt) if name.startswith("checkpoints/") and name.count("/") == 1]
        for name in names:
            size = (attempt / name).stat().st_size
            content = (attempt / name).read_bytes()
            for at in sorted(random_.sample(range(size), min(size, FLIPS if is_finished else FLIPS_OF_STOPPED))):
                yield f"flip {name} {at} {random_.randrange(8)}"
            yield from (f"cut {name} {length}" for length in (0, 1, size // 2, size - 1))
            at = random_.randrange(size)
            if any(content[at : at + BLOCK]):
                yield f"zeros {name} {at}"
            if is_finished or name != "metrics.jsonl":  # what comes after the rows that a checkpoint binds is nobody's
                yield from (f"longer {name} {byte}" for byte in (0, 10))
            yield from (f"{kind} {name}" for kind in ("delete", "closed", "link", "hard-link", "folder", "pipe"))
            yield from (f"rename {name} {letters}" for letters in ("upper", "~", "\u200b"))
        shards = [name for name in names if name.endswith(".safetensors")]
        yield from (f"older {old} {new}" for old, new in combinations(shards, 2))
        yield from (f"swap {one} {other}" for one, other in combinations(steps, 2))
        yield from (f"again {old} checkpoints/step_00000099" for old in steps)
        yield from (f"link-folder {name}" for name in (*steps, "checkpoints", "incidents"))
        if is_finished:
            yield from (f"swap {one} {other}" for one, other in combinations(names, 2))
            yield from (f"extra {which}" for which in EXTRA)

    def check(self, point: str, folder: Path) -> None:
        """Damage a copy; it is named, and a resume is refused, or comes to the end of the untouched run."""
        run, kind, *words = point.split(" ")
        copy = shutil.copytree(self._folder / run, folder / run, symlinks=True)
        attempt = copy / "attempts/0001"
        names = DAMAGES[kind](attempt, *words)
        with without_override():
            found = lineage.verify(attempt)
            assert not found.ok, "it verifies"
            told = {*found.extra, *found.missing, *found.changed, *found.unsafe}
            if run == "finished" and not (attempt / "manifest.json").exists():
                assert found.unfinished, found.text()
                assert "there is no manifest.json" in found.text()
            else:
                assert not found.sound, found.text()
                # A checkpoint whose record is gone is none: the folder is named, as one that nothing binds.
                assert all({name, f"{Path(name).parent}/"} & told for name in names), f"not named: {found.text()}"
            is_bound = run == "finished" and "manifest.json" not in words
            self._resume(copy, is_bound=is_bound, lost=words[0] if kind in ("delete", "rename") else "")

    def _resume(self, run: Path, *, is_bound: bool, lost: str) -> None:
        before = tree(run / "attempts/0001") if _readable(run) else None
        try:
            result = go_on(run)
        except IntegrityError:
            assert os.listdir(run / "attempts") == ["0001"], "a resume that was refused has left an attempt"
        else:
            assert not is_bound, f"something goes on from it: {result}"
            assert result.exit_code == 0, result
            reasons = json.loads((newest_attempt(run) / "manifest.json").read_text())["reasons"]
            # Where it could not have gone back to the same steps, it says so, and may end otherwise.
            is_known = any("it cannot go back to step" in reason for reason in reasons)
            # And an incident that is gone is told of, and changes nothing but that it is gone.
            ends = (end_of(run)[:2], self._end[:2]) if lost.startswith("incidents/") else (end_of(run), self._end)
            assert is_known or ends[0] == ends[1], "it came to another end"
        if before is not None:
            assert tree(run / "attempts/0001") == before, "the damaged attempt was touched"


def _readable(run: Path) -> bool:
    return all(os.access(path, os.R_OK, effective_ids=True) for path in run.rglob("*") if not path.is_symlink())


@contextmanager
def opened(folder: Path, seed: int) -> Iterator[Corruption]:
    """Train both runs; the seed chooses the bits that are flipped and the blocks that become zeros."""
    with (
        mock.patch.dict(os.environ, PRETRAIN_ALLOW_FAULTS="1"),
        mock.patch.object(syscalls, "system", Unsynced()),
    ):
        yield Corruption(folder, seed)


LAYER = Layer("L7", "every file damaged in every way", (140, 2184), opened)
