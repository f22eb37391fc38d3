"""How fast an attempt is verified, beside what hashlib alone makes of the same bytes, and in how much memory."""

import argparse
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np

from pretrain import files, lineage, syscalls
from pretrain.evidence.checkpoint_record import CheckpointFile, RecordDraft
from pretrain.evidence.manifest import Latest, build_manifest, publish_manifest
from pretrain.evidence.metrics import EMPTY
from pretrain.evidence.namespace import create, environment_record
from pretrain.evidence.safetensors_file import Chunk, encode_header
from pretrain.evidence.shards import content_sha256

BLOCK = 1 << 20
IDENTITY = "0" * 64
SCALARS: dict[str, Any] = {
    "loader": {"epoch": 0, "position": 0},
    "ledger": {
        "retries": [],
        "rollbacks": 0,
        "rung": 0,
        "incidents": 0,
        "quarantined": [],
        "learning_rate_factor": 1.0,
        "faults_fired": [],
    },
    "guard": {},
    "spikes": {},
    "scaler": None,
    "best": [],
}
# The command as a person gives it; the most that this process held, Python itself included, is its last line.
_VERIFY = """
import sys
from pathlib import Path
from pretrain import cli
try:
    cli.application(["verify-manifest", sys.argv[1]], prog_name="pretrain")
except SystemExit as ended:
    assert ended.code == 0, ended.code
print(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
"""


@dataclass(frozen=True)
class VerifyRate:
    """Seconds that hashlib takes for the bytes on one core, and a whole verification on one core and on all; medians.

    hashlib: for bytes in the cache of the core; file_digest: for the files, read as hashlib itself reads them.
    Of the clock, and of the processor, which others that use the machine hardly disturb.
    peak_bytes: the most memory that a `pretrain verify-manifest` of its own held, on all cores.
    """

    bytes: int
    files: int
    cores: int
    load: float
    hashlib_seconds: float
    file_digest_seconds: float
    one_core_seconds: float
    all_cores_seconds: float
    hashlib_processor: float
    file_digest_processor: float
    one_core_processor: float
    all_cores_processor: float
    peak_bytes: int

    @property
    def ratio(self) -> float:
        """The rate of a verification for each second of processor that it takes, on one core, against hashlib's."""
        return self.hashlib_processor / self.one_core_processor

    @property
    def ratio_of_all(self) -> float:
        """The same, on all cores."""
        return self.hashlib_processor / self.all_cores_processor

    @property
    def speedup(self) -> float:
        """How many times faster all cores are, by the clock."""
        return self.one_core_seconds / self.all_cores_seconds


def make_attempt(folder: Path, checkpoints: int, bytes_each: int) -> Path:
    """Write a finished attempt of random weights through the functions that a run writes its own with."""
    record = environment_record(
        attempt=1,
        parent=None,
        versions={},
        device="cpu",
        threads=1,
        cpu_capability="none",
        determinism={},
        data=[],
        tokenizer_sha256=None,
    )
    attempt = create(folder, 1, b"{}\n", record)
    latest = Latest(0, IDENTITY)
    for step in range(checkpoints):
        place = attempt / "checkpoints" / f"step_{step:08d}"
        files.make_folder(place)
        header, (chunk,) = encode_header([Chunk("model.weight", "U8", (bytes_each,), (0,), (bytes_each,))])
        weights = np.random.default_rng(step).integers(0, 256, bytes_each, dtype=np.uint8)
        shard = files.publish(place / "shard_00000.safetensors", [header, weights.data])
        rows = {chunk.name: (chunk.dtype, chunk.shape, hashlib.sha256(weights.data).hexdigest())}
        draft = RecordDraft(step, step, IDENTITY, {}, EMPTY, SCALARS)
        bound = [CheckpointFile("shard_00000.safetensors", shard.bytes, shard.sha256)]
        latest = Latest(
            step, files.publish(place / "checkpoint.json", draft.encode(bound, content_sha256(rows))).sha256
        )
    manifest = build_manifest(
        attempt,
        number=1,
        step=latest.step,
        batch=latest.step,
        identity_sha256=IDENTITY,
        bit_exact=True,
        reasons=[],
        validation="held out",
        parent=None,
        latest=latest,
        best=[],
        metrics_cursor=EMPTY,
    )
    publish_manifest(attempt, manifest)
    return attempt


