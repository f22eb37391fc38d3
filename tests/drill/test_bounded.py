"""What a command of the hostile layer is bounded in is measured: bytes that its fork takes, and no others."""

import json
import subprocess
import sys

from tests.loop.forks import ROOT

# A process of its own, for a fork of pytest would inherit its threads.
_PROGRAM = """
import json, sys
from tests.drill import bounded

held = bytearray(b"x" * (100 << 20))  # of the parent
taken = [0, 64 << 20]
bounded._run = lambda order, size: len(b"x" * int(order.words[0])) * 0
order = lambda size: bounded._Order([str(size)], ".", "", "")
print(json.dumps([bounded._fork(order(size))["memory"] for size in taken]))
"""


def test_the_memory_of_a_command_is_what_it_takes_itself() -> None:
    ended = subprocess.run([sys.executable, "-c", _PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    nothing, much = json.loads(ended.stdout)
    assert nothing < 16 << 20
    assert 60 << 20 < much < 96 << 20  # the system counts to within some pages
