"""The memory plan against what runs really hold: `python tests/benchmarks/memory_plan_vs_real.py`.

Each case is one run in a process of its own, on the CPU; its highest resident size (``ru_maxrss``) is set against the
plan's peak. Prompts are counted with the run's own tokenizer, so that what is compared is the arithmetic and not the
assumed length of prompts.

With ``--actors SCENARIO`` it runs a shipped scenario with Ray actors and adds up the proportional set sizes (PSS) of
all its processes once a second, so that pages which several of them share count once.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

GIB = 2**30
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
    parser.add_argument("--actors", metavar="SCENARIO", help="a shipped scenario with Ray actors, instead of the cases")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return run_here(json.loads(options.child))
    if options.actors:
        return run_actors(options.actors)
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
    child = json.dumps({"settings": settings, "out": str(scratch / "out")})
    command = [sys.executable, __file__, "--child", child]
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def run_actors(name: str) -> int:
    """Run three steps of a scenario, and print plan and real size of its processes when they were largest."""
    from harness.memory_plan.fit import needed_main
    from harness.memory_plan.known import shape_for
    from harness.memory_plan.plan import make_plan
    from harness.scenario import expand, load_scenario

    root = Path(__file__).resolve().parents[2]
    changes = ["steps=3", "evaluation.every=3"]
    variants = expand(load_scenario(root / "scenarios" / f"{name}.yaml", changes))
    shapes = [(variant.scenario, shape_for(variant.scenario)[0]) for variant in variants]
    planned = needed_main([make_plan(scenario, shape) for scenario, shape in shapes if shape is not None])
    largest: list[tuple[int, str]] = []
    with tempfile.TemporaryDirectory() as scratch:
        settings = [word for change in changes for word in ("--set", change)]
        command = [sys.executable, "-m", "harness", "run", name, *settings, "--out", scratch]
        with subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            while run.poll() is None:
                largest = max(largest, sizes_below(run.pid), key=lambda sizes: sum(size for size, _ in sizes))
                time.sleep(1)
    print("| process | real, MiB |\n|---|---|")
    for size, title in sorted(largest, reverse=True):
        print(f"| {title} | {size / 2**20:.0f} |")
    print(table([{"case": name, "planned": planned, "real": sum(size for size, _ in largest)}]))
    return run.returncode


def sizes_below(pid: int) -> list[tuple[int, str]]:
    """Proportional set size and title of a process and all below it; one just being started shares its parent's."""
    found: dict[tuple[str, int], tuple[int, str]] = {}
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []
    for process in processes:
        try:
            words, memory = process.cmdline(), process.memory_full_info()
        except psutil.Error:  # it has ended
            continue
        title = " ".join(Path(word).name for word in words[:3])[:40].strip()
        found[title, memory.uss] = memory.pss, title
    return list(found.values())


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

    from harness.memory_plan.known import shape_for
    from harness.memory_plan.plan import make_plan
    from harness.run import run_command
    from harness.scenario import load_scenario

    path = Path(order["out"]) / "case.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({"trackers": ["jsonl"], "save_policy": False, **order["settings"]}))
    scenario = load_scenario(path)
    run_command(scenario, path.parent, quiet=True, show=lambda folder: None)
    real = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    shape, _ = shape_for(scenario)
    assert shape is not None
    plan = make_plan(scenario, shape, prompt_tokens=longest_prompt(scenario))
    print(json.dumps({"planned": plan.total("cpu"), "real": real}))
    return 0


def longest_prompt(scenario: Any) -> int:
    """Tokens of the longest prompt, with the run's own tokenizer."""
    from harness.build.making import make_policy, make_task, never

    task, tokenizer = make_task(scenario), make_policy(scenario, "cpu", never).tokenizer
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
