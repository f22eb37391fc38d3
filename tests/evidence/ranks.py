"""Several ranks with a real process group, forked from the test: torch is imported once."""

import datetime
import os
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import torch.distributed


def run_ranks(world: int, folder: Path, body: Callable[[int], None]) -> None:
    """Run `body(rank)` in `world` processes joined by gloo; AssertionError with the traceback of each that failed."""
    folder.mkdir(parents=True)
    children = {}
    for rank in range(world):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside the threads of a test runner
            child = os.fork()
        if child == 0:
            _rank(rank, world, folder, body)
        children[child] = rank
    failed = [rank for child, rank in children.items() if os.waitpid(child, 0)[1] != 0]
    texts = [path.read_text() for rank in failed if (path := folder / f"rank{rank}.txt").exists()]
    assert not failed, "\n".join([f"ranks {failed} of {world} failed", *texts])


def _rank(rank: int, world: int, folder: Path, body: Callable[[int], None]) -> None:
    status = 1
    try:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{folder / 'store'}",
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=60),
        )
        body(rank)
        torch.distributed.destroy_process_group()
        status = 0
    except BaseException:  # noqa: BLE001 - it must not reach the test runner that this process was forked from
        (folder / f"rank{rank}.txt").write_text(traceback.format_exc())
    finally:
        os._exit(status)
