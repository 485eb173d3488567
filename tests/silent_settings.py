"""Settings that another one makes void in silence: asks of every pair whether changing the one changes anything.

    python -m tests.silent_settings [--only loss.] [--under loss.] [--base "two passes"]

For each base and each setting that matters there, every other one is moved to each of its alternatives. If the first
then changes nothing in any base, and no rule refuses it, the pair is silent, and must be in ``KNOWN`` with a reason.
What a setting changes is looked for where it acts: in weights and figures after two training steps of a small policy,
in what happens in a simulated run of the loop, in sampled tokens, and in what the parts are made with.
Exits with 1 if a pair is silent and not known; after a search of everything also if a known one is not silent any more,
or if a setting matters nowhere or has no place here. A room takes minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from harness.core.trace import RecordingTracer
from harness.core.types import Metrics, RolloutGroup, WorkItem
from harness.engines.make import make_engine
from harness.learner import PolicyTrainer, TrainerOptions
from harness.learner.make import trainer_options
from harness.loop import LoopPlan, run_loop
from harness.models.decoder import DecoderLM
from harness.run.actors.parts import environment_of
from harness.run.builders import mismatch_bound
from harness.run.memory.shape import shape_for
from harness.run.needs import requests_of
from harness.run.parts import never
from harness.run.policy import make_policy
from harness.scenario.derived import in_shards, mesh_shape, offloaded, on_one_thread, threads_on, zero_stage
from harness.scenario.keys import choices_of, dotted_keys
from harness.scenario.lanes import all_lanes
from harness.scenario.loop_plan import loop_plan
from harness.scenario.rules import broken_rules
from harness.scenario.schema import Scenario
from harness.simulate.clock import run_virtual
from tests.learner.tiny_training import CONFIG, groups, train_on
from tests.loop.conftest import Story
from tests.stand_ins.simulated_parts import constant, simulated_generator, simulated_learner, simulated_scorer

Changes = Mapping[str, Any]
SMALL: dict[str, Any] = {
    "name": "small",
    "model": {"type": "preset", "preset": "tiny", "warm_start": False, "threads": 1},
    "steps": 6,
    "rollout_batch_size": 16,
    "group_size": 4,
    "epochs_per_batch": 2,
    "optimizer": {"learning_rate": 0.01, "weight_decay": 0.1},
    "sampling": {"max_tokens": 8, "min_tokens": 2},
    "evaluation": {"every": 2, "prompts": 4},
}
_ACTORS = {"transport": {"type": "nixl"}, "placement": {"colocated": False, "generator": {"count": 2}}}
BASES: dict[str, dict[str, Any]] = {
    "two passes": {},
    "two minibatches": {"minibatches_per_epoch": 2},
    "a KL penalty": {"loss": {"kl": {"coefficient": 0.1}}},
    "a cloned reference": {"loss": {"kl": {"coefficient": 0.1, "reference": "reclone", "reclone_every": 2}}},
    "a moving reference": {
        "loss": {
            "aggregation": "constant",
            "constant": 7,
            "kl": {"coefficient": 0.1, "reference": "polyak", "alpha": 0.3},
        }
    },
    "lag": {**_ACTORS, "max_lag": 1, "replay": {"capacity": 12, "sample_groups": 4}},
    "pinned lengths": {"sampling": {"pinned_lengths": [2, 4], "min_tokens": 1}},
    "replay and lag on actors": {
        **_ACTORS,
        "max_lag": 1,
        "replay": {"capacity": 8, "sample_groups": 4},
        "loss": {"proximal": "recompute", "importance": {"mode": "icepop"}},
    },
    "whole responses": {"loss": {"ratio_level": "sequence"}},
    "dynamic sampling": {"dynamic_sampling": {"attempts": 2}},
    "two ranks": {
        "transport": {"type": "shared_memory"},
        "placement": {"learner": {"ranks": 2}},
        "learner": {"sharding": "fsdp2"},
    },
    "ZeRO": {
        "transport": {"type": "shared_memory"},
        "placement": {"learner": {"ranks": 2}},
        "learner": {"sharding": "deepspeed"},
    },
    "a schedule": {"optimizer": {"schedule": "cosine", "warmup_steps": 1}},
}
"""What is laid over ``SMALL``: each setting matters in one of them, if it does anywhere."""
NUMBERS: dict[str, Sequence[Any]] = {
    "seed": (1,),
    "steps": (5,),
    "rollout_batch_size": (8,),
    "group_size": (2,),
    "epochs_per_batch": (1, 3),
    "minibatches_per_epoch": (1, 2),
    "gradient_accumulation_steps": (2,),
    "max_lag": (0, 2),
    "loss.cliprange": (0.05, 0.5),
    "loss.cliprange_high": (0.001, 0.3),
    "loss.dual_clip": (1.05,),
    "loss.constant": (5,),
    "loss.entropy_coefficient": (0.1,),
    "loss.kl.coefficient": (0.0, 0.2),
    "loss.kl.reclone_every": (1,),
    "loss.kl.alpha": (0.5,),
    "loss.importance.cap": (1.05,),
    "loss.importance.floor": (0.99,),
    "advantage.eps": (0.1,),
    "optimizer.learning_rate": (0.02,),
    "optimizer.betas": ([0.5, 0.5],),
    "optimizer.weight_decay": (0.0,),
    "optimizer.max_grad_norm": (0.1, None),
    "optimizer.warmup_steps": (2,),
    "optimizer.warmup_ratio": (0.2,),
    "optimizer.min_learning_rate_ratio": (0.5,),
    "replay.capacity": (0, 12),
    "replay.max_age": (1,),
    "replay.sample_groups": (6,),
    "dynamic_sampling.attempts": (0, 1),
    "evaluation.every": (3,),
    "evaluation.prompts": (2,),
    "sampling.temperature": (0.5,),
    "sampling.top_p": (0.5,),
    "sampling.min_tokens": (0, 6),
    "sampling.max_tokens": (4,),
    "sampling.stop": (["a", "e", "t"],),
    "sampling.pinned_lengths": ([2, 3],),
    "engine.max_batch": (2,),
    "engine.mismatch_bound": (0.1,),
    "model.threads": (2,),
    "placement.generator.count": (1, 2),
    "placement.generator.cpus": (2.0,),
    "placement.generator.threads": (3,),
    "placement.scorer.count": (2,),
    "placement.scorer.cpus": (2.0,),
    "placement.scorer.threads": (3,),
    "placement.learner.cpus": (2.0,),
    "placement.learner.threads": (3,),
    "placement.learner.ranks": (1,),
    "placement.interface": ("eth0",),
    "learner.zero_stage": (1,),
    "learner.mesh.replicate": (2,),
    "learner.mesh.tensor": (2,),
    "transport.progress_thread_delay_us": (0,),
    "checkpoint.every": (2,),
    "save_policy_every": (2,),
}
"""The alternatives of settings that are no choices."""
TOGETHER: dict[str, Changes] = {
    "loss.aggregation=constant": {"loss.constant": 7},
    "loss.kl.reference=reclone": {"loss.kl.reclone_every": 2},
    "loss.kl.reference=polyak": {"loss.kl.alpha": 0.3},
    "advantage.delta=rewards": {"loss.type": "naive", "allow_uncorrected": True},
    "loss.type=naive": {"allow_uncorrected": True},
    "loss.type=no_baseline": {"allow_uncorrected": True},
    "loss.type=reinforce_with_baseline": {"allow_uncorrected": True},
    "replay.capacity=0": {"replay.sample_groups": None},
}
"""What an alternative needs beside itself."""
NOT_TRIED = {
    "a user's own": ("loss.function", "advantage.function", "task.options", "engine.options", "transport.options"),
    "words": ("name", "description", "question", "minutes"),
    "read alone, by what is made of the task": (
        "task.*",
        "model.*",
        "engine.*",
    ),
    "GPUs": ("placement.*.gpus", "placement.device", "learner.offload*"),
    "what runs are made, and how they are told about": (
        "arms", "sweep", "blocks", "interleaving", "endpoint", "stop_at_half_width", "reward_target", "trackers",
        "profile", "evaluation.examples", "save_policy", "checkpoint.*", "transport_sweep*",
    ),
    "faults, each with a rule or a moment of its own": ("faults*",),
    "nodes of a cluster": ("placement.strategy", "placement.address", "placement.learner.per_node"),
    "other transports": ("transport.folder", "transport.type"),
    "what a reward sees, and when a batch is read": ("sampling.skip_special_tokens", "learner.stream"),
    "more permission alone": ("allow_uncorrected", "max_failed_batches"),
}  # fmt: skip
"""Settings that are not moved here, with the reason; ``*`` stands for the rest of a key."""


@dataclass(frozen=True)
class Known:
    """Silent pairs that are right.

    Attributes:
        settings: beginnings of the keys that have no effect.
        under: parts of what the other setting's change reads as.
    """

    settings: tuple[str, ...]
    under: tuple[str, ...]
    why: str


KNOWN: tuple[Known, ...] = (
    Known(("loss.kl.",), ("kl.coefficient': 0",), "a weight of 0 is a value of an axis, beside which a form may stand"),
    Known(
        ("advantage.eps",), ("normalize_by_std': False", "delta':"), "a stabiliser of a division, for arms that divide"
    ),
    Known(("replay.",), ("replay.",), "several bounds on one buffer, of which the nearest one acts"),
    Known(("minibatches_per_epoch", "shuffle_minibatches"), ("minibatches_per_epoch': 1",), "there is nothing to deal"),
    Known(("learner.", "placement.learner"), ("ranks': 1",), "one rank: so that a sweep over ranks has it as a point"),
    Known(
        ("optimizer.schedule", "optimizer.min"),
        ("epochs_per_batch': 1",),
        "the two steps that are looked at end in the warm-up",
    ),
    Known(("loss.importance.floor",), ("seq-mask-tis",), "its means lie far outside of both bounds, 0.99 and 0.999"),
    Known(("advantage.eps",), ("no_baseline",), "a stabiliser of a division, for arms that divide"),
    Known(("advantage.delta",), ("normalize_by_std': False",), "two words for one advantage"),
    Known(("advantage.normalize_by_std",), ("no_baseline", "centered_rewards"), "two words for one advantage"),
    Known(("optimizer.max_grad_norm",), ("",), "with None: norms that are below 1 anyway"),
    Known(("max_lag",), ("in_flight", "count': "), "the Learner of the trial never falls so far behind"),
    Known(("learner.mesh.replicate",), ("'ddp'",), "copies are what DDP has, by definition"),
)


# ---- what a setting changes


def same(one: Scenario, other: Scenario) -> bool:
    """Whether two scenarios decide all things alike; what is cheap to look at first."""
    return all(part(one) == part(other) for part in (_made, _looped, _sampled, _trained))


def _looped(scenario: Scenario) -> object:
    plan, parts = loop_plan(scenario, 64, 16), scenario.placement
    orders = tuple(plan.batch_prompts(step) for step in range(3))
    name = repr((replace(plan, batch_prompts=None), orders, parts.generator.count, parts.scorer.count))  # type: ignore[arg-type]
    overlapped = scenario.learner.overlapped_publish
    return _run(name, plan, parts.generator.count, parts.scorer.count, overlapped=overlapped)


def _trained(scenario: Scenario) -> object:
    options = replace(trainer_options(scenario, shape_for(scenario)[0]), group_cost=None)  # type: ignore[arg-type]
    return _weights(repr(options), options, scenario.prompts_per_batch)


_MEMORY: dict[str, object] = {}


def _weights(name: str, options: TrainerOptions, num_groups: int) -> object:
    """Return weights and figures after two training steps."""
    key = f"{num_groups} {name}"
    if key not in _MEMORY:
        trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, replace(options, group_cost=lambda *_: 1.0), ends=(16,))
        metrics: Metrics = {}
        for step in range(2):
            metrics |= train_on(trainer, [_batch(step, num_groups, options.group_size)], first_step=step)
        weights = [tensor.detach().double().sum().item() for tensor in trainer.weights().values()]
        figures = {each: metric.value for each, metric in metrics.items() if not each.startswith(("timing", "perf"))}
        _MEMORY[key] = (np.round(weights, 6).tolist(), {each: round(value, 6) for each, value in figures.items()})
    return _MEMORY[key]


def _batch(step: int, num_groups: int, group_size: int) -> tuple[RolloutGroup, ...]:
    """Return groups of which every third response was cut."""
    made = []
    for number, group in enumerate(groups(step, num_groups, group_size)):
        completions = [
            replace(
                each,
                token_ids=np.minimum(each.token_ids, 15),  # 16 is the end, which no response has too early
                log_probs=each.log_probs
                - 0.8,  # about those of a new policy: importance bounds keep some of the tokens
                finish_reason="length" if (number + place) % 3 == 0 else "stop",
            )
            for place, each in enumerate(group.data.completions)
        ]
        made.append(replace(group, data=replace(group.data, completions=tuple(completions))))
    return tuple(made)


def _run(name: str, plan: LoopPlan, generators: int, scorers: int, *, overlapped: bool) -> object:
    """Return what a simulated run of the loop did, and when."""
    if name in _MEMORY:
        return _MEMORY[name]
    story = Story()

    async def main(tracer: RecordingTracer) -> float:
        def lengths(item: WorkItem, prompt_id: int) -> tuple[int, ...]:
            return (8 + prompt_id % 3,) * item.group_size

        def flat(item: WorkItem, prompt_id: int) -> bool:
            return (prompt_id + item.step) % 3 == 0

        await run_loop(
            [
                simulated_generator(tracer, constant(8.0 + index), constant(2.0), lane=f"g{index}", lengths=lengths)
                for index in range(generators)
            ],
            [simulated_scorer(tracer, constant(1.0), f"s{index}", is_flat=flat) for index in range(scorers)],
            simulated_learner(
                tracer, constant(5.0), constant(1.0), overlapped=overlapped, groups=len(plan.batch_prompts(0))
            ),
            plan,
            tracer,
            story,
        )
        return asyncio.get_running_loop().time()

    seconds, tracer = run_virtual(main)
    trained = [[(group.step, group.prompt_id) for group in facts.groups] for facts in story.facts]
    spans = [(span.lane, span.stage.value, span.start_ns, span.end_ns, span.version) for span in tracer.drain()]
    _MEMORY[name] = (
        seconds,
        trained,
        str(story.events),
        str(story.ledger),
        spans,
        plan.checkpoint_every,
        plan.save_policy_every,
    )
    return _MEMORY[name]


@cache
def _policy() -> Any:
    policy = make_policy(Scenario.model_validate(SMALL), "cpu", never)
    assert policy.model is not None
    return policy


def _sampled(scenario: Scenario) -> object:
    if scenario.engine.type != "native":
        return scenario.engine.model_dump_json(), scenario.sampling.to_params()
    params = scenario.sampling.to_params()
    name = f"{scenario.engine} {params} {scenario.group_size}"
    if name not in _MEMORY:
        policy = _policy()
        engine = make_engine(
            scenario.engine, policy.model, policy.tokenizer, ends=policy.ends, device="cpu", should_stop=never
        )
        engine.load_weights(dict(policy.model.named_parameters()), 0)
        prompts = [list(policy.tokenizer.encode(text)) for text in ("one", "another prompt", "a", "the last")]
        _MEMORY[name] = str(engine.generate(prompts, scenario.group_size, params, seed=7))
    return _MEMORY[name], mismatch_bound(scenario)


def _made(scenario: Scenario) -> object:
    """Return what the parts are made with, beside what they train and sample with."""
    placement, learner = scenario.placement, scenario.learner
    parts = placement.generator, placement.scorer, placement.learner
    threads = tuple(threads_on(8, scenario, part) for part in parts)
    devices = tuple(scenario.device_of(part, has_gpu) for part in parts for has_gpu in (False, True))
    made: list[object] = [threads, devices, scenario.model, on_one_thread(scenario), scenario.transport.type]
    if scenario.uses_ray:
        lanes = all_lanes(scenario)
        made += [requests_of(scenario), placement.colocated, scenario.transport, scenario.travel_dtype]
        made += [[environment_of(scenario, lane, 1, "cpu") for lane in lanes], in_shards(scenario)]
    if placement.learner.ranks > 1:
        made += [mesh_shape(scenario), learner.sharding, learner.publish, learner.balance]
        made += [zero_stage(scenario)] if learner.sharding == "deepspeed" else []
    return str([*made, offloaded(scenario)])


# ---- which settings there are, and the search


def alternatives(key: str, scenario: Scenario) -> Iterator[dict[str, Any]]:
    """Yield what a setting may be moved to, each with what it needs beside itself."""
    kinds = {"true": True, "false": False}
    for value in [*NUMBERS.get(key, ()), *(kinds.get(text, text) for text in choices_of(key, Scenario))]:
        if value not in ("own", _value(scenario, key)):
            yield {key: value, **TOGETHER.get(f"{key}={value}", {})}


def _value(scenario: Scenario, key: str) -> object:
    found: Any = scenario
    for part in key.split("."):
        found = getattr(found, part, None)
    return list(found) if isinstance(found, tuple) else found


def changed(data: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """Return plain settings with dotted keys set in them; nothing is dropped."""
    made = dict(data)
    for key, value in changes.items():
        first, _, rest = key.partition(".")
        made[first] = changed(made.get(first) or {}, {rest: value}) if rest else value
    return made


def valid(data: Mapping[str, Any]) -> Scenario | None:
    """Return the scenario, or None where it is refused."""
    try:
        scenario = Scenario.model_validate(data)
    except ValueError:
        return None
    return None if broken_rules(scenario) else scenario


def matches(key: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns, in which ``*`` stands for anything, is the key."""
    return any(
        key == each or ("*" in each and key.startswith(each.split("*")[0]) and key.endswith(each.split("*")[1]))
        for each in patterns
    )


