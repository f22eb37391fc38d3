"""L8: files of a stranger are opened by every command: no code of theirs runs, and nothing outside is opened."""

import hashlib
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from pretrain import reading, syscalls
from pretrain.config import load
from tests.drill.bounded import MEMORY, SECONDS, Call, Calls
from tests.drill.corruption import STEPS, STOPPED_AFTER
from tests.drill.hostile_content import BOMBS, CONFIGS, HEADS, PICKLES, ROWS
from tests.drill.hostile_places import Place, forge, make
from tests.drill.hostile_starts import STARTS, codes_of
from tests.drill.hostile_weights import weights_folder
from tests.drill.kill_sweep import HURT
from tests.drill.layer import Layer
from tests.evidence.attempts import rewrite
from tests.loop.lineages import small_config
from tests.loop.probes import Unsynced
from tests.tiny import train, write_config

SHARD, RECORD, MANIFEST = "shard_00000.safetensors", "checkpoint.json", "manifest.json"
SECRET = b"nobody's business\n"
NEWEST = "checkpoints/step_00000003"
LEAST_MEMORY = 1 << 20  # what any command takes; less means that nothing is measured
MESSAGE = 20_000  # letters that a person may be told
# Paths that a manifest names with the right hash; {outside} is a folder beside the run.
PATHS = {
    "up": "../outside/secret",
    "up-inside": "checkpoints/../../outside/secret",
    "absolute": "{outside}/secret",
    "here": "./config.yaml",
    "slashes": "checkpoints//secret",
    "trailing": "secret/",
    "linked": "link/secret",
    "zero": "secret\0",
    "backslash": "..\\outside\\secret",
    "drive": "C:\\secret",
    "control": "secret\x1b[2J",
    "line": "secret\nok",
    "long": "x" * 300,
    "longest": "/".join(["x" * 200] * 10),
    "empty": "",
    "itself": MANIFEST,
    "outcome": "outcome.json",
    "case": "CONFIG.yaml",
    "not-composed": "caf\u0065\u0301",
    "turned-round": "secret\u202etxt",
    "device": "/dev/zero",
    "process": "/proc/self/environ",
}
KINDS = ("link", "link-to-zero", "link-to-itself", "pipe", "zero", "socket", "folder", "sparse")
NODES = ("manifest.json", "environment.json", "config.yaml", "metrics.jsonl", f"{NEWEST}/{RECORD}", f"{NEWEST}/{SHARD}")
EACH = 25  # of a quick part; a prime to the lengths of most kinds, so that it meets other names in each
# What no reader may take for damage: nothing rests on it, and a run goes on without it.
UNBOUND = ("events.jsonl",)


