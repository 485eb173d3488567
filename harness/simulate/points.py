"""The points of a simulated sweep: from what was typed to scenarios, and each simulated in several worlds.

As many processes as there are cores work on them. Every point is simulated under the same seeds, so that points differ
only by what differs between them.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.core.errors import HarnessError, RunStopped, UserError
from harness.core.spawn_pool import spawn_pool
from harness.models.config import PRESETS
from harness.models.published import PUBLISHED
from harness.run.memory.plan import plan_of
from harness.scenario.axes import Variant, check_variant, expand
from harness.scenario.derived import offloaded
from harness.scenario.load import load_scenario
from harness.scenario.problems import as_user_error
from harness.scenario.schema import Scenario
from harness.scenario.tree import Tree, parse_yaml, tree_of_key
from harness.simulate.forecast import Forecast, forecast
from harness.simulate.machine import MachineProfile

RANKS = "placement.learner.ranks"
ALIASES = {
    "generators": "placement.generator.count",
    "ranks": RANKS,
    "lag": "max_lag",
    "transport": "transport.type",
}
"""Short names of what is often asked for."""
SIZES = {name.rsplit("-", 1)[1].lower(): name for name in PUBLISHED}
"""``7b`` and so on -> name on the hub."""
FEW_PROMPTS = 64
ON_GPUS = ("placement.device=cuda", "placement.generator.gpus=1", "placement.learner.gpus=1")


def load_for(
    scenario: str | Path, machine: MachineProfile, changes: Sequence[str] = ()
) -> tuple[Scenario, tuple[str, ...]]:
    """Load a scenario with all that was asked for laid over it.

    On a machine with GPUs, a scenario that leaves the device open, or takes the CPU by default, has each part on a GPU
    of its own, unless the changes say otherwise.

    Returns:
        the scenario, and what was set that nobody typed.

    Raises:
        UserError: as ``load_scenario``.
    """
    if not machine.device.gpus:
        return load_scenario(scenario, changes), ()
    try:
        loaded = load_scenario(scenario, changes)
    except UserError:  # such as NCCL without a GPU
        return load_scenario(scenario, [*ON_GPUS, *changes]), ON_GPUS
    if loaded.placement.device == "cuda":
        return loaded, ()
    added = ON_GPUS if loaded.uses_ray else ON_GPUS[:1]
    return load_scenario(scenario, [*added, *changes]), added


def model_keys(model: str) -> dict[str, str]:
    """Return what makes a scenario train this model, by dotted key: a preset's name, or a public size such as ``7b``.

    Raises:
        UserError: there is no such model.
    """
    if model in PRESETS:
        return {"model.type": "preset", "model.preset": model, "model.warm_start": "false"}
    name = SIZES.get(model.lower(), model)
    if name in PUBLISHED:
        return {"model.type": "folder", "model.path": name}
    known = ", ".join([*PRESETS, *SIZES])
    raise UserError(
        f"there is no model {model!r} to simulate", "--sweep model", f"take one of {known}; or set model.path"
    )


def variants_of(scenario: Scenario, arm: str | None) -> list[Variant]:
    """Return the runs of a scenario, or those of one of its arms.

    Raises:
        UserError: there is no such arm; or the scenario trains nothing.
    """
    if scenario.transport_sweep is not None:
        what = f"{scenario.name} measures weight syncs alone, and there is no training to simulate"
        raise UserError(what, "transport_sweep", "take a scenario that trains")
    every = expand(scenario)
    variants = [each for each in every if (arm is None or each.arm == arm) and not each.scenario.command]
    if not variants and any(each.arm == arm or arm is None for each in every):
        what = "a command is recorded, and what it would do elsewhere is not known here"
        raise UserError(what, "command", "simulate an arm of the harness' own loop, or --from a recording of it")
    moving = [variant for variant in variants if offloaded(variant.scenario)]
    if moving:
        what = f"learner.offload moves {', '.join(sorted(offloaded(moving[0].scenario)))}, and no profile prices that"
        raise UserError(what, "learner.offload", "--set learner.offload=null")
    if not variants:
        arms = ", ".join(scenario.arms) or "none"
        raise UserError(f"{scenario.name} has no arm called {arm!r}", "--arm", f"it has {arms}")
    return variants


def only_variant(scenario: Scenario, arm: str | None) -> Scenario:
    """Return the one run that a sweep starts from.

    Raises:
        UserError: there are several.
    """
    one_block = {"blocks": 1, "stop_at_half_width": None, "endpoint": "seconds_per_step"}  # rewards need several
    variants = variants_of(scenario.model_copy(update=one_block), arm)
    if len(variants) > 1:
        what = f"{scenario.name} has {len(variants)} runs, and a sweep starts from one"
        fix = f"name one with --arm: {', '.join(scenario.arms)}" if scenario.arms else "--set sweep={}"
        if arm is not None or scenario.sweep:
            fix = "leave its own sweep out: --set sweep={}"
        raise UserError(what, "arms and sweep of the scenario", fix)
    return variants[0].scenario


def steady(scenario: Scenario, steps: int) -> dict[str, Any]:
    """Return the settings of a run that is long enough to tell its steady state, and no longer.

    The point of a sweep makes fewer steps, validates its first and last policy only, on a few prompts, and saves none:
    its seconds per step are those of training, without the evaluations that a long run would make (``forecast``).
    """
    fewer = min(scenario.steps, steps)
    settings = scenario.model_dump(mode="json") | {"steps": fewer, "save_policy": False}
    few = min(scenario.evaluation.prompts, FEW_PROMPTS)
    return settings | {"evaluation": {"every": fewer, "prompts": few, "examples": 0}}


def facts_of(machine: MachineProfile) -> dict[str, Any]:
    """Return what a manifest says of the machine: that of the profile, not the one that simulates."""
    device, memory = machine.device, machine.device.memory_gib
    gib = int(memory) if memory is not None and memory == int(memory) else memory
    return {
        "cpu": None if device.gpus else device.name,
        "cores": machine.contention.cores if machine.contention else None,
        "memory_gib": None if device.gpus else gib,
        "gpus": [{"name": device.name, "memory_gib": gib} for _ in range(device.gpus)],
        "fingerprint": device.fingerprint or f"profile {machine.name}",
        "origin": machine.origin,
        "missing": {},
    }


MOST_POINTS = 20_000
BESIDE = ("gpus", "learner_share", "sharding", "model")
"""Axes that are no keys of a scenario."""
_RANGE = re.compile(r"^(\d+)\.\.(\d+)$")
Point = dict[str, Any]
RANK_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
GPUS = (8, 16, 32, 64, 128, 256, 512, 1000)
SPLITS = (("learner_share", (0.125, 0.25, 0.5)), ("sharding", ("ddp", "fsdp2", "hybrid")))
"""What a number of GPUs leaves open, where it is not said."""
GENERATORS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64)
LAGS = (0, 1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting and the values that it takes."""

    key: str
    values: tuple[Any, ...]

    @property
    def name(self) -> str:
        """What people call it: the short name where there is one, else the key's last part."""
        short = {key: alias for alias, key in ALIASES.items()}
        return short.get(self.key, self.key.rpartition(".")[2])

    @property
    def is_numeric(self) -> bool:
        """Whether its values are numbers, so that there is an order and a knee."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)


def read_axes(texts: Sequence[str], first: Sequence[Axis] = ()) -> list[Axis]:
    """Return the axes that were typed, in order, after those that come first; the first one of all is the x axis.

    Raises:
        UserError: one has no values, a value twice, or is named twice; or they make too many points.
    """
    axes = [*first, *(read_axis(text) for text in texts)]
    keys = [axis.key for axis in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise UserError(f"{key} is swept twice", "--sweep", "name each axis once")
    points = math.prod(len(axis.values) for axis in axes)
    if points > MOST_POINTS:
        what = f"the axes make {points:,} points, must be at most {MOST_POINTS:,}"
        raise UserError(what, "--sweep", "name fewer values")
    return axes


def read_axis(text: str) -> Axis:
    """Return the axis of ``KEY=1..64`` or ``KEY=a,b,c``.

    Raises:
        UserError: it is of no such form.
    """
    key, equals, values = text.partition("=")
    if not equals or not key.strip() or not values.strip():
        raise UserError(f"{text!r} is no axis", "--sweep", "write KEY=1..64 or KEY=a,b,c, as in max_lag=0,1,2")
    found = _RANGE.match(values.strip())
    if found:
        low, high = int(found[1]), int(found[2])
        if high < low:
            raise UserError(f"the axis {text!r} runs backwards", "--sweep", f"write {key}={high}..{low}")
        if high - low >= MOST_POINTS:
            what = f"the axis {text!r} has {high - low + 1:,} values, must be at most {MOST_POINTS:,}"
            raise UserError(what, "--sweep", "name fewer values")
        listed: list[Any] = list(range(low, high + 1))
    else:
        listed = parse_yaml(f"[{values}]", "--sweep")
    if len({json.dumps(value, sort_keys=True, default=str) for value in listed}) < len(listed):
        raise UserError(f"the axis {text!r} names a value twice", "--sweep", "name each once")
    return Axis(ALIASES.get(key.strip(), key.strip()), tuple(listed))


def asked_axes(question: str | None, scenario: Scenario, machine: MachineProfile, texts: Sequence[str]) -> list[Axis]:
    """Return the axes of a ready-made question, with the values typed for one of them, and those typed beside.

    Raises:
        UserError: there is nothing to choose from; or see ``read_axes``.
    """
    ready = [] if question is None else [axis_of(question, scenario, machine)]
    if question == "gpus":
        ready += [Axis(key, values) for key, values in SPLITS]
    typed = {ALIASES.get(key, key): text for text in texts for key in [text.partition("=")[0].strip()]}
    first = [read_axis(typed[axis.key]) if axis.key in typed else axis for axis in ready]
    taken = [typed[axis.key] for axis in ready if axis.key in typed]
    return read_axes([text for text in texts if text not in taken], first)


def axis_of(question: str, scenario: Scenario, machine: MachineProfile) -> Axis:
    """Return the axis that answers a ready-made question.

    Raises:
        UserError: there is nothing to choose from.
    """
    if question == "lag":
        return Axis("max_lag", LAGS)
    if question == "gpus":
        return Axis("gpus", GPUS)
    if question == "ranks":
        most = scenario.train_batch_size
        return Axis(RANKS, tuple(count for count in RANK_COUNTS if count <= most))
    if question == "generators":
        most = scenario.prompts_per_batch
        counts = [count for count in GENERATORS if count < most] + [min(most, GENERATORS[-1])]
        return Axis(ALIASES["generators"], tuple(counts))
    known = dict.fromkeys(
        cost.where["transport"]
        for cost in machine.stages
        if cost.stage == "weight_publish" and "transport" in cost.where
    )
    kinds = [kind for kind in known if not kind.startswith("in_process")]  # which no other placement can have
    if not kinds:
        knows = "knows no transport that takes time, so there is nothing to choose from"
        if any(cost.stage == "weight_publish" and not cost.where for cost in machine.stages):
            knows = "has one cost of a weight sync for all transports, so it cannot tell them apart"
        sweep = "transport_sweep_gpu" if machine.has_gpu else "transport_sweep"
        fix = f"measure them on such a machine: python -m harness run {sweep}; or name a profile that has transports"
        raise UserError(f"the profile {machine.name} {knows}", "--ask transport", fix)
    return Axis(ALIASES["transport"], tuple(kinds))


def points_of(axes: Sequence[Axis]) -> Iterator[Point]:
    """Yield every point; the last axis changes fastest."""
    for values in itertools.product(*(axis.values for axis in axes)):
        yield dict(zip((axis.key for axis in axes), values, strict=True))


def line_name(point: Mapping[str, Any], axes: Sequence[Axis]) -> str:
    """Name the line of a picture that a point is on: the values of all axes but the first; empty for one axis."""
    return ", ".join(f"{axis.name} {shown(point[axis.key])}" for axis in axes[1:])


def shown(value: Any) -> str:
    """Write a value of an axis."""
    if isinstance(value, dict) and "type" in value:
        return str(value["type"])
    return value if isinstance(value, str) else json.dumps(value, default=str)


FEWEST_FOR_PROCESSES = 24
"""Points from which on more processes pay: starting one takes about as long as simulating ten points."""
AT_A_TIME = 1  # so that Ctrl-C waits for one point at most


@dataclass(frozen=True)
class Question:
    """What all points of a sweep have in common: resolved settings, profile, and what ``forecast`` takes."""

    base: dict[str, Any]
    machine: MachineProfile
    draws: int
    seed: int
    allow: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What was predicted of one point, or in a sentence why it cannot be."""

    point: Point
    found: Forecast | None = None
    problem: str = ""