def tried_keys() -> list[str]:
    """Return the settings that are moved; sections and ``NOT_TRIED`` are not."""
    every = list(dotted_keys(Scenario))
    leaves = [key for key in every if not any(other.startswith(f"{key}.") for other in every)]
    there = [key for key in leaves if key in NUMBERS or choices_of(key, Scenario)]
    left_out = tuple(itertools.chain.from_iterable(NOT_TRIED.values()))
    return [key for key in there if key in NUMBERS or not matches(key, left_out)]


def without_place() -> list[str]:
    """Return the settings that are neither moved nor in ``NOT_TRIED``."""
    every, left_out = list(dotted_keys(Scenario)), tuple(itertools.chain.from_iterable(NOT_TRIED.values()))
    leaves = [key for key in every if not any(other.startswith(f"{key}.") for other in every)]
    return [key for key in leaves if key not in tried_keys() and not matches(key, left_out)]


@dataclass(frozen=True)
class Silent:
    """A setting whose change changes nothing under another one, and both changes."""

    setting: str
    change: str
    under: str
    other: str


def search(
    bases: Sequence[str] = tuple(BASES),
    only: str = "",
    under: str = "",
    tell: Callable[[str, int], None] = lambda name, asked: None,
) -> tuple[list[Silent], set[str], int]:
    """Return the pairs that are silent in all bases, the settings that matter in some, and how many pairs were asked.

    Args:
        bases: names of ``BASES``.
        only: beginning of the keys that are asked about.
        under: beginning of the keys of the other settings.
        tell: hears of each base, and how many pairs were asked before it.
    """
    is_silent, alive, asked = dict[Silent, bool](), set[str](), 0
    for name in bases:
        tell(name, asked)
        data = changed(SMALL, _flat(BASES[name]))
        base = valid(data)
        assert base is not None, (name, broken_rules(Scenario.model_validate(data)))
        moves = {key: [each for each in alternatives(key, base) if valid(changed(data, each))] for key in tried_keys()}
        mine = [key for key in moves if key.startswith(only)]
        live = [
            (key, each)
            for key in mine
            for each in moves[key]
            if not same(Scenario.model_validate(changed(data, each)), base)
        ]
        alive |= {key for key, _ in live}
        for other, context in ((key, each) for key in moves if key.startswith(under) for each in moves[key]):
            around = changed(data, context)
            there = Scenario.model_validate(around)
            for key, each in live:
                if key in context or other in each:
                    continue
                scenario = valid(changed(around, each))
                if scenario is None:
                    continue
                pair, asked = Silent(key, str(each), other, str(context)), asked + 1
                is_silent[pair] = is_silent.get(pair, True) and same(scenario, there)
    return [pair for pair, silent in is_silent.items() if silent], alive, asked


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, each in value.items():
        flat |= _flat(each, f"{prefix}{key}.") if isinstance(each, dict) else {f"{prefix}{key}": each}
    return flat


