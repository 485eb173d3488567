"""Are the training steps of a run that went on after a kill as fast as those of one that never stopped?

    python -m tests.benchmarks.resumed_steps --blocks 10 --out /tmp/resumed

Two arms of the same settings run one after the other in blocks. The process is killed (``kill -9``) twice in each
block: when the run of the arm ``resumed`` has its first checkpoint, and when that of ``through`` has ended. So each
begins in a new process, which computes more slowly in its first steps, and the experiment goes on by its own command.
Its verdict is that of any comparison: seconds of a training step, without the steps that count as warm-up after a start
or a resume.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import yaml

from harness.core.checkpoints import LATEST
from harness.results.writer import CHECKPOINTS, MANIFEST

POLL_S = 0.02


def write_scenario(folder: Path, preset: str, blocks: int, steps: int, every: int) -> Path:
    """Write the scenario of the two arms: the quickstart with a thread and a model of this preset."""
    scenario = {
        "extends": "quickstart",
        "steps": steps,
        "blocks": blocks,
        "arms": {"through": {}, "resumed": {}},
        "model": {"preset": preset, "threads": 1},
        "checkpoint": {"every": every},
        "evaluation": {"every": steps, "prompts": 8},
        "save_policy": False,
        "profile": "off",
        "trackers": [],
    }
    file = folder / "resumed_steps.yaml"
    file.write_text(yaml.safe_dump(scenario, sort_keys=False))
    return file


def run_and_kill(command: list[str], out: Path, killed: set[str]) -> bool:
    """Run a command and kill it after its next run to be struck; return whether it ended by itself.

    Args:
        killed: runs after or in which it was killed; the one where it is now joins them.
    """
    process = subprocess.Popen([sys.executable, "-m", "harness", "run", *command, "--quiet"])
    while process.poll() is None:
        for name in to_be_struck(out) - killed:
            killed.add(name)
            process.kill()
            process.wait()
            return False
        time.sleep(POLL_S)
    if process.returncode:
        raise SystemExit(process.returncode)
    return True


def to_be_struck(out: Path) -> set[str]:
    """Runs of ``resumed`` that have a checkpoint, and runs of ``through`` that have ended."""
    saved = {file.parents[1].name for file in out.glob(f"resumed_steps/*/resumed,*/{CHECKPOINTS}/{LATEST}")}
    manifests = {
        file.parent.name: json.loads(file.read_bytes()) for file in out.glob(f"resumed_steps/*/through,*/{MANIFEST}")
    }
    return saved | {name for name, manifest in manifests.items() if manifest["status"] == "completed"}


def main() -> None:
    """Run the blocks; the last command prints the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--steps", type=int, default=40, help="training steps of each run")
    parser.add_argument("--every", type=int, default=10, help="training steps until the kill")
    parser.add_argument("--preset", default="small", help="of the model")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder for the results")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    scenario = write_scenario(options.out, options.preset, options.blocks, options.steps, options.every)
    command, killed = [str(scenario), "--out", str(options.out)], set[str]()
    while not run_and_kill(command, options.out, killed):
        (folder,) = (options.out / "resumed_steps").iterdir()
        command = ["--resume", str(folder)]
    print(f"the command was killed {len(killed)} times and went on")


if __name__ == "__main__":
    main()
