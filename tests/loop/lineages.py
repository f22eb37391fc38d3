"""A run that is killed and goes on: one life after the other, and what must hold after each of them."""

import hashlib
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from pretrain import lineage, reading
from pretrain.config import to_yaml
from pretrain.evidence import checkpoint, namespace
from tests.loop.forks import Forks, Life, Order
from tests.tiny import tiny, train

KEPT = ("checkpoint.keep_every_n_steps=4", "model.layers=1", "training.max_steps=16")

End = tuple[str, bytes, tuple[bytes, ...]]
Tree = dict[str, tuple[str, int, str]]


def small_config(folder: Path, task: str, max_steps: int, every: int, *more: str) -> Path:
    """Write a config whose lives are short: one layer, checkpoint and validation every `every` steps."""
    overrides = [
        *(f"training.max_steps={max_steps}", f"checkpoint.checkpoint_every_n_steps={every}"),
        *(f"validation.validate_every_n_steps={every}", "model.layers=1", "model.width=8", "model.heads=1"),
        *("model.kv_heads=1", "training.gradient_accumulation_steps=1", *more),
    ]
    path = folder / f"small-{task}.yaml"
    path.write_text(to_yaml(tiny(folder, task, *overrides)))
    return path


def whole_and_stopped(folder: Path) -> Path:
    """Leave two runs of 16 steps in `folder`, `whole` and one that was `stopped` after 14; every fourth is kept."""
    train(tiny(folder, "text", *KEPT, run="whole"))
    train(tiny(folder, "text", *KEPT, run="stopped"), 14)
    return folder


def tree(folder: Path) -> Tree:
    """Return kind, modification time in ns and SHA-256 of all that is under `folder`, and of the folder itself."""
    found: Tree = {}
    for name, kind in [(".", "folder"), *reading.walk(folder)]:
        path = folder / name
        content = hashlib.sha256(path.read_bytes()).hexdigest() if kind == "file" else ""
        found[name] = (kind, path.lstat().st_mtime_ns, content)
    return found


def end_of(run: Path) -> End:
    """Return the SHA-256 of the last checkpoint's record, metric stream and incidents of a run that is done."""
    number = namespace.newest(run)
    assert number is not None
    attempt = namespace.attempt_folder(run, number)
    assert lineage.verify(attempt).ok, lineage.verify(attempt).text()
    _, folder = checkpoint.list_checkpoints(attempt)[-1]
    record = (folder / "checkpoint.json").read_bytes()
    incidents = tuple(path.read_bytes() for path in sorted(attempt.glob("incidents/*")))
    return hashlib.sha256(record).hexdigest(), (attempt / "metrics.jsonl").read_bytes(), incidents


def check_claims(attempt: Path) -> None:
    """An attempt is done and verifies, or is unfinished and whole in all that it has bound, its parent included."""
    found = lineage.verify(attempt)
    damage = (found.changed, found.missing, found.unsafe)
    assert found.ok or (found.unfinished and damage == ((), (), ())), found.text()
    assert found.parent_ok is not False, found.text()


class Lineage:
    """One run and the lives it has had; every life is checked against what a kill may and may not leave behind."""

    def __init__(self, forks: Forks, config: Path, run: Path) -> None:
        self.forks, self.config, self.run = forks, config, run
        self.lives: list[Life] = []
        self.kinds: Counter[str] = Counter()
        self._trees: dict[int, Tree] = self._attempts()
        self._step = self.newest_step()

    def live(self, ends: Collection[int] = (0,), **how: object) -> Life:
        """Go on with the run for one life: `train` where there is no attempt yet, else `resume`."""
        config = None if self._trees else str(self.config)
        order = Order(str(self.run), f"{self.run}.log", config, **how)  # type: ignore[arg-type]
        life = self.forks.live(order, ends)
        return self.lived(life, str(how))

    def lived(self, life: Life, how: str) -> Life:
        """Take in a life, wherever it was lived, and check what it has left behind."""
        before, step = self._trees, self._step
        self.lives.append(life)
        where = f"life {len(self.lives)}, {how}: {life}"
        after = self._attempts()
        assert {number: after.get(number) for number in before} == before, f"an earlier attempt was touched: {where}"
        self._step = self.newest_step()
        assert life.announced <= self._step, f"a checkpoint that was announced is lost: {where}"
        if life.exit_code == 0:
            assert not list((self.run / "attempts").glob(".tmp-*")), f"temporaries are left: {where}"
        elif len(after) == len(before):
            self.kinds["unborn"] += 1
        else:
            self.kinds["progress" if self._step > step else "no progress"] += 1
        self._trees = after
        return life

    def newest_step(self) -> int:
        """Return the step of the newest durable checkpoint of any attempt, -1 = there is none."""
        attempts = [namespace.attempt_folder(self.run, number) for number in namespace.list_attempts(self.run)]
        return max((step for attempt in attempts for step, _ in checkpoint.list_checkpoints(attempt)), default=-1)

    def check_claims(self) -> None:
        """Every attempt is done and verifies, or claims not to be done, and nothing that it has bound is damaged."""
        for number in namespace.list_attempts(self.run):
            check_claims(namespace.attempt_folder(self.run, number))

    def check_attempts(self) -> None:
        """An attempt with a manifest verifies, one without claims nothing, and each finds its parent as it was."""
        *killed, last = namespace.list_attempts(self.run)
        for number in killed:
            found = lineage.verify(namespace.attempt_folder(self.run, number))
            assert not found.ok, found.text()
            assert found.unfinished, found.text()
            assert (found.changed, found.missing, found.unsafe) == ((), (), ()), found.text()
            assert found.parent_ok is not False, found.text()
        found = lineage.verify(namespace.attempt_folder(self.run, last))
        assert found.ok, found.text()

    def _attempts(self) -> dict[int, Tree]:
        numbers = namespace.list_attempts(self.run)
        return {number: tree(namespace.attempt_folder(self.run, number)) for number in numbers}
