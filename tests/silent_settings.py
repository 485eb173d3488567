"""Settings of training that another one makes void in silence: asks of every pair whether the one changes anything.

    python -m tests.silent_settings [--only loss.] [--under loss.] [--base "two passes"]

For each base and each setting that matters there, every other one is moved to each of its alternatives. If the first
then changes neither weights nor figures of two training steps of a small policy in any base, and no rule refuses it,
the pair is silent, and must be in ``KNOWN`` with a reason: exit code 1 if it is not. A room takes minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from harness.core.types import Metrics, RolloutGroup
from harness.learner import PolicyTrainer
from harness.learner.make import trainer_options
from harness.models.decoder import DecoderLM
from harness.run.memory.shape import shape_for
from harness.scenario.keys import choices_of, dotted_keys
from harness.scenario.rules import broken_rules
from harness.scenario.schema import Scenario
from tests.learner.tiny_training import CONFIG, groups, train_on

Changes = Mapping[str, Any]
SMALL: dict[str, Any] = {
    "model": {"type": "preset", "preset": "tiny", "warm_start": False, "threads": 1},
    "steps": 6,
    "rollout_batch_size": 16,
    "group_size": 4,
    "epochs_per_batch": 2,
    "optimizer": {"learning_rate": 0.01, "weight_decay": 0.1},
    "sampling": {"max_tokens": 8, "min_tokens": 2},
    "evaluation": {"prompts": 4},
}
BASES: dict[str, Changes] = {
    "two passes": {},
    "two minibatches": {"minibatches_per_epoch": 2},
    "a KL penalty": {"loss.kl.coefficient": 0.1},
    "a cloned reference": {"loss.kl.coefficient": 0.1, "loss.kl.reference": "reclone", "loss.kl.reclone_every": 2},
    "a moving reference": {"loss.kl.coefficient": 0.1, "loss.kl.reference": "polyak", "loss.kl.alpha": 0.3},
    "a constant": {"loss.aggregation": "constant", "loss.constant": 7},
    "lag": {
        "transport.type": "nixl",
        "placement.colocated": False,
        "max_lag": 1,
        "loss.proximal": "recompute",
        "loss.importance.mode": "icepop",
    },
    "whole responses": {"loss.ratio_level": "sequence"},
    "a schedule": {"optimizer.schedule": "cosine", "optimizer.warmup_steps": 1},
}
"""What is laid over ``SMALL``: each setting matters in one of them, if it does anywhere."""
ROOMS = ("loss.", "advantage.", "optimizer.", "epochs_per_batch", "minibatches_per_epoch", "shuffle_minibatches")
NUMBERS: dict[str, Sequence[Any]] = {
    "epochs_per_batch": (1, 3),
    "minibatches_per_epoch": (1, 2),
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
}
"""What an alternative needs beside itself."""
OF_A_USER = ("loss.function", "advantage.function")
KNOWN: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (("loss.kl.",), ("kl.coefficient': 0",), "a weight of 0 is a value of an axis, beside which a form may stand"),
    (("advantage.eps",), ("normalize_by_std': False", "delta':", "no_baseline"), "for arms that divide"),
    (("minibatches_per_epoch", "shuffle_minibatches"), ("minibatches_per_epoch': 1",), "there is nothing to deal"),
    (("optimizer.schedule", "optimizer.min"), ("epochs_per_batch': 1",), "both steps end in the warm-up"),
    (("loss.importance.floor",), ("seq-mask-tis",), "its means lie far outside of both bounds, 0.99 and 0.999"),
    (("advantage.delta",), ("normalize_by_std': False",), "two words for one advantage"),
    (("advantage.normalize_by_std",), ("no_baseline", "centered_rewards"), "two words for one advantage"),
    (("optimizer.max_grad_norm",), ("",), "with None: norms that are below 1 anyway"),
)
"""Silent pairs that are right: beginnings of the void keys, parts of what the other change reads as, and the reason."""


class Silent(NamedTuple):
    """A setting whose change changes nothing beside another one's change."""

    setting: str
    change: str
    under: str
    other: str


_MEMORY: dict[str, object] = {}


def trained(scenario: Scenario) -> object:
    """Return weights and figures after two training steps."""
    options = replace(trainer_options(scenario, shape_for(scenario)[0]), group_cost=None)  # type: ignore[arg-type]
    name = f"{scenario.prompts_per_batch} {options}"
    if name not in _MEMORY:
        trainer = PolicyTrainer(DecoderLM(CONFIG, seed=1), 0, replace(options, group_cost=lambda *_: 1.0), ends=(16,))
        metrics: Metrics = {}
        for step in range(2):
            batch = _batch(step, scenario.prompts_per_batch, options.group_size)
            metrics |= train_on(trainer, [batch], first_step=step)
        weights = [round(tensor.detach().double().sum().item(), 6) for tensor in trainer.weights().values()]
        figures = {key: each.value for key, each in metrics.items() if not key.startswith(("timing", "perf"))}
        _MEMORY[name] = (weights, {key: round(value, 6) for key, value in figures.items()})
    return _MEMORY[name]


