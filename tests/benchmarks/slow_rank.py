"""How often a slow rank is named with its cause: short runs with a slow rank, with unequal work, with neither.

    python -m tests.benchmarks.slow_rank [--runs 10] [--first 0] [--steps 40] [--sharding ddp]

Ranks without Ray or a loop, so that a run takes seconds. Each run has a seed of its own; the slow rank takes turns.
Prints a line for each run, and in how many of each kind the answer was right; exits with 1 if one was wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from harness.compare.ranks import Straggler, find_straggler
from harness.core.trace import NullTracer
from harness.core.types import Completion, GroupData, Prompt, RankStep, RolloutGroup
from harness.learner import PolicyTrainer
from harness.learner.ranks import FsdpRanks
from harness.learner.trainer import plan_training_step
from harness.models.decoder import DecoderLM
from harness.run.actors.ranks import rank_steps
from harness.run.rank_worker import LearnerRank, RankResult
from harness.run.slow_rank import SlowComputing
from harness.settings.learner import MeshShape, Sharding
from tests.learner.test_process_group import rank_group
from tests.learner.tiny_training import CONFIG, OPTIONS
from tests.rank_pool import RankPool

SHAPE = replace(CONFIG, hidden_size=128, intermediate_size=256, num_hidden_layers=4, max_position_embeddings=160)
TRAINER = replace(OPTIONS, balance="longest_first")
WARM_UP = 6
KINDS = {"nothing": None, "slow rank": "slower machine", "unequal work": "more work"}
"""The cause that each kind of run is to be named with."""


def batch(seed: int, num_groups: int) -> tuple[RolloutGroup, ...]:
    """Groups of four responses that have all the same length, one of 48 to 128 tokens: equal groups are equal work.

    Where lengths differ, the rank that is given the longest group pads more, and computes a few percent longer.
    """
    rng = np.random.default_rng(seed)
    made, length = [], int(rng.integers(48, 129))
    for number in range(num_groups):
        completions = tuple(
            Completion(rng.integers(0, 17, length), rng.normal(-2, 0.1, length).astype(np.float32), "", "stop")
            for _ in range(4)
        )
        data = GroupData(Prompt("p", "g"), rng.integers(0, 17, 8), completions)
        made.append(RolloutGroup(number, 0, 0, 0, (length,) * 4, data, (0.0, 1.0, 1.0, 0.5)))
    return tuple(made)


def train(
    rank: int, sharding: Sharding, seed: int, steps: int, num_groups: int, slow: int | None, share: float
) -> list[RankResult]:
    """Train for so many steps on one rank, which is made slow if it is that one; without what was learnt."""
    group, shape = rank_group(rank), mesh(sharding)
    trainer = PolicyTrainer(DecoderLM(SHAPE, seed=1), 0, TRAINER, ranks=FsdpRanks(sharding, shape))
    if slow == rank:
        SlowComputing(trainer.model, share)
    worker = LearnerRank(trainer, None, tracer=NullTracer(), group=group, publish="rank0")  # type: ignore[arg-type]
    found = []
    for step in range(steps):
        made = batch(1000 * seed + step, num_groups)
        done = worker.update_together(step, made, plan_training_step(step, made, TRAINER, 2))
        found.append(replace(done, result=None, probe_rows=None))
    return found


def mesh(sharding: Sharding) -> MeshShape:
    """Two data ranks."""
    return MeshShape(replicate=2) if sharding == "ddp" else MeshShape(shard=2)


def run(pool: RankPool, sharding: Sharding, kind: str, seed: int, steps: int, share: float) -> list[Sequence[RankStep]]:
    """Make one run; return what its ranks did, without the steps of its warm-up."""
    num_groups, slow = (3 if kind == "unequal work" else 4), (seed % 2 if kind == "slow rank" else None)
    of_ranks = pool.run(2, train, sharding, seed, steps, num_groups, slow, share)
    found: list[Sequence[RankStep]] = []
    for step in range(steps):
        plan = plan_training_step(step, batch(1000 * seed + step, num_groups), TRAINER, 2)
        found.append(rank_steps(plan, [results[step] for results in of_ranks], mesh(sharding)))
    return found[WARM_UP:]


def is_right(found: Straggler | None, kind: str, seed: int) -> bool:
    """Whether a run of this kind was answered as it is to be: with the cause, and of a slow rank with its number."""
    if found is None or KINDS[kind] is None:
        return found is None and KINDS[kind] is None
    return found.cause == KINDS[kind] and (kind != "slow rank" or found.rank == seed % 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first run's seed")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--sharding", default="ddp", choices=("ddp", "fsdp2"))
    asked = parser.parse_args()
    pool, right = RankPool(), dict.fromkeys(KINDS, 0)
    try:
        for seed in range(asked.first, asked.first + asked.runs):
            for kind in KINDS:
                steps = run(pool, asked.sharding, kind, seed, asked.steps + WARM_UP, asked.share)
                found = find_straggler(steps)
                right[kind] += is_right(found, kind, seed)
                blocked = [np.mean([of_ranks[rank].blocked_s for of_ranks in steps]) for rank in range(2)]
                said = "nobody" if found is None else found.sentence
                print(
                    f"{kind}, seed {seed}: {said} (blocked {blocked[0]:.3f} and {blocked[1]:.3f} s a step)", flush=True
                )
    finally:
        pool.close()
    for kind, count in right.items():
        print(f"{kind}: right in {count} of {asked.runs}")
    return int(min(right.values()) < asked.runs)


if __name__ == "__main__":
    sys.exit(main())
