"""Kill a run at seeded moments, resume it each time, and compare its end with that of a run that was never touched.

Half of the kills come while a process starts up, half while it trains. Every process is the command that a person
types; exit code 0 says that checkpoint and metric stream came out byte for byte the same, 1 that they did not.
"""

import argparse
import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pretrain import lineage, reading
from pretrain.evidence import checkpoint, namespace

CONFIG = """
run: {dir: named-by-the-script}
training: {max_steps: 600, batch_size: 4, threads: 1}
task: {name: text}
data:
  sequence_length: 32
  train: {pydoc: {source: text, path: "builtin:pydoc", span: [0.0, 0.9]}}
  validation: {pydoc: {source: text, path: "builtin:pydoc", span: [0.99, 1.0]}}
model: {name: decoder, width: 32, layers: 2, heads: 2, kv_heads: 2}
checkpoint: {checkpoint_every_n_steps: 10}
validation: {validate_every_n_steps: 100}
"""
POLL_SECONDS = 0.005
Tree = dict[str, tuple[int, str]]


@dataclass(frozen=True)
class Pace:
    """How fast the untouched run was: seconds until its attempt stood, seconds from there to its end, its steps."""

    startup: float
    training: float
    steps: int


@dataclass(frozen=True)
class Kill:
    """A kill after so many seconds from the start of the process, or from the birth of its attempt, if it has one.

    share, grace: it comes at the latest so many seconds after this share of the run's steps, so that the run never
    ends before its kills.
    """

    training: bool
    seconds: float
    share: float
    grace: float


class Run:
    """A run folder, and the processes that write it one after the other."""

    def __init__(self, folder: Path, config: Path) -> None:
        self.folder, self.config = folder, config

    def newest(self) -> Path | None:
        """Return the folder of the newest attempt."""
        number = namespace.newest(self.folder)
        return None if number is None else namespace.attempt_folder(self.folder, number)

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command that goes on with this run: `train` while no attempt is born, else `resume`."""
        if self.newest() is None:
            words = ["train", "--config", str(self.config), f"run.dir={self.folder}"]
        else:
            words = ["resume", "--attempt", str(self.folder)]
        with Path(f"{self.folder}.log").open("ab") as log:
            command = [sys.executable, "-m", "pretrain", *words, "--quiet"]
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def last_checkpoint(self) -> int:
        """Return the step of the newest checkpoint of any attempt; -1 = there is none."""
        attempts = (namespace.attempt_folder(self.folder, number) for number in namespace.list_attempts(self.folder))
        return max((step for attempt in attempts for step, _ in checkpoint.list_checkpoints(attempt)), default=-1)

    def end(self) -> tuple[str, str]:
        """Return the SHA-256 of the last checkpoint's record and of the metric stream."""
        attempt = self.newest()
        assert attempt is not None
        records = [folder / "checkpoint.json" for _, folder in checkpoint.list_checkpoints(attempt)[-1:]]
        record, stream = (
            hashlib.sha256(path.read_bytes()).hexdigest() for path in (*records, attempt / "metrics.jsonl")
        )
        return record, stream


def run_untouched(run: Run) -> Pace:
    """Train to the end without a kill."""
    started, born = time.monotonic(), 0.0
    process = run.start()
    while process.poll() is None:
        born = born or (time.monotonic() if run.newest() else 0.0)
        time.sleep(POLL_SECONDS)
    if process.returncode:
        sys.exit(f"the untouched run ended with exit code {process.returncode}; see {run.folder}.log")
    return Pace(born - started, time.monotonic() - born, run.last_checkpoint())


def plan(kills: int, seed: int, pace: Pace) -> list[Kill]:
    """Place the kills: half within the time of a start-up, half within a time that leaves the run its progress."""
    chance = random.Random(seed)
    each = pace.training / kills
    kinds = [number % 2 == 1 for number in range(kills)]
    chance.shuffle(kinds)
    return [
        Kill(
            training=training,
            seconds=chance.uniform(0.0, 3.2 * each if training else pace.startup),
            share=number / (kills + 1),
            grace=chance.uniform(0.0, 0.4 * each),
        )
        for number, training in enumerate(kinds, start=1)
    ]


def live(run: Run, kill: Kill, pace: Pace) -> tuple[float, int | None]:
    """Go on with the run and kill it; return its age in seconds, and its exit code where the kill came too late."""
    before = run.newest()
    started = time.monotonic()
    due = float("inf") if kill.training else started + kill.seconds
    in_time = float("inf")
    process = run.start()
    while process.poll() is None:
        now = time.monotonic()
        if run.newest() != before:
            due = min(due, now + kill.seconds)
            if run.last_checkpoint() >= kill.share * pace.steps:
                in_time = min(in_time, now + kill.grace)
        if now >= min(due, in_time):
            process.kill()
            process.wait()
            break
        time.sleep(POLL_SECONDS)
    code = process.returncode
    return time.monotonic() - started, None if code == -signal.SIGKILL else code