def _batch(step: int, num_groups: int, group_size: int) -> tuple[RolloutGroup, ...]:
    """Return groups of which every third response was cut, of a policy whose importance bounds keep some tokens."""
    made = []
    for number, group in enumerate(groups(step, num_groups, group_size)):
        completions = [
            replace(
                each,
                token_ids=np.minimum(each.token_ids, 15),  # 16 is the end, which no response has too early
                log_probs=each.log_probs - 0.8,
                finish_reason="length" if (number + place) % 3 == 0 else "stop",
            )
            for place, each in enumerate(group.data.completions)
        ]
        made.append(replace(group, data=replace(group.data, completions=tuple(completions))))
    return tuple(made)


def alternatives(key: str, scenario: Scenario) -> Iterator[Changes]:
    """Yield what a setting may be moved to, each with what it needs beside itself."""
    now: Any = scenario
    for part in key.split("."):
        now = getattr(now, part, None)
    kinds = {"true": True, "false": False}
    for value in [*NUMBERS.get(key, ()), *(kinds.get(text, text) for text in choices_of(key, Scenario))]:
        if value not in ("own", list(now) if isinstance(now, tuple) else now):
            yield {key: value, **TOGETHER.get(f"{key}={value}", {})}


def changed(data: Changes, changes: Changes) -> dict[str, Any]:
    """Return plain settings with dotted keys set in them; nothing is dropped."""
    made = dict(data)
    for key, value in changes.items():
        first, _, rest = key.partition(".")
        made[first] = changed(made.get(first) or {}, {rest: value}) if rest else value
    return made


def valid(data: Changes) -> Scenario | None:
    """Return the scenario, or None where it is refused."""
    try:
        scenario = Scenario.model_validate(data)
    except ValueError:
        return None
    return None if broken_rules(scenario) else scenario


def keys() -> list[str]:
    """Return the settings of training; sections are left out, and what is a user's own."""
    every = [key for key in dotted_keys(Scenario) if key.startswith(ROOMS) and key not in OF_A_USER]
    return [key for key in every if not any(other.startswith(f"{key}.") for other in every)]


def search(bases: Sequence[str] = tuple(BASES), only: str = "", under: str = "") -> tuple[list[Silent], int]:
    """Return the pairs that are silent in all bases, and how many were asked: of keys that begin so beside others."""
    is_silent, asked = dict[Silent, bool](), 0
    for name in bases:
        print(f"{name}; {asked} pairs so far", file=sys.stderr, flush=True)
        data = changed(SMALL, BASES[name])
        base = valid(data)
        assert base is not None, name
        moves = {key: [each for each in alternatives(key, base) if valid(changed(data, each))] for key in keys()}
        mine = [(key, each) for key in moves if key.startswith(only) for each in moves[key]]
        live = [(key, each) for key, each in mine if trained(Scenario(**changed(data, each))) != trained(base)]
        for other, context in [(key, each) for key in moves if key.startswith(under) for each in moves[key]]:
            around = changed(data, context)
            for key, each in live:
                scenario = None if key in context or other in each else valid(changed(around, each))
                if scenario is not None:
                    pair, asked = Silent(key, str(each), other, str(context)), asked + 1
                    is_silent[pair] = is_silent.get(pair, True) and trained(scenario) == trained(Scenario(**around))
    return [pair for pair, silent in is_silent.items() if silent], asked


def is_known(pair: Silent) -> bool:
    """Return whether a silent pair is right."""
    return any(pair.setting.startswith(keys) and any(each in pair.other for each in under) for keys, under, _ in KNOWN)


def main(arguments: Sequence[str] | None = None) -> int:
    """Search, print what is silent without a reason, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="beginning of the settings that are asked about")
    parser.add_argument("--under", default="", help="beginning of the other settings")
    parser.add_argument("--base", choices=BASES, action="append", help="default: all")
    options = parser.parse_args(arguments)
    silent, asked = search(options.base or tuple(BASES), options.only, options.under)
    unknown = [pair for pair in silent if not is_known(pair)]
    for pair in unknown:
        print(f"{pair.change} changes nothing under {pair.other}")
    print(f"{asked} pairs, {len(silent)} silent, {len(unknown)} of them not known")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
