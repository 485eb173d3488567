"""The memory plan against what runs really hold, on the CPU: models and microbatches that no scenario has.

Each case is one run in a process of its own; the peak that its manifest tells (``VmHWM``, without files and shared
memory for each rank) is set against the plan's. Prompts are counted with the run's own tokenizer, so that what is
compared is the arithmetic and not the assumed length of prompts. Models are large enough that weights and not libraries
decide: two layers of a 1.5B model's width, or eight of 9.8 million weights for ranks, which run on gloo.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from harness.report.document import Table
from tests.benchmarks.runner import counted, in_child, parser, publish

EXAMPLE = 'python -m tests.benchmarks.memory_plans --only small --only "fsdp2, 2 ranks"'
MIB = 2**20
RUN: dict[str, Any] = {"trackers": ["jsonl"], "save_policy": False}
SMALL: dict[str, Any] = {**RUN, "steps": 2, "evaluation": {"every": 2, "prompts": 4}, "model": {"warm_start": False}}
LONG: dict[str, Any] = {
    **SMALL,
    "group_size": 4,
    "rollout_batch_size": 16,
    "sampling": {"min_tokens": 48, "max_tokens": 48},
    "model": {"layers": 2, "vocab_size": 512},
}
RANKS: dict[str, Any] = {
    **LONG,
    "steps": 3,
    "evaluation": {"every": 3, "prompts": 4},
    "sampling": {"min_tokens": 32, "max_tokens": 32},
    "model": {"layers": 8, "vocab_size": 1024, "dtype": "float32"},
    "transport": {"type": "shared_memory"},
}
SHAPE = {"hidden_size": 768, "intermediate_size": 3584, "num_attention_heads": 6, "num_key_value_heads": 2}


def ranks(count: int, more: dict[str, Any] | None = None, sharding: str = "fsdp2", **learner: Any) -> dict[str, Any]:
    """Return the settings of a Learner of so many ranks."""
    placement = {"placement": {"learner": {"ranks": count, "cpus": 0.25, "threads": 1}}}
    return {**RANKS, **placement, "learner": {"sharding": sharding, **learner}, **(more or {})}


CASES: dict[str, dict[str, Any]] = {
    "small, 64 x 32 tokens": SMALL,
    "small, 256 x 96 tokens": {**SMALL, "rollout_batch_size": 256, "sampling": {"min_tokens": 96, "max_tokens": 96}},
    "qwen, 2 layers, 16 x 48 tokens": LONG,
    "the same, checkpointing": {**LONG, "model": LONG["model"] | {"gradient_checkpointing": True}},
    "the same, 4 microbatches": {**LONG, "gradient_accumulation_steps": 4},
    "the same, bfloat16 weights": {**LONG, "model": LONG["model"] | {"dtype": "bfloat16"}},
    "the same, KL monitored": {**LONG, "loss": {"kl": {"monitor": True}}},
    "qwen, 1 layer, vocabulary 151,936": {
        **LONG,
        "model": {"layers": 1, "vocab_size": 151_936},
        "sampling": {"min_tokens": 32, "max_tokens": 32},
    },
    "ddp, 2 ranks": ranks(2, sharding="ddp"),
    "fsdp2, 2 ranks": ranks(2),
    "fsdp2, 2 ranks, 2 microbatches": ranks(2, {"gradient_accumulation_steps": 2}),
    "fsdp2, 2 ranks, KL monitored": ranks(2, {"loss": {"kl": {"monitor": True}}}),
    "fsdp2, 2 ranks, per_tensor": ranks(2, publish="per_tensor"),
    "tensor, 2 ranks": ranks(2, mesh={"tensor": 2}),
    "hybrid, 4 ranks": ranks(4, mesh={"replicate": 2}),
    "fsdp2 x tensor, 4 ranks": ranks(4, mesh={"tensor": 2}),
    "ddp x tensor, 4 ranks": ranks(4, sharding="ddp", mesh={"tensor": 2}),
}
"""Settings of each; a model's ``layers`` and ``vocab_size`` are those of a folder that is made for it."""


def measure(name: str) -> dict[str, dict[str, float]]:
    """Run one case in a process of its own; return planned and peak bytes of each lane of a Learner, and of all."""
    found: dict[str, dict[str, float]] = in_child("tests.benchmarks.memory_plans", name)
    return found


def run_here(name: str, out: Path) -> dict[str, dict[str, float]]:
    """Carry a case out in this process."""
    import yaml

    from harness.models.make_folder import make_folder
    from harness.models.published import PUBLIC_SHAPES
    from harness.run.experiment import run_scenario
    from harness.run.memory.fit import needed_main
    from harness.run.memory.plan import make_plan
    from harness.run.memory.shape import shape_for
    from harness.run.parts import never
    from harness.run.policy import make_policy
    from harness.scenario.load import load_scenario
    from harness.tasks.make import make_task

    settings = CASES[name]
    model = dict(settings["model"])
    if layers := model.pop("layers", None):
        of_ranks = "learner" in settings
        PUBLIC_SHAPES["narrow"] = {**PUBLIC_SHAPES["qwen2.5-math-1.5b"], **(SHAPE if of_ranks else {})}
        dtype = {"dtype": model.pop("dtype")} if of_ranks else {}
        make_folder("narrow", out / "model", layers=layers, vocab_size=model.pop("vocab_size"), **dtype)
        model |= {"type": "folder", "path": str(out / "model")}
    (out / "case.yaml").write_text(yaml.safe_dump({**settings, "description": name, "model": {"threads": 1, **model}}))
    scenario = load_scenario(out / "case.yaml")
    run_scenario(scenario, out, quiet=True, show=lambda folder: None)
    (manifest,) = out.rglob("manifest.json")
    held = json.loads(manifest.read_text())["outcome"]["memory"]["main"]
    task, tokenizer = make_task(scenario.task), make_policy(scenario, "cpu", never).tokenizer
    longest = max(len(tokenizer.encode(prompt.text)) for prompt in [*task.train_prompts, *task.validation_prompts])
    shape, _ = shape_for(scenario)
    assert shape is not None
    plan = make_plan(scenario, shape, prompt_tokens=longest)
    planned = {lane: process.own_peak for process in plan.processes for lane in process.lanes}
    lanes = {lane: each for lane, each in held.get("lanes", {}).items() if lane.startswith("learner/")}
    of_lanes = {lane: {"planned": planned[lane], "peak": each["peak_bytes"]} for lane, each in lanes.items()}
    whole = needed_main([plan]) if lanes else plan.total("cpu")
    return of_lanes | {"all processes": {"planned": whole, "peak": held["peak_bytes"]}}


def main() -> None:
    made = parser(__doc__, EXAMPLE)
    made.add_argument("--only", action="append", metavar="NAME", help="cases to run, by the start of their name")
    made.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.child:
        with tempfile.TemporaryDirectory() as out:
            print(json.dumps(run_here(options.child, Path(out))))
        return
    chosen = [name for name in CASES if not options.only or any(name.startswith(start) for start in options.only)]
    found = {name: measure(name) for name in counted(chosen, len(chosen), "runs")}
    rows = [
        (name, who, *(f"{each[kind] / MIB:,.0f}" for kind in each), f"{each['planned'] / each['peak']:.2f}")
        for name, of in found.items()
        for who, each in of.items()
    ]
    header = ("run", "whose", "planned, MiB", "peak, MiB", "planned / peak")
    publish("Memory plans", [Table("Plan and peak", header, tuple(rows), words=2)], options, cases=found)


if __name__ == "__main__":
    main()