def trees(run: Run) -> dict[int, Tree]:
    """Return modification time and SHA-256 of every file, by attempt."""
    found = {}
    for number in namespace.list_attempts(run.folder):
        attempt = namespace.attempt_folder(run.folder, number)
        names = [(name, attempt / name) for name, kind in reading.walk(attempt) if kind == "file"]
        found[number] = {
            name: (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest()) for name, path in names
        }
    return found


def last_row(attempt: Path) -> int:
    """Return the step of the last whole row of an attempt's stream."""
    rows = (attempt / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
    return max((json.loads(row).get("step", 0) for row in rows[-1:]), default=0)


def faults(run: Run, untouched: Run) -> Iterator[str]:
    """Yield what a lineage must not show once it is done."""
    *killed, last = namespace.list_attempts(run.folder)
    for number in killed:
        report = lineage.verify(namespace.attempt_folder(run.folder, number))
        if report.ok or not report.unfinished:
            yield f"attempt {number:04d} was killed, and claims to be done"
        if report.changed or report.missing or report.unsafe or report.parent_ok is False:
            yield f"attempt {number:04d} does not verify: {report.text()}"
    report = lineage.verify(namespace.attempt_folder(run.folder, last))
    if not report.ok:
        yield f"attempt {last:04d} does not verify: {report.text()}"
    for temporary in (run.folder / "attempts").glob(".tmp-*"):
        yield f"{temporary} is left"
    for name, found, expected in zip(("checkpoint", "metric stream"), run.end(), untouched.end(), strict=True):
        if found != expected:
            yield f"the last {name} has SHA-256 {found}, and that of the untouched run {expected}"


def kill_and_resume(run: Run, kills: list[Kill], pace: Pace) -> Iterator[str]:
    """Live every killed life and the last one; print a row for each kill, and yield what is wrong."""
    print("kill  attempt  while     after s  last row  last checkpoint")
    before = trees(run)
    for number, kill in enumerate(kills, start=1):
        age, code = live(run, kill, pace)
        after = trees(run)
        if any(after.get(earlier) != tree for earlier, tree in before.items()):
            yield f"kill {number} changed an earlier attempt"
        if code is not None:
            yield f"the process that kill {number} was meant for ended before it, with exit code {code}"
            return
        newest = run.newest()
        born = newest is not None and len(after) > len(before)
        attempt, row = (newest.name, str(last_row(newest))) if newest and born else ("-", "-")
        during, saved = "training" if born else "start-up", run.last_checkpoint()
        print(
            f"{number:4}  {attempt:>7}  {during:8}  {age:7.2f}  {row:>8}  {saved if saved >= 0 else '-':>15}",
            flush=True,
        )
        before = after
    started, code = time.monotonic(), run.start().wait()
    last, seconds = f"{max(trees(run)):04}", time.monotonic() - started
    print(f" end  {last:>7}  untouched {seconds:6.2f}  {'':8}  {run.last_checkpoint():15}")
    if any(trees(run).get(earlier) != tree for earlier, tree in before.items()):
        yield "the last life changed an earlier attempt"
    if code:
        yield f"the last life ended with exit code {code}; see {run.folder}.log"


def main() -> int:
    """Run both, print the table and the verdict, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--config", type=Path, help="a run's YAML config instead of the small one built in")
    parser.add_argument("--keep", action="store_true", help="keep both runs, and print where they are")
    arguments = parser.parse_args()
    if arguments.kills < 1:
        parser.error(f"--kills: expected 1 or more, found {arguments.kills}")

    folder = Path(tempfile.mkdtemp(prefix="kill-lineage-"))
    config = arguments.config or folder / "config.yaml"
    if arguments.config is None:
        config.write_text(CONFIG)
    started = time.monotonic()
    untouched, run = Run(folder / "untouched", config), Run(folder / "killed", config)
    pace = run_untouched(untouched)
    print(f"untouched: {pace.startup:.1f} s to start, {pace.training:.1f} s for {pace.steps} steps\n")
    found = list(kill_and_resume(run, plan(arguments.kills, arguments.seed, pace), pace))
    found += [] if found else list(faults(run, untouched))

    print()
    for fault in found:
        print(f"WRONG: {fault}")
    if not found:
        record, stream = run.end()
        print(f"checkpoint    {record}\nmetric stream {stream}")
    verdict = "not the same" if found else "byte for byte the same as the untouched run"
    print(f"{arguments.kills} kills, seed {arguments.seed}, {time.monotonic() - started:.0f} s: {verdict}")
    if arguments.keep or found:
        print(f"kept: {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