def answers(
    question: Question, points: Sequence[Point], processes: int, heard: Callable[[], None] = lambda: None
) -> list[Answer]:
    """Simulate all points; what cannot be comes with the reason.

    Args:
        processes: how many may work side by side, where there are enough points for it to pay.
        heard: called after each point.
    """

    found = list[Answer]()

    def keep(each: Iterable[Answer]) -> list[Answer]:
        for answer in each:
            found.append(answer)
            heard()
        return found

    if processes < 2 or len(points) < FEWEST_FOR_PROCESSES:
        return keep(answer(question, point) for point in points)
    try:
        with spawn_pool(processes, _prepare, question) as workers:
            return keep(workers.map(_answer, points, chunksize=AT_A_TIME))
    except BrokenProcessPool as error:
        raise RunStopped("a process of the sweep was killed from outside, as where memory is short") from error


_question: Question | None = None  # of a process of the pool


def _prepare(question: Question) -> None:
    global _question
    _question = question


def _answer(point: Point) -> Answer:
    assert _question is not None
    return answer(_question, point)


def answer(asked: Question, point: Point) -> Answer:
    """Simulate one point."""
    machine = asked.machine
    try:
        scenario = scenario_at(point, asked.base, machine)
        short = beyond_gpus(scenario, machine)
        if short:
            return Answer(point, None, _shortage(short, machine))
        return Answer(point, forecast(scenario, machine, asked.draws, asked.seed, allow=asked.allow, paired=True))
    except HarnessError as error:
        said = error.what if isinstance(error, UserError) else str(error)
        return Answer(point, None, " ".join(said.split()))


