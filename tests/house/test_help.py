"""`pretrain --help`, in a process of its own, because this one has long imported torch."""

import json
import subprocess
import sys
from collections.abc import Callable

PROGRAM = """
import json, sys, time
from pretrain import cli
try:
    cli.application(["--help"], prog_name="pretrain")
except SystemExit as ended:
    code = ended.code
print(json.dumps({"code": code, "seconds": time.process_time(), "modules": sorted(sys.modules)}), file=sys.stderr)
"""


def test_help_imports_no_torch(record_property: Callable[[str, object], None]) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    answer = json.loads(done.stderr)
    record_property("cpu_seconds_of_help", answer["seconds"])  # 0.2 was seen; what a machine takes is no contract
    assert answer["code"] == 0
    assert all(name in done.stdout for name in ("train", "resume", "verify-manifest", "inspect-checkpoint"))
    imported = {name.partition(".")[0] for name in answer["modules"]}
    assert not imported & {"torch", "numpy", "omegaconf", "safetensors", "pynvml"}
    of_ours = {name for name in answer["modules"] if name.startswith("pretrain.")}
    assert of_ours == {
        *("pretrain.cli", "pretrain.errors", "pretrain.machine", "pretrain.machine.leaving"),
        *("pretrain.machine.signals", "pretrain.streams"),
    }