class Hostile:
    """A finished run and one that was stopped, a secret beside them, and the process that runs the commands."""

    def __init__(self, calls: Calls, folder: Path) -> None:
        self._calls, self._folder = calls, folder
        self._config = small_config(folder, "text", STEPS, 2, HURT, "checkpoint.keep_every_n_steps=2")
        train(load(self._config, [f"run.dir={folder / 'finished'}"]))
        train(load(self._config, [f"run.dir={folder / 'stopped'}"]), STOPPED_AFTER)
        self._builders: dict[str, Callable[[str, Path], list[list[object]]]] = {
            "shard": self._shard,
            "record": self._record,
            "manifest": self._manifest,
            "file": self._file,
            "path": self._path,
            "record-path": self._record_path,
            "node": self._node,
            "config": self._train,
            "own-config": self._own_config,
            "huggingface": self._huggingface,
            "huggingface-json": self._huggingface_json,
            "sigmf": self._sigmf,
        }

    def points(self, *, whole: bool) -> Sequence[str]:
        """Every file, in every place that a command reads; of a quick part every 25th."""
        content = {**PICKLES, **BOMBS}
        named = ("environment.json", "metrics.jsonl", "incidents/incident_0001.json", *UNBOUND)
        points = [
            *(f"shard {name}" for name in (*PICKLES, *HEADS, "nothing", "zeros")),
            *(f"{kind} {name}" for kind in ("record", "manifest") for name in content),
            *(f"file {name} {which}" for name in named for which in ("pickle-system", "torch-zip", "deep", "wide")),
            *(f"file {name} {which}" for name in UNBOUND for which in ROWS),
            *(f"path {name}" for name in PATHS),
            *(f"record-path {name}" for name in ("up", "absolute", "linked", "zero", "case")),
            *(f"node {kind} {name}" for kind in self._kinds() for name in NODES),
            *(f"node {kind} events.jsonl" for kind in ("link-to-zero", "pipe", "gigabyte")),
            *(f"config {name}" for name in (*CONFIGS, *PICKLES)),
            *(f"own-config {name}" for name in CONFIGS),
            *(f"huggingface {name}" for name in ("bin", "escaping", *PICKLES, *HEADS)),
            *(f"huggingface-json {name}" for name in (*PICKLES, *BOMBS)),
            *(f"sigmf {name}" for name in ("escaping", "absolute", *BOMBS)),
        ]
        points += [f"{kind} {name}" for kind, (_, names) in STARTS.items() for name in names]
        return points if whole else points[::EACH]

    def _kinds(self) -> tuple[str, ...]:
        try:
            os.mknod(self._folder / "zero", stat.S_IFCHR | 0o600, os.makedev(1, 5))
            (self._folder / "zero").unlink()
        except PermissionError:
            print("no right to make a device: it is left out", file=sys.stderr)
            return tuple(kind for kind in KINDS if kind != "zero")
        return KINDS

    def check(self, point: str, folder: Path) -> None:
        """Put the file in its place, and run the commands that meet it."""
        kind, name = point.split(" ", 1)
        self._here, self._outside, self._canary = folder, folder / "outside", folder / "canary"
        self._outside.mkdir()
        (self._outside / "secret").write_bytes(SECRET)
        work = folder / "work"
        work.mkdir()
        if kind in STARTS:
            commands = STARTS[kind][0](Place(self._folder, self._config, work, self._outside, self._canary), name)
        else:
            commands = self._builders[kind](name, work)
        before = _seen(work)
        for words in commands:
            call = self._calls.call([*words, "--json"], work)
            self._judge(call, words, kind, name)
            if words[0] != "resume" or call.code in (2, 3):
                assert _seen(work) == before, f"{words[0]} has changed something"
        assert (self._outside / "secret").read_bytes() == SECRET
        assert sorted(os.listdir(self._outside)) == ["secret"], "something was written outside"

    def _judge(self, call: Call, words: list[object], kind: str, name: str) -> None:
        where = f"pretrain {words[0]}: {call.code}\n{call.out[-2000:]}\n{call.err[-4000:]}"
        assert not self._canary.exists(), f"code was run: {where}"
        assert call.code is not None, f"killed after {call.seconds:.1f} s, {call.memory / 1e6:.0f} MB: {where}"
        assert call.seconds < SECONDS, f"{call.seconds:.1f} s: {where}"
        assert LEAST_MEMORY < call.memory < MEMORY, f"{call.memory / 1e6:.1f} MB: {where}"
        assert not call.executed, f"{call.executed}: {where}"
        assert not call.opened(self._outside), f"{call.opened(self._outside)}: {where}"
        assert "Traceback" not in call.err, where
        is_unbound = bool({*name.split(" ")} & {*UNBOUND})
        is_resumed = is_unbound and words[0] == "resume"
        assert call.code in ((0, 3) if is_resumed else codes_of(kind, name, words[0])), where
        assert call.out.count("\n") == 1, where
        answer = json.loads(call.out)
        if words[0] == "verify-manifest" and call.code == 3:
            found = [*answer["extra"], *answer["missing"], *answer["changed"], *answer["unsafe"]]
            assert (
                found or answer["parent_ok"] is False or is_unbound or name in ("another-model", "shape-2^63-of-0")
            ), where
        elif call.code in (2, 3) and not is_resumed and words[0] != "verify-manifest":
            assert answer["reason"], where
            assert call.err.startswith("pretrain: "), where
            assert len(call.err) < MESSAGE, f"a message of {len(call.err)} letters: {where}"

    # --- what is put where; each returns the commands that meet it -------------------------------------

    def _copy(self, run: str, work: Path) -> Path:
        """A copy of a run, whose attempt is returned."""
        import shutil

        return shutil.copytree(self._folder / run, work / "run") / "attempts/0001"

    def _all(self, attempt: Path) -> list[list[object]]:
        return [["verify-manifest", attempt], ["resume", "--attempt", attempt]]

    def _every(self, attempt: Path) -> list[list[object]]:
        """What meets the checkpoint of an attempt besides."""
        place = attempt / NEWEST
        return [*self._all(attempt), ["inspect-checkpoint", place], ["verify-manifest", place]]

    def _shard(self, name: str, work: Path) -> list[list[object]]:
        """In every checkpoint, and all records sealed over it."""
        attempt = self._copy("stopped", work)
        for place in attempt.glob("checkpoints/*"):
            data = {**PICKLES, **HEADS, **BOMBS}[name](self._canary)
            (place / SHARD).write_bytes(data)
            bound = {"path": SHARD, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            (place / RECORD).write_bytes(rewrite(place / RECORD, {"files": [bound]}))
        return self._every(attempt)

    def _record(self, name: str, work: Path) -> list[list[object]]:
        attempt = self._copy("stopped", work)
        for place in attempt.glob("checkpoints/*"):
            (place / RECORD).write_bytes({**PICKLES, **BOMBS}[name](self._canary))
        return self._every(attempt)

    def _manifest(self, name: str, work: Path) -> list[list[object]]:
        attempt = self._copy("finished", work)
        (attempt / MANIFEST).write_bytes({**PICKLES, **BOMBS}[name](self._canary))
        return self._all(attempt)

    def _file(self, words: str, work: Path) -> list[list[object]]:
        file, name = words.split(" ")
        attempt = self._copy("stopped", work)
        (attempt / file).write_bytes({**PICKLES, **BOMBS, **ROWS}[name](self._canary))
        return self._all(attempt)

    def _path(self, name: str, work: Path) -> list[list[object]]:
        """One more file that a manifest names, with all digests right."""
        attempt = self._copy("finished", work)
        path = PATHS[name].format(outside=self._outside)
        if name == "linked":
            (attempt / "link").symlink_to(self._outside, target_is_directory=True)
        record = json.loads((attempt / MANIFEST).read_bytes())
        entry = {"path": path, "bytes": len(SECRET), "sha256": hashlib.sha256(SECRET).hexdigest(), "role": "telemetry"}
        listed = sorted([*record["files"], entry], key=lambda one: one["path"])
        (attempt / MANIFEST).write_bytes(rewrite(attempt / MANIFEST, {"files": listed}))
        return self._all(attempt)

    def _record_path(self, name: str, work: Path) -> list[list[object]]:
        """The one file that the record of a checkpoint names, with all digests right."""
        attempt = self._copy("stopped", work)
        path = PATHS[name].format(outside=self._outside)
        bound = {"path": path, "bytes": len(SECRET), "sha256": hashlib.sha256(SECRET).hexdigest()}
        for place in attempt.glob("checkpoints/*"):
            (place / RECORD).write_bytes(rewrite(place / RECORD, {"files": [bound]}))
        return self._every(attempt)

    def _node(self, words: str, work: Path) -> list[list[object]]:
        """Something else than a file, in the place of one; of a checkpoint in the place of those of all of them."""
        kind, name = words.split(" ")
        attempt = self._copy("finished" if name == MANIFEST else "stopped", work)
        names = [name]
        if name.startswith(NEWEST):
            names = [str(path.relative_to(attempt)) for path in attempt.glob(f"checkpoints/*/{Path(name).name}")]
        for one in names:
            self._make(kind, attempt / one)
        return self._every(attempt) if len(names) > 1 else self._all(attempt)

    def _make(self, kind: str, path: Path) -> None:
        if kind == "zero":
            path.unlink()
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
        else:
            make(kind, path, self._outside)

    def _train(self, name: str, work: Path) -> list[list[object]]:
        config = work / "config.yaml"
        config.write_bytes({**CONFIGS, **PICKLES}[name](self._canary))
        return [["train", "--config", config], ["plan", "--config", config]]

    def _own_config(self, name: str, work: Path) -> list[list[object]]:
        """The config of an attempt, bound by its environment as if it had been written so."""
        attempt = self._copy("stopped", work)
        (attempt / "config.yaml").write_bytes(CONFIGS[name](self._canary))
        forge(attempt)
        return [["resume", "--attempt", attempt]]

    def _huggingface(self, name: str, work: Path) -> list[list[object]]:
        """Weights that a new run is to start from."""
        folder = weights_folder(work)
        if name == "bin":
            (folder / "pytorch_model.bin").write_bytes(PICKLES["torch-zip"](self._canary))
        elif name == "escaping":
            index = {"weight_map": {"model.norm.weight": "../../outside/secret", "lm_head.weight": "/dev/zero"}}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        else:
            (folder / "model.safetensors").write_bytes({**PICKLES, **HEADS}[name](self._canary))
        config = write_config(work)
        return [["train", "--config", config, "model.layers=1", f"init.from_huggingface={folder}"]]

    def _huggingface_json(self, name: str, work: Path) -> list[list[object]]:
        """The description of such weights, and the index of their files."""
        (command,) = self._huggingface("escaping", work)
        folder = work / "weights"
        (folder / "model.safetensors.index.json").write_bytes({**PICKLES, **BOMBS}[name](self._canary))
        other = work / "more"
        other.mkdir()
        (other / "config.json").write_bytes({**PICKLES, **BOMBS}[name](self._canary))
        return [command, [*command[:-1], f"init.from_huggingface={other}"]]

    def _sigmf(self, name: str, work: Path) -> list[list[object]]:
        """A recording of radio, described by a stranger."""
        meta = work / "recording.sigmf-meta"
        (work / "recording.sigmf-data").write_bytes(bytes(4096))
        if name in ("escaping", "absolute"):
            dataset = "../../outside/secret" if name == "escaping" else str(self._outside / "secret")
            fields = {"core:datatype": "cu8", "core:version": "1.0.0", "core:dataset": dataset}
            meta.write_text(json.dumps({"global": fields, "captures": [], "annotations": []}))
        else:
            meta.write_bytes(BOMBS[name](self._canary))
        config = write_config(work, "iq")
        text = config.read_text().replace("source: synthetic-iq, windows: 70", f"source: iq, path: {meta}")
        config.write_text(text)
        return [["train", "--config", config]]


def _seen(folder: Path) -> dict[str, tuple[str, int, int]]:
    """Kind, size and time of the last change of all below a folder, but for the lock that a resume takes and leaves."""
    found = {name: (kind, (folder / name).lstat()) for name, kind in reading.walk(folder)}
    return {
        name: (kind, at.st_size if kind == "file" else 0, at.st_mtime_ns)
        for name, (kind, at) in found.items()
        if name not in ("run", "run/run.lock")
    }


@contextmanager
def opened(folder: Path, seed: int) -> Iterator[Hostile]:
    """Start the process that forks, and train both runs; `seed` changes nothing: every file is gone through."""
    (folder / "calls").mkdir()
    with (
        mock.patch.dict(os.environ, PRETRAIN_ALLOW_FAULTS="1"),
        mock.patch.object(syscalls, "system", Unsynced()),
        Calls(folder / "calls") as calls,
    ):
        yield Hostile(calls, folder)


LAYER = Layer("L8", "files of a stranger: no code runs, nothing outside is opened", (25, 630), opened)
