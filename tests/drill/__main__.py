"""python -m tests.drill: go through every layer, print a row for each, and end with 1 where anything was lost."""

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.drill.layers import LAYERS
from tests.drill.run import HEADER
from tests.drill.workers import drill_all


def main() -> int:
    """Read the words of the command line, drill, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.drill", description=__doc__)
    parser.add_argument("--layer", action="append", choices=[layer.name for layer in LAYERS], help="only this one")
    parser.add_argument("--quick", action="store_true", help="the part of each layer that runs with the tests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--point", action="append", default=[], help="only this one, of one layer")
    parser.add_argument("--workers", type=int, default=2, help="layers that are gone through at a time (default 2)")
    parser.add_argument("--keep", action="store_true", help="leave the folders of bad points, and say where")
    parser.add_argument("--list", action="store_true", help="print the names of the points, and make no fault")
    arguments = parser.parse_args()
    if arguments.point and len(arguments.layer or ()) != 1:
        parser.error("--point needs the one --layer that it belongs to")
    chosen = [layer for layer in LAYERS if not arguments.layer or layer.name in arguments.layer]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folder = Path(tempfile.mkdtemp(prefix="drill-"))
    whole, done = not arguments.quick, []
    if arguments.list:
        for layer in (one for one in chosen if one.missing() is None):
            own = folder / layer.name
            own.mkdir()
            with layer.open(own, arguments.seed) as faults:
                for point in faults.points(whole=whole):
                    print(f"{layer.name} {point}")
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    print(HEADER, flush=True)
    began = time.monotonic()
    for found in drill_all(
        chosen,
        folder,
        arguments.seed,
        arguments.workers,
        whole=whole,
        only=arguments.point,
        keep=arguments.keep,
    ):
        print(found.line(), flush=True)
        if found.counted:
            print(f"      {found.counted}", flush=True)
        for one in found.wrong:
            print(f"\nWRONG {one.layer} {one.point}: {one.what}\nagain: {one.command}\n", flush=True)
        done.append(found)
    wrong = [one for found in done for one in found.wrong]
    seconds = time.monotonic() - began
    print(f"{'all':<5} {sum(found.points for found in done):>7} {len(wrong):>5} {seconds:>9.1f} {arguments.seed:>5}")
    for found in done:
        for line in found.not_tested():
            print(line)
    if arguments.keep and wrong:
        print(f"\nkept: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
