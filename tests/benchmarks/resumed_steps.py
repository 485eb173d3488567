"""Are the training steps of a run that went on after a kill as fast as those of one that never stopped?

    python -m tests.benchmarks.resumed_steps --blocks 10 --out /tmp/resumed

Two arms of the same settings run one after the other in blocks. The process is killed (``kill -9``) once in each block,
when the run of the arm ``resumed`` has its first checkpoint, and the experiment goes on by its own command in a new
process. Its verdict is that of any comparison: seconds of a training step, without the steps that count as warm-up, the
first two after a start or a resume among them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import yaml

from harness.core.checkpoints import LATEST
from harness.results.writer import CHECKPOINTS

POLL_S = 0.02


def write_scenario(folder: Path, blocks: int, steps: int, every: int) -> Path:
    """Write the scenario of the two arms: the quickstart with the smallest model."""
    scenario = {
        "extends": "quickstart",
        "steps": steps,
        "blocks": blocks,
        "arms": {"through": {}, "resumed": {}},
        "model": {"preset": "tiny", "threads": 1},
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
    """Run a command until a run of ``resumed`` has its first checkpoint, and kill it there; return whether it ended.

    Args:
        killed: runs that were killed once; the one that is killed joins them.
    """
    process = subprocess.Popen([sys.executable, "-m", "harness", "run", *command, "--quiet"])
    while process.poll() is None:
        for latest in out.glob(f"resumed_steps/*/resumed,*/{CHECKPOINTS}/{LATEST}"):
            name = latest.parents[1].name
            if name not in killed:
                killed.add(name)
                process.kill()
                process.wait()
                return False
        time.sleep(POLL_S)
    if process.returncode:
        raise SystemExit(process.returncode)
    return True


def main() -> None:
    """Run the blocks; the last command prints the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20, help="training steps of each run")
    parser.add_argument("--every", type=int, default=4, help="training steps until the kill")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="new folder for the results")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    scenario = write_scenario(options.out, options.blocks, options.steps, options.every)
    command, killed = [str(scenario), "--out", str(options.out)], set[str]()
    while not run_and_kill(command, options.out, killed):
        (folder,) = (options.out / "resumed_steps").iterdir()
        command = ["--resume", str(folder)]
    print(f"{len(killed)} runs were killed and went on")


if __name__ == "__main__":
    main()
