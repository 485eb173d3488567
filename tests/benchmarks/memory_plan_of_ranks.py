"""The memory plan of each rank against its peak: `python tests/benchmarks/memory_plan_of_ranks.py`.

Each case is one run with a Learner of several ranks, on the CPU with gloo, of a model large enough that its weights and
not the libraries decide: eight layers of 9.8 million weights each, 303 MiB in float32. What each rank held at most,
without files and shared memory, is read by the run itself at its end (``VmHWM``) and set against the plan.
Prompts are counted with the run's own tokenizer.
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

MIB, ROOT = 2**20, Path(__file__).resolve().parents[2]
SHAPE = {"hidden_size": 768, "intermediate_size": 3584, "num_attention_heads": 6, "num_key_value_heads": 2}
CASES: dict[str, dict[str, Any]] = {
    "ddp, 2 ranks": {"ranks": 2, "sharding": "ddp"},
    "fsdp2, 2 ranks": {"ranks": 2, "sharding": "fsdp2"},
    "fsdp2, 2 ranks, 2 microbatches": {"ranks": 2, "sharding": "fsdp2", "gradient_accumulation_steps": 2},
    "fsdp2, 2 ranks, KL monitored": {"ranks": 2, "sharding": "fsdp2", "monitor": True},
    "fsdp2, 2 ranks, per_tensor": {"ranks": 2, "sharding": "fsdp2", "publish": "per_tensor"},
    "tensor, 2 ranks": {"ranks": 2, "sharding": "fsdp2", "mesh": {"tensor": 2}},
    "hybrid, 4 ranks": {"ranks": 4, "sharding": "fsdp2", "mesh": {"replicate": 2}},
    "fsdp2 x tensor, 4 ranks": {"ranks": 4, "sharding": "fsdp2", "mesh": {"tensor": 2}},
    "ddp x tensor, 4 ranks": {"ranks": 4, "sharding": "ddp", "mesh": {"tensor": 2}},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="cases to run, by the start of their name")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return run_here(json.loads(options.child))
    chosen = [name for name in CASES if not options.only or any(name.startswith(start) for start in options.only)]
    figures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate(chosen, start=1):
            print(f"{number} of {len(chosen)}: {name}", file=sys.stderr, flush=True)
            figures += measure(name, Path(scratch), options.layers)
            print(table(figures[-3:]), file=sys.stderr, flush=True)
    print(json.dumps(figures) if options.json else table(figures))
    return 0


def measure(name: str, scratch: Path, layers: int) -> list[dict[str, Any]]:
    """Run one case in a process of its own; return a row for rank 0 and one for the highest of the others."""
    child = json.dumps({"case": CASES[name], "out": str(scratch / name.replace(" ", "_")), "layers": layers})
    command = [sys.executable, __file__, "--child", child]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{name} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    others = [each for lane, each in found["lanes"].items() if lane != "learner/0"]
    rows = {"rank 0": found["lanes"]["learner/0"], "other ranks": max(others, key=lambda each: each["peak"])}
    return [{"case": name, "rank": rank, **row} for rank, row in rows.items()] + [
        {"case": name, "rank": "all processes", **found["all"]}
    ]


def run_here(order: dict[str, Any]) -> int:
    """Carry a case out in this process and print plan and peak of each rank, in bytes."""
    import yaml

    from harness.models.make_folder import make_folder
    from harness.models.published import PUBLIC_SHAPES
    from harness.run.experiment import run_scenario
    from harness.run.memory.fit import needed_main
    from harness.run.memory.plan import make_plan
    from harness.run.memory.shape import shape_for
    from harness.scenario.load import load_scenario
    from tests.benchmarks.memory_plan_vs_real import longest_prompt

    out, case = Path(order["out"]), dict(order["case"])
    out.mkdir(parents=True)
    PUBLIC_SHAPES["narrow"] = {**PUBLIC_SHAPES["qwen2.5-math-1.5b"], **SHAPE}
    make_folder("narrow", out / "model", layers=order["layers"], vocab_size=1024, dtype="float32")
    ranks, steps = case.pop("ranks"), case.pop("gradient_accumulation_steps", 1)
    settings = {
        "description": "memory of ranks",
        "trackers": ["jsonl"],
        "save_policy": False,
        "steps": 3,
        "evaluation": {"every": 3, "prompts": 4},
        "group_size": 4,
        "rollout_batch_size": 16,
        "gradient_accumulation_steps": steps,
        "sampling": {"min_tokens": 32, "max_tokens": 32},
        "loss": {"kl": {"monitor": case.pop("monitor", False)}},
        "model": {"type": "folder", "path": str(out / "model")},
        "transport": {"type": "shared_memory"},
        "placement": {"learner": {"ranks": ranks, "cpus": 0.25, "threads": 1}},
        "learner": case,
    }
    path = out / "case.yaml"
    path.write_text(yaml.safe_dump(settings))
    scenario = load_scenario(path)
    run_scenario(scenario, out, quiet=True, show=lambda folder: None)
    (manifest,) = out.rglob("manifest.json")
    main_memory = json.loads(manifest.read_text())["outcome"]["memory"]["main"]
    shape, _ = shape_for(scenario)
    assert shape is not None
    plan = make_plan(scenario, shape, prompt_tokens=longest_prompt(scenario))
    planned = {lane: process.own_peak for process in plan.processes for lane in process.lanes}
    lanes = {
        lane: {"planned": planned[lane], "peak": each["peak_bytes"]}
        for lane, each in main_memory["lanes"].items()
        if lane.startswith("learner")
    }
    whole = {"planned": needed_main([plan]), "peak": main_memory["peak_bytes"]}
    print(json.dumps({"lanes": lanes, "all": whole, "parts": main_memory["lanes"]}))
    return 0


def table(figures: list[dict[str, Any]]) -> str:
    """The figures as a Markdown table."""
    rows = ["| mode | whose | planned, MiB | peak, MiB | planned / peak |", "|---|---|---|---|---|"]
    for row in figures:
        planned, peak = row["planned"], row["peak"]
        rows.append(
            f"| {row['case']} | {row['rank']} | {planned / MIB:.0f} | {peak / MIB:.0f} | {planned / peak:.2f} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
