"""The memory plan against what runs really hold: `python tests/benchmarks/memory_plan_vs_real.py`.

Each case is one run in a process of its own, on the CPU; the peak that its manifest tells is set against the plan's.
Prompts are counted with the run's own tokenizer, so that what is compared is the arithmetic and not the assumed length
of prompts.

Any run says at its end what was planned and what it held; this is for models and microbatches that no scenario has.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

GIB, ROOT = 2**30, Path(__file__).resolve().parents[2]
QUICK = {"steps": 2, "evaluation": {"every": 2, "prompts": 4}}
LONG = {**QUICK, "group_size": 4, "rollout_batch_size": 16, "sampling": {"min_tokens": 48, "max_tokens": 48}}
CASES: dict[str, dict[str, Any]] = {
    "small, 64 x 32 tokens": {**QUICK, "model": {"warm_start": False}},
    "small, 256 x 96 tokens": {
        **QUICK,
        "model": {"warm_start": False},
        "rollout_batch_size": 256,
        "sampling": {"min_tokens": 96, "max_tokens": 96},
    },
    "qwen, 2 layers, 16 x 48 tokens": LONG,
    "the same, checkpointing": {**LONG, "model": {"gradient_checkpointing": True}},
    "the same, 4 microbatches": {**LONG, "gradient_accumulation_steps": 4},
    "the same, bfloat16 weights": {**LONG, "model": {"dtype": "bfloat16"}},
    "the same, KL monitored": {**LONG, "loss": {"kl": {"monitor": True}}},
    "qwen, 1 layer, vocabulary 151,936": {
        **QUICK,
        "group_size": 4,
        "rollout_batch_size": 16,
        "sampling": {"min_tokens": 32, "max_tokens": 32},
    },
}
"""What each case says beside its model: cases called qwen, and those that follow them, run on a folder."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="cases to run, by the start of their name")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return run_here(json.loads(options.child))
    chosen = [name for name in CASES if not options.only or any(name.startswith(start) for start in options.only)]
    figures = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate(chosen, start=1):
            print(f"{number} of {len(chosen)}: {name}", file=sys.stderr, flush=True)
            figures.append({"case": name, **measure(name, Path(scratch))})
            print(table(figures[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(json.dumps(figures) if options.json else table(figures))
    return 0


def measure(name: str, scratch: Path) -> dict[str, float]:
    """Run one case in a process of its own."""
    settings = {"description": name, **CASES[name]}
    if not name.startswith("small"):
        layers, vocab = (1, 151936) if "151,936" in name else (2, 512)
        settings["model"] = {"type": "folder", "path": str(folder(scratch, layers, vocab)), **settings.get("model", {})}
    settings["model"] = {"threads": 1, **settings["model"]}
    child = json.dumps({"settings": settings, "out": str(scratch / name)})
    command = [sys.executable, __file__, "--child", child]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def folder(scratch: Path, layers: int, vocab: int) -> Path:
    """Make the model's folder, once."""
    path = scratch / f"qwen_{layers}_{vocab}"
    if not path.exists():
        from harness.models.make_folder import make_folder

        make_folder("qwen2.5-math-1.5b", path, layers=layers, vocab_size=vocab)
    return path


def run_here(order: dict[str, Any]) -> int:
    """Carry a case out in this process and print the plan's peak and the real one, in bytes."""
    import yaml

    from harness.run.experiment import run_scenario
    from harness.run.memory.plan import make_plan
    from harness.run.memory.shape import shape_for
    from harness.scenario.load import load_scenario

    path = Path(order["out"]) / "case.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({"trackers": ["jsonl"], "save_policy": False, **order["settings"]}))
    scenario = load_scenario(path)
    run_scenario(scenario, path.parent, quiet=True, show=lambda folder: None)
    (manifest,) = path.parent.rglob("manifest.json")
    real = json.loads(manifest.read_text())["outcome"]["memory"]["main"]["peak_bytes"]
    shape, _ = shape_for(scenario)
    assert shape is not None
    plan = make_plan(scenario, shape, prompt_tokens=longest_prompt(scenario))
    print(json.dumps({"planned": plan.total("cpu"), "real": real}))
    return 0


def longest_prompt(scenario: Any) -> int:
    """Tokens of the longest prompt, with the run's own tokenizer."""
    from harness.run.parts import never
    from harness.run.policy import make_policy
    from harness.tasks.make import make_task

    task, tokenizer = make_task(scenario.task), make_policy(scenario, "cpu", never).tokenizer
    return max(len(tokenizer.encode(prompt.text)) for prompt in [*task.train_prompts, *task.validation_prompts])


def table(figures: list[dict[str, Any]]) -> str:
    """The figures as a Markdown table."""
    rows = ["| run | planned, GiB | real, GiB | planned / real |", "|---|---|---|---|"]
    for row in figures:
        planned, real = row["planned"], row["real"]
        rows.append(f"| {row['case']} | {planned / GIB:.2f} | {real / GIB:.2f} | {planned / real:.2f} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
