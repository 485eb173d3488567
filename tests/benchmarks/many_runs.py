"""Write a results folder of many simulated runs, through the public writer: what the benchmarks of compare read.

    python tests/benchmarks/many_runs.py FOLDER --layout blocks --runs 1000 --steps 200
    /usr/bin/time -v python -m harness.compare FOLDER

A run is like a recorded one of ``async_lag1``: 26 metrics and 11 spans for each step, an evaluation every tenth step.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.trace import Span, Stage
from harness.core.types import Metric, Metrics
from harness.results import EvaluationRow, Manifest, RunFolder, Scrubber, StepRow, TailRow, VersionChange, store_metrics
from harness.results.occupancy import Occupancy

LAYOUTS = ("blocks", "campaigns")
LANES = ("generator", "scorer", "learner")
EVALUATE_EVERY, WARMUP_STEPS = 10, 2
CYCLE = (
    ("generator", Stage.WEIGHT_TRANSFER, 0.0004),
    ("generator", Stage.WEIGHT_VERIFY, 0.0014),
    ("generator", Stage.WEIGHT_LOAD, 0.010),
    ("generator", Stage.GENERATE, 0.098),
    ("generator", Stage.WAIT_FOR_WEIGHTS, 0.098),
    ("scorer", Stage.WAIT_FOR_ROLLOUTS, 0.207),
    ("scorer", Stage.SCORE, 0.0004),
    ("learner", Stage.WAIT_FOR_BATCH, 0.019),
    ("learner", Stage.PREPARE_BATCH, 0.0007),
    ("learner", Stage.UPDATE, 0.186),
    ("learner", Stage.WEIGHT_PUBLISH, 0.0015),
)
MEANS = (
    "reward/total",
    "reward/format",
    "reward/answer",
    "response_length",
    "truncated_fraction",
    "clip_fraction",
    "ratio/mean",
    "token_entropy",
    "loss",
    "grad_norm",
    "off_policy/mean",
    "off_policy/in_flight",
    "off_policy/in_queue",
    "perf/throughput_total",
    "sync/bytes",
    "sync/tensors",
    "sync/publish_s",
    "sync/transfer_s",
    "sync/load_s",
    "sync/verify_s",
    "sync/bandwidth_gb_s",
    *(f"idle_ratio/{lane}" for lane in LANES),
)
MACHINE = {"cpu": "Abacus 3000", "cores": 2, "memory_gib": 24, "gpus": None, "fingerprint": "0123456789ab"}
VERSIONS: dict[str, str | None] = {"python": "3.11.7", "harness": "0.1.0", "torch": "2.13.0", "ray": "2.60.0"}
SCRUBBER = Scrubber(home="/nowhere/home", cwd="/nowhere/cwd", host="nowhere.invalid", user="nobody")


@dataclass
class Clock:
    """Virtual time of one run, in nanoseconds."""

    noise: random.Random
    start_ns: int = 2_000_000_000
    now_ns: int = 2_000_000_000

    @property
    def elapsed_s(self) -> float:
        """Seconds of the loop so far."""
        return (self.now_ns - self.start_ns) / 1e9


def write_results(root: Path, layout: str, runs: int, steps: int) -> None:
    """Write runs: as two arms of ``runs / 2`` blocks in one experiment, or as one experiment each."""
    for index in range(runs):
        if layout == "blocks":
            arm, block = ("base", "slower")[index % 2], index // 2
            write_run(root, Manifest(**_named("many", "20261120-111500"), arm=arm, block=block, seed=block), steps)
        else:
            experiment = f"202611{1 + index // 86_400:02}-{index // 3600 % 24:02}{index // 60 % 60:02}{index % 60:02}"
            write_run(root, Manifest(**_named("single", experiment), seed=index), steps)


def _named(scenario: str, experiment: str) -> dict[str, Any]:
    started_at = f"2026-11-{experiment[6:8]}T{experiment[9:11]}:{experiment[11:13]}:{experiment[13:15]}.000Z"
    facts = {"machine": MACHINE, "versions": VERSIONS, "threads": 1, "commit": "abcdef1234567890", "dirty": False}
    turns = {"interleaving": "step" if scenario == "many" else None, "startup_s": 2.0}
    return {"scenario": scenario, "experiment": experiment, "started_at": started_at} | facts | turns


def write_run(root: Path, manifest: Manifest, steps: int) -> None:
    """Write one run, whose times and metrics depend on its seed and arm only."""
    variant = None if manifest.arm is None else f"{manifest.arm},block={manifest.block}"
    noise = random.Random(f"{manifest.arm}-{manifest.seed}")
    clock, slower = Clock(noise), 1.05 if manifest.arm == "slower" else 1.0
    with RunFolder.create(root, manifest.scenario, manifest.experiment, variant, scrubber=SCRUBBER) as run:
        run.write_scenario(SETTINGS.format(seed=manifest.seed, steps=steps))
        run.write_manifest(manifest)
        run.append_spans(Span(lane, Stage.STARTUP, 0, clock.now_ns, -1, -1) for lane in LANES)
        spans = _evaluate(run, clock, 0)
        for step in range(steps):
            before_s = clock.elapsed_s if step else 0.0
            spans += list(_step_spans(clock, step, slower))
            if (step + 1) % EVALUATE_EVERY == 0:
                spans += _evaluate(run, clock, step + 1)
            _close_row(run, clock, step, before_s, spans)
            spans = []
        run.append(TailRow(wall_s=0.0, elapsed_s=clock.elapsed_s, lanes={}))
        warmup = {"steps": WARMUP_STEPS, "steady": True, "slow_start": False}
        run.finish("completed", None, {"warmup": warmup, "ledger": LEDGER, "replaced": {}})


def _close_row(run: RunFolder, clock: Clock, step: int, before_s: float, spans: list[Span]) -> None:
    elapsed_s = clock.elapsed_s
    row = StepRow(
        step=step,
        version=step + 1,
        wall_s=elapsed_s - before_s,
        elapsed_s=elapsed_s,
        optimizer_steps=1,
        lanes=Occupancy.of(spans).seconds(spans),
        metrics=store_metrics(_metrics(clock.noise)),
        versions={"learner": step + 1, "generator": step},
        version_changes=(VersionChange(elapsed_s, "learner", step + 1), VersionChange(elapsed_s, "generator", step)),
        lags={0: 32, 1: 32},
        warmup=step < WARMUP_STEPS,
    )
    run.append(row)
    run.append_spans(spans)


def _step_spans(clock: Clock, step: int, slower: float) -> Iterator[Span]:
    """One cycle of all lanes, side by side."""
    ends = []
    for lane in LANES:
        now_ns = clock.now_ns
        for owner, stage, seconds in CYCLE:
            if owner == lane:
                factor = slower if stage is Stage.UPDATE else 1.0
                start_ns, now_ns = now_ns, now_ns + round(seconds * factor * clock.noise.lognormvariate(0, 0.03) * 1e9)
                yield Span(lane, stage, start_ns, now_ns, step, step)
        ends.append(now_ns)
    clock.now_ns = max(ends) + 100_000


def _evaluate(run: RunFolder, clock: Clock, version: int) -> list[Span]:
    start_ns, clock.now_ns = clock.now_ns, clock.now_ns + 400_000_000
    rewards = {"validation/reward": 0.3 + 0.4 * version / (version + 50), "validation/response_length": 12.0}
    metrics = {name: Metric(value, count=256) for name, value in rewards.items()}
    run.append(EvaluationRow(version=version, step=version, elapsed_s=clock.elapsed_s, metrics=store_metrics(metrics)))
    return [Span("generator", Stage.EVALUATE, start_ns, clock.now_ns, version, version)]


def _metrics(noise: random.Random) -> Metrics:
    means = {name: Metric(noise.random(), count=64) for name in MEANS}
    peaks = {name: Metric(noise.random(), "max", 64) for name in ("ratio/max", "off_policy/max")}
    return means | peaks | {"response_tokens": Metric(668, "sum", 1), "off_policy/dropped": Metric(0, "sum", 1)}


LEDGER = {
    name: {"rollouts": 64, "tokens": 700}
    for name in ("generated", "failed", "dropped", "trained", "trained_again", "unused")
}
SETTINGS = """\
name: many
description: Simulated runs for the benchmark of compare
seed: {seed}
task:
  type: keywords
  keywords_per_prompt: 2
  train_prompts: 4096
  validation_prompts: 256
  seed: 0