@contextmanager
def on_one_core() -> Iterator[None]:
    """Within this block the machine has one core, as far as this process is concerned."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def measure(folder: Path, megabytes: int, checkpoints: int, rounds: int) -> VerifyRate:
    """Make an attempt in `folder`, read it once, and time hashlib, one core and all cores in turn."""
    with mock.patch.object(syscalls.system, "fsync", return_value=None):
        attempt = make_attempt(folder, checkpoints, megabytes * 1_000_000 // checkpoints)
    found = lineage.verify(attempt)
    assert found.ok, found.text()
    total = sum(path.stat().st_size for path in attempt.rglob("*") if path.is_file())
    block = memoryview(np.random.default_rng(0).integers(0, 256, BLOCK, dtype=np.uint8).tobytes())
    names = [path for path in attempt.rglob("*") if path.is_file()]
    alone, plain, one, every = [], [], [], []
    for _ in range(rounds):
        with on_one_core():
            alone.append(_seconds(lambda: _hash(block, total)))
            plain.append(_seconds(lambda: [_file_digest(path) for path in names]))
            one.append(_seconds(lambda: lineage.verify(attempt)))
        every.append(_seconds(lambda: lineage.verify(attempt)))
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    measured = [median(pair[which] for pair in pairs) for which in (0, 1) for pairs in (alone, plain, one, every)]
    return VerifyRate(total, found.num_files, cores, load, *measured, peak_bytes(attempt))


def peak_bytes(path: Path) -> int:
    """Return the most memory that a process of its own holds while it verifies an attempt or a checkpoint."""
    # Not by what the system tells of a child that has ended: that counts from before it became this program.
    answer = subprocess.run([sys.executable, "-c", _VERIFY, str(path)], check=True, capture_output=True, text=True)
    return int(answer.stdout.split()[-1]) * 1024


def _hash(block: memoryview, total: int) -> None:
    digest = hashlib.sha256()
    for start in range(0, total, len(block)):
        digest.update(block[: total - start])


def _file_digest(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        hashlib.file_digest(file, "sha256")


def _seconds(work: Any) -> tuple[float, float]:
    """Return the seconds of wall time and of processor that a call takes."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - processor


def table(rate: VerifyRate) -> str:
    """Return the rates as a plain table."""
    names = (
        "hashlib alone, one core",
        "hashlib.file_digest",
        "verify-manifest, one core",
        f"verify-manifest, {rate.cores} cores",
    )
    clock = (rate.hashlib_seconds, rate.file_digest_seconds, rate.one_core_seconds, rate.all_cores_seconds)
    processor = (rate.hashlib_processor, rate.file_digest_processor, rate.one_core_processor, rate.all_cores_processor)
    beside = [f"{rate.hashlib_processor / busy:.3f} of hashlib" for busy in processor]
    lines = [f"{rate.bytes / 1e9:.2f} GB in {rate.files} files, in the page cache; load average {rate.load:.2f}"]
    lines.append(f"{'GB/s':<28}{'by the clock':>14}{'by processor':>14}")
    lines += [
        f"{name:<28}{rate.bytes / wall / 1e9:>14.2f}{rate.bytes / busy / 1e9:>14.2f}  {text}".rstrip()
        for name, wall, busy, text in zip(names, clock, processor, beside, strict=True)
    ]
    lines.append(f"all cores are {rate.speedup:.2f} times as fast as one")
    lines.append(f"at most {rate.peak_bytes / 1e6:.1f} MB of memory were held, Python itself included")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verify_rate", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--megabytes", type=int, default=2000)
    parser.add_argument("--checkpoints", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        rate = measure(Path(folder), arguments.megabytes, arguments.checkpoints, arguments.rounds)
    answer = dataclasses.asdict(rate) | {name: getattr(rate, name) for name in ("ratio", "ratio_of_all", "speedup")}
    print(json.dumps({"verify": answer}) if arguments.json else table(rate))


if __name__ == "__main__":
    main()