def scenario_at(point: Mapping[str, Any], base: dict[str, Any], machine: MachineProfile) -> Scenario:
    """Return the scenario of these settings with the point's values in it.

    Raises:
        UserError: they break a rule.
    """
    keys = spread_keys(point, base, machine.device.gpus)
    keys |= {key: value for key, value in point.items() if key not in BESIDE}
    if "model" in point:
        keys |= {name: parse_yaml(text, name) for name, text in model_keys(str(point["model"])).items()}
    changes = [tree_of_key(key, value, f"{key}={shown(value)}") for key, value in keys.items()]
    scenario, problems = check_variant(
        Tree.of(base, "the scenario").without("arms", "sweep").overlaid(Scenario, *changes)
    )
    if scenario is None:
        raise as_user_error(problems, "the point")
    return scenario


_FOR_GENERATOR = "for the generator: engine.precision bfloat16, or engine.type vllm with engine.tensor_parallel"


def check_gpus_hold(scenario: Scenario, machine: MachineProfile) -> None:
    """Refuse a run that no GPU of the profile has the memory for, by the memory plan (docs/memory.md).

    Raises:
        UserError: naming each part that is too large and what it needs, and how many ranks would fit.
    """
    short = beyond_gpus(scenario, machine)
    if not short:
        return
    fixes = []
    if {"learner", "run"} & set(short):
        fixes.append(_ranks_that_fit(scenario, machine))
    if "generator" in short:
        fixes.append(_FOR_GENERATOR)
    raise UserError(_shortage(short, machine), "machine", "; ".join(fixes))