def is_known(pair: Silent) -> Known | None:
    """Return why a silent pair is right; None where nobody says so."""
    for known in KNOWN:
        settings = any(pair.setting.startswith(each) for each in known.settings)
        if settings and any(each in pair.other for each in known.under):
            return known
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Search, print what was found, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="beginning of the settings that are asked about")
    parser.add_argument("--under", default="", help="beginning of the other settings")
    parser.add_argument("--base", choices=BASES, action="append", help="default: all")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)

    def tell(name: str, asked: int) -> None:
        print(f"{name}; {asked} pairs so far", file=sys.stderr, flush=True)

    silent, alive, asked = search(options.base or tuple(BASES), options.only, options.under, tell)
    for pair in silent:
        known = is_known(pair)
        why = "SILENT" if known is None else f"known, {known.why}"
        print(f"{pair.change} changes nothing under {pair.other}: {why}")
    used = {is_known(pair) for pair in silent}
    unknown = [pair for pair in silent if is_known(pair) is None]
    whole = not (options.only or options.under or options.base)
    stale = [known for known in KNOWN if whole and known not in used]
    dead = sorted(set(tried_keys()) - alive) if whole else []
    for known in stale:
        print(f"not silent any more: {known}")
    print(f"{asked} pairs of {len(tried_keys())} settings, {len(silent)} silent, {len(unknown)} of them not known")
    print(f"matter in no base: {', '.join(dead) or 'none'}; without a place: {', '.join(without_place()) or 'none'}")
    return 1 if unknown or stale or dead or without_place() else 0


if __name__ == "__main__":
    sys.exit(main())
