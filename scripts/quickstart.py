"""Train a config, verify its manifest and inspect its last checkpoint, each by the command a person would type."""

import argparse
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path


def pretrain(*words: str, answer: bool = False) -> str:
    """Run `pretrain` with these words, show the command, and stop with its exit code when it fails."""
    print("$ pretrain " + shlex.join(words), flush=True)
    command = [sys.executable, "-m", "pretrain", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE if answer else None, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout or ""


def free_folder(wanted: Path) -> Path:
    """Return `wanted`, or the first of `wanted-2`, `wanted-3` … that no earlier run has taken."""
    number, folder = 1, wanted
    while folder.exists():
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")
    return folder


def main() -> None:
    """Read the words of the command line and run the three commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--run-dir", required=True, type=Path)
    arguments = parser.parse_intermixed_args()
    folder = free_folder(arguments.run_dir)

    started = time.monotonic()
    words = ["train", "--config", arguments.config, f"run.dir={folder}", *arguments.overrides, "--json"]
    result = json.loads(pretrain(*words, answer=True))
    seconds = time.monotonic() - started
    attempt = folder / "attempts" / f"{result['attempt']:04d}"
    pretrain("verify-manifest", str(attempt))
    checkpoint = attempt / "checkpoints" / f"step_{result['checkpoint']['step']:08d}"
    lines = pretrain("inspect-checkpoint", str(checkpoint), answer=True).splitlines()
    print("\n".join([*lines[:6], f"  ... and {len(lines) - 6} tensors more"]))

    print(f"\ntrained to step {result['step']} in {seconds:.0f} s, start-up included; held-out data says:")
    for domain, summary in result["validation"].items():
        shown = {key: value for key, value in summary.items() if isinstance(value, float)}
        print(f"  {domain}: " + ", ".join(f"{key} {value:.4f}" for key, value in shown.items()))
        for name, scores in summary.get("classes", {}).items():
            print(f"    {name or 'all'}: " + ", ".join(f"{k} {v:.3f}" for k, v in scores.items() if k != "samples"))


if __name__ == "__main__":
    main()