def beyond_gpus(scenario: Scenario, machine: MachineProfile) -> dict[str, int]:
    """Return the bytes of each part that needs more than a GPU of the profile has: of one rank, or of one Generator.

    ``run`` stands for all parts in one process.
    """
    gib = machine.device.memory_gib
    if not machine.has_gpu or gib is None:
        return {}
    plan, _ = plan_of(scenario, has_gpu=True)
    if plan is None:
        return {}
    needed: dict[str, int] = {}
    for process in plan.processes:
        if process.device == "cuda":
            needed[process.kind] = max(process.own_peak, needed.get(process.kind, 0))
    return {part: num_bytes for part, num_bytes in needed.items() if num_bytes > gib * 2**30}


def _shortage(short: Mapping[str, int], machine: MachineProfile) -> str:
    names = {"run": "learner with the generator in its process"}
    parts = [f"the {names.get(part, part)} would need {size / 2**30:,.0f} GiB" for part, size in short.items()]
    return f"{' and '.join(parts)} of memory, and a GPU of {machine.name} has {machine.device.memory_gib:g} GiB"


def _ranks_that_fit(scenario: Scenario, machine: MachineProfile) -> str:
    """Return the fewest ranks of FSDP2 whose memory fits, with the weights as they are or else in bfloat16."""
    base = scenario.model_dump(mode="json")
    apart = {"transport.type": "shared_memory", "placement.colocated": False}
    apart |= {"placement.generator.gpus": 1, "placement.learner.gpus": 1}
    shards = ({} if scenario.uses_ray else apart) | {"learner.publish": "shards"}
    ways: list[Point] = [shards, shards | {"model.dtype": "bfloat16"}]
    for way, ranks in itertools.product(ways, RANK_COUNTS[1:]):
        try:
            found = scenario_at({RANKS: ranks, "sharding": "fsdp2"} | way, base, machine)
        except UserError:
            continue
        if "learner" not in beyond_gpus(found, machine):
            keys = {RANKS: ranks, "learner.sharding": "fsdp2"} | way
            fits = "the learner fits with " + ", ".join(f"{key} {shown(value)}" for key, value in keys.items())
            apart_too = not scenario.uses_ray and "generator" in beyond_gpus(found, machine)
            return f"{fits}; {_FOR_GENERATOR}" if apart_too else fits
    return "no number of ranks makes the learner fit: take a smaller model, or a machine with larger GPUs"