model:
  type: preset
  precision: bfloat16
  threads: 1
  preset: small
engine:
  type: native
  precision: bfloat16
  max_batch: 256
sampling:
  temperature: 1.0
  top_p: 1.0
  min_tokens: 1
  max_tokens: 32
  stop: []
steps: {steps}
rollout_batch_size: 64
group_size: 8
loss:
  type: grpo_clip
  aggregation: sequence_mean
  cliprange: 0.2
  kl:
    coefficient: 0.0
    estimator: k3
    reference: frozen
optimizer:
  learning_rate: 3.0e-05
  betas:
  - 0.9
  - 0.95
  weight_decay: 0.0
  max_grad_norm: 1.0
max_lag: 1
lag_control: wait
replay:
  capacity: 0
  max_age: null
  sampling: uniform
placement:
  colocated: false
  generator:
    cpus: 1.0
    count: 1
  learner:
    cpus: 1.0
transport:
  type: shared_memory
  verify: true
reward_target: 0.5
save_policy: false
"""


def main() -> None:
    """Write the folder that the command line asks for."""
    parser = argparse.ArgumentParser(description="Write a results folder of many simulated runs.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layout", choices=LAYOUTS, default="blocks")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    write_results(options.folder, options.layout, options.runs, options.steps)


if __name__ == "__main__":
    main()
