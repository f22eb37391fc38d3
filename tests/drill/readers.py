"""What the readers of L11 do in the processes that are forked for them: they read on until the writer is done."""

import io
import json
import re
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from pretrain import lineage
from pretrain.errors import ConfigError, IntegrityError
from pretrain.evidence import checkpoint, inspection, namespace
from pretrain.evidence.checkpoint_record import RECORD_NAME
from tests.drill.concurrency import run_pretrain
from tests.loop.forks import Order

PATIENCE_SECONDS = 50.0
# What no record binds yet, or no longer, and what has not got its name.
BEING_WRITTEN = re.compile(r"checkpoints/step_\d{8}/.*|(.*/)?\.tmp-[^/]*")


def verify_until_done(order: Order) -> int:
    """In a child: verify the run again and again until it verifies, which it may only once its manifest is there."""
    run, deadline = Path(order.words[0]), time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if namespace.newest(run) is None:
            continue
        report = lineage.verify(run)
        _check_damage(report.answer())
        assert report.ok or report.unfinished, report.text()
        if report.ok:
            assert (namespace.attempt_folder(run, 1) / "manifest.json").exists()
            return 0
    return 1


def inspect_until_done(order: Order) -> int:
    """In a child: inspect every checkpoint there is again and again; one may be gone, but none is read wrong."""
    attempt, deadline = namespace.attempt_folder(Path(order.words[0]), 1), time.monotonic() + PATIENCE_SECONDS
    records: dict[int, str] = {}
    while time.monotonic() < deadline:
        for step, folder in checkpoint.list_checkpoints(attempt) if attempt.exists() else ():
            try:
                found = inspection.inspect(folder, None)
            except (IntegrityError, ConfigError):  # A folder without a record is none to inspect: the name was wrong.
                assert not (folder / RECORD_NAME).exists(), f"{folder} is there and does not verify"
                continue
            assert records.setdefault(step, found["record_sha256"]) == found["record_sha256"], folder
        if (attempt / "manifest.json").exists():
            assert records
            return 0
        time.sleep(0.005)
    return 1


def verify_by_command(order: Order) -> int:
    """In a child: `verify-manifest` again and again until the second attempt is done; it never calls one damaged."""
    run, deadline = Path(order.words[0]), time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        attempt = namespace.attempt_folder(run, namespace.newest(run) or 1)
        code, answer = _asked("verify-manifest", str(attempt))
        _check_damage(answer)
        assert (code, answer["unfinished"]) in ((0, False), (IntegrityError.exit_code, True)), answer
        if code == 0:
            assert attempt.name == "0002"
            return 0
        time.sleep(0.005)
    return 1


def inspect_by_command(order: Order) -> int:
    """In a child: `inspect-checkpoint` of all there are until the second attempt is done: right, or gone meanwhile."""
    run, deadline = Path(order.words[0]), time.monotonic() + PATIENCE_SECONDS
    records: dict[Path, str] = {}
    while time.monotonic() < deadline:
        attempts = [namespace.attempt_folder(run, number) for number in namespace.list_attempts(run)]
        for folder in [folder for attempt in attempts for _, folder in checkpoint.list_checkpoints(attempt)]:
            code, answer = _asked("inspect-checkpoint", str(folder))
            if code == 0:
                assert records.setdefault(folder, answer["record_sha256"]) == answer["record_sha256"], folder
            else:
                assert code in (2, 3), answer
                assert not (folder / RECORD_NAME).exists(), f"{folder} is there and does not verify: {answer}"
        if (namespace.attempt_folder(run, 2) / "manifest.json").exists():
            assert records
            return 0
        time.sleep(0.005)
    return 1


def _check_damage(answer: Mapping[str, Any]) -> None:
    """Nothing is called damaged: a checkpoint that was pruned while it was read is none."""
    assert (answer["missing"], answer["changed"], answer["unsafe"]) == ([], [], []), answer
    assert answer["parent_ok"] is not False, answer
    assert answer["unfinished"] or not answer["extra"], answer
    assert all(BEING_WRITTEN.fullmatch(name) for name in answer["extra"]), answer


def _asked(*words: str) -> tuple[int, dict[str, Any]]:
    """Run a command in this process; return its exit code and its answer, none where its words were refused."""
    with redirect_stdout(io.StringIO()) as said:
        code = run_pretrain([*words, "--json"])
    return code, json.loads(said.getvalue() or "{}")