def spread_keys(point: Mapping[str, Any], base: Mapping[str, Any], gpus_per_machine: int) -> dict[str, Any]:
    """Return the settings that spread a run over ranks and Generators, for the axes of a point that say so.

    ``gpus`` is how many there are, ``learner_share`` the share of them that are ranks, whole machines where they are
    more than one; the others are Generators.
    ``sharding`` may be ``hybrid``: a copy on each machine. Microbatches have no more rows than the scenario gives them,
    so that more ranks make fewer of them each.

    Raises:
        UserError: a value is none that the axis can have.
    """
    keys: dict[str, Any] = {}
    was, ranks = base["placement"]["learner"]["ranks"], point.get(RANKS)
    if "gpus" in point or "learner_share" in point:
        gpus, share = point.get("gpus", 0), point.get("learner_share", 0.5)
        ranks = round(gpus * share) if _is_number(gpus) and _is_number(share) else 0
        if 0 < gpus_per_machine < ranks:
            ranks -= ranks % gpus_per_machine
        if not 1 <= ranks < gpus:
            what = f"gpus {gpus!r} with learner_share {share!r} leaves no rank or no Generator"
            raise UserError(what, "--sweep", "gpus=8,64 with learner_share=0.25,0.5")
        keys |= {RANKS: ranks, ALIASES["generators"]: gpus - ranks}
    sharding = point.get("sharding")
    if sharding == "hybrid":
        tensor = point.get("learner.mesh.tensor", base["learner"]["mesh"]["tensor"])
        copies = (ranks or was) // max(gpus_per_machine, tensor)
        keys |= {"learner.sharding": "fsdp2", "learner.mesh.replicate": copies if copies > 1 else None}
    elif sharding is not None:
        keys["learner.sharding"] = sharding
    if isinstance(ranks, int) and ranks > 0:
        rows = base["rollout_batch_size"] // base["minibatches_per_epoch"]
        fewest = max(1, -(-base["gradient_accumulation_steps"] * was // ranks))
        keys["gradient_accumulation_steps"] = next(count for count in range(fewest, rows + 1) if rows % count == 0)
    return keys


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
