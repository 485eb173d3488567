"""Arms and sweep: one scenario file to the variants that are run."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from harness.core.experiment import FEWEST_TO_STOP
from harness.scenario.keys import Path
from harness.scenario.messages import problems_of
from harness.scenario.problems import MOST_TOLD, Problem, as_user_error, broken, dotted, shown
from harness.scenario.rules import broken_rules
from harness.scenario.schema import Scenario
from harness.scenario.tree import Tree, tree_of_key, value_at

MAX_VARIANTS, _LONGEST_NAME = 10_000, 100
_SAME_FOR_ALL = ("name", "arms", "sweep", "extends", "endpoint", "blocks", "interleaving", "stop_at_half_width")


@dataclass(frozen=True, slots=True)
class Variant:
    """One run of a scenario.

    ``point`` holds the values of the sweep's axes by dotted key. ``name`` is the run's folder below the experiment,
    empty where the scenario has neither arms nor sweep. ``scenario`` has the changes in it, and no arms or sweep.
    ``position`` is its place among the scenario's runs, ``block`` the number of its block; None where there is one.
    """

    arm: str | None
    point: dict[str, Any]
    name: str
    scenario: Scenario
    position: int = 0
    block: int | None = None

    @property
    def label(self) -> str:
        """What it is called beside the others of its block."""
        return _label(self.arm, self.point) or self.scenario.name


def expand(scenario: Scenario, origins: Mapping[Path, str] | None = None, subject: str = "") -> list[Variant]:
    """Return the runs of a scenario, block by block: every arm at every point, the arms of one point side by side.

    They are made and checked once: a scenario that was loaded has them already. Changes are laid over the base with
    its defaults written out, so an arm that switches a section's ``type`` keeps the settings that both types have.

    Args:
        scenario: what is run.
        origins: where its values were written; None where it was not read from a file.
        subject: what to call it in messages.

    Raises:
        UserError: a variant breaks a rule or sets something unknown; the message names the arm and the point.
    """
    kept: tuple[Variant, ...] | None = getattr(scenario, "_variants", None)
    if kept is not None:
        return list(kept)
    subject = subject or f"scenario {scenario.name}"
    data = scenario.model_dump(mode="json")
    tree = Tree(data, dict(origins)) if origins is not None else Tree.of(data, subject)

    def refuse(problems: Iterable[Problem]) -> None:
        if located := [problem.located(tree.origins) for problem in problems]:
            raise as_user_error(located, subject)

    def changes(path: Path, values: Mapping[str, Any]) -> list[Tree]:
        return [tree_of_key(key, value, tree.origins.get((*path, key), dotted(path))) for key, value in values.items()]

    refuse((*_axis_problems(scenario), *_block_problems(scenario)))
    base = tree.without("arms", "sweep")
    variants: list[Variant] = []
    found: dict[Problem, list[str]] = {}
    looked_at = refused = 0
    arms: list[str | None] = [*scenario.arms] or [None]
    for values, arm in itertools.product(itertools.product(*scenario.sweep.values()), arms):
        point = dict(zip(scenario.sweep, values, strict=True))
        of_arm = [] if arm is None else changes(("arms", arm), scenario.arms[arm])
        resolved, problems = check_variant(base.overlaid(Scenario, *of_arm, *changes(("sweep",), point)))
        label = _label(arm, point)
        for problem in problems:
            found.setdefault(problem, []).append(label)
        if resolved is not None:
            variants.append(Variant(arm, point, label, resolved))
        looked_at, refused = looked_at + 1, refused + (resolved is None)
        if refused == MOST_TOLD:
            break
    refuse(_in_variants(problem, labels, looked_at, _count(scenario)) for problem, labels in found.items())
    refuse(_endpoint_problems(scenario, variants))
    runs = tuple(_runs(variants, scenario.blocks))
    object.__setattr__(scenario, "_variants", runs)
    return list(runs)


def identical_arms(variants: Sequence[Variant]) -> list[str]:
    """Return a sentence on each set of runs of one block with the same settings, such as a copy for the noise floor."""
    alike: dict[str, list[str]] = {}
    for variant in variants:
        if not variant.block:
            alike.setdefault(variant.scenario.model_dump_json(), []).append(f"`{variant.label}`")
    return [
        f"note: {', '.join(labels)} have the same settings, so what they differ by is noise"
        for labels in alike.values()
        if len(labels) > 1
    ]


def changes_of(scenario: Scenario, variant: Variant) -> dict[str, Any]:
    """Return the settings in which a run differs from its scenario, by dotted key; those of blocks are left out."""
    of_blocks = {"arms", "sweep", "blocks", "stop_at_half_width"} | ({"seed"} if variant.block is not None else set())
    before, after = (each.model_dump(mode="json", exclude=of_blocks) for each in (scenario, variant.scenario))
    return {key: value_at(after, tuple(key.split("."))) for key in differing(before, after)}


def differing(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the dotted keys whose values differ."""
    for key in sorted({*before, *after}):
        old, new, name = before.get(key), after.get(key), f"{path}{key}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from differing(old, new, f"{name}.")
        elif old != new:
            yield name


def _runs(variants: Sequence[Variant], blocks: int) -> Iterator[Variant]:
    """Yield the runs of each block, which has one seed, so that they share prompts and draws.

    Long names are shortened, and equal ones told apart, also on file systems that ignore case.
    """
    taken: set[str] = set()
    for block, variant in itertools.product(range(blocks), variants):
        name, run = variant.name, replace(variant, position=len(taken))
        if blocks > 1:
            own = {"seed": variant.scenario.seed + block, "blocks": 1, "stop_at_half_width": None}
            run = replace(run, block=block, scenario=variant.scenario.model_copy(update=own))
            name = ",".join(filter(None, (name, f"block={block:0{len(str(blocks - 1))}d}")))
        if len(name) > _LONGEST_NAME:
            name = f"{name[: _LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        candidates = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        name = next(candidate for candidate in candidates if candidate.casefold() not in taken)
        taken.add(name.casefold())
        yield replace(run, name=name)


def _count(scenario: Scenario) -> int:
    return math.prod(map(len, scenario.sweep.values())) * max(1, len(scenario.arms))


def _block_problems(scenario: Scenario) -> Iterator[Problem]:
    """Blocks set the seed; nothing else may. Stopping early needs blocks enough, and something to compare."""
    blocks, width, runs = scenario.blocks, scenario.stop_at_half_width, _count(scenario)
    if blocks > 1 and scenario.transport_sweep is not None:
        what = f"blocks is {blocks} with a transport_sweep, whose transports take turns in each of its own repeats"
        yield broken(what, "leave blocks out, and set transport_sweep.repeats", "blocks")
    sections: dict[Path, Mapping[str, Any]] = {("sweep",): scenario.sweep}
    sections |= {("arms", arm): changes for arm, changes in scenario.arms.items()}
    for path, settings in sections.items():
        if blocks > 1 and "seed" in settings:
            what = f"blocks is {blocks}, and `seed` is set by `{dotted(path)}`: each block has a seed of its own"
            yield Problem(what, "leave the seed out there, or set blocks to 1", ((*path, "seed"),))
    if blocks > 1 and scenario.seed + blocks > 2**32:
        what = f"seed {scenario.seed} and {blocks} blocks go beyond the largest seed, {2**32 - 1}"
        yield broken(what, "take a smaller seed", "seed")
    if blocks * runs > MAX_VARIANTS >= runs:
        what = f"blocks, arms and sweep make {blocks * runs} runs, must be at most {MAX_VARIANTS}"
        yield broken(what, f"set blocks to at most {MAX_VARIANTS // runs}", "blocks")
    if width is not None and (blocks < FEWEST_TO_STOP or runs < 2):
        what = f"stop_at_half_width is {width:g} with blocks {blocks} and {runs} runs"
        fix = f"set blocks to {FEWEST_TO_STOP} or more (the most that may be made), and name two arms to compare"
        yield broken(what, fix, "stop_at_half_width")


def _endpoint_problems(scenario: Scenario, variants: Sequence[Variant]) -> Iterator[Problem]:
    """Rewards are compared at the same number of rollouts, over seeds."""
    rollouts = {variant.label: variant.scenario.steps * variant.scenario.rollout_batch_size for variant in variants}
    if scenario.endpoint != "reward_at_rollouts" or len(rollouts) < 2:
        return
    if max(scenario.blocks, len(scenario.sweep.get("seed", ()))) < 2:
        what = "endpoint is reward_at_rollouts with one seed, and one seed cannot tell arms from luck"
        yield broken(what, "set blocks to 6 or more: each has a seed of its own", "endpoint", "blocks")
    fewest, most = (choose(rollouts, key=rollouts.__getitem__) for choose in (min, max))
    if rollouts[fewest] < rollouts[most]:
        sampled = f"{most} samples {rollouts[most]} rollouts, {fewest} {rollouts[fewest]}"
        what = f"endpoint is reward_at_rollouts, and {sampled}"
        yield broken(what, "give all runs the same steps x rollout_batch_size", "endpoint", "steps")


def _axis_problems(scenario: Scenario) -> Iterator[Problem]:
    """Arms and axes have names that can be folders, set what may differ, and no two of them set the same thing."""
    arms, sweep = scenario.arms, scenario.sweep
    for arm in arms:
        if arm.lower() == "pictures":
            what = f"an arm cannot be called `{arm}`: that folder holds the pictures"
            yield Problem(what, "give it another name", (("arms", arm),))
    set_in_arms = [("arms", arm, key) for arm, changes in arms.items() for key in changes]
    for path in (*set_in_arms, *(("sweep", axis) for axis in sweep)):
        if path[-1].split(".")[0] in _SAME_FOR_ALL:
            what = f"`{path[-1]}` cannot differ between the runs of one scenario"
            yield Problem(what, "leave it out here", (path,))
    for axis, values in sweep.items():
        if len({json.dumps(value, sort_keys=True) for value in values}) < len(values):
            what = f"sweep axis `{axis}` names a value twice: {shown(values)}"
            yield Problem(what, "name each once", (("sweep", axis),))
    leaves = [(arm, key) for arm, changes in arms.items() for key in _leaves(changes)]
    for (arm, key), axis in itertools.product(leaves, sweep):
        if _overlap(key, axis):
            what = f"`{key}` is set by arm `{arm}` and by the sweep axis `{axis}`"
            yield Problem(what, "let one of them set it", (("sweep", axis),))
    for one, other in itertools.combinations(sweep, 2):
        if _overlap(one, other):
            yield Problem(f"sweep axes `{one}` and `{other}` set the same thing", "keep one", (("sweep", other),))
    if _count(scenario) > MAX_VARIANTS:
        what = f"arms and sweep make {_count(scenario)} runs, must be at most {MAX_VARIANTS}"
        yield broken(what, "sweep fewer values", "sweep")


def _leaves(changes: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in changes.items():
        if value and isinstance(value, dict):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield above + key


def _overlap(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _in_variants(problem: Problem, labels: list[str], looked_at: int, count: int) -> Problem:
    """Say in which of the runs that were looked at the problem is."""
    if labels == [""]:
        return problem
    if len(labels) == looked_at > 1:
        which = f"all {count}" if looked_at == count else f"each of the first {looked_at} of {count}"
        return replace(problem, what=f"in {which} runs: {problem.what}")
    names = ", ".join(f"`{label}`" for label in labels[:4])
    more = f" and {len(labels) - 4} more" if len(labels) > 4 else ""
    return replace(problem, what=f"in {names}{more}: {problem.what}")


def _label(arm: str | None, point: Mapping[str, Any]) -> str:
    lasts = [key.rpartition(".")[2] for key in point]
    named = (last if lasts.count(last) == 1 else key for key, last in zip(point, lasts, strict=True))
    axes = (f"{name}={_as_name(value)}" for name, value in zip(named, point.values(), strict=True))
    return ",".join([*([] if arm is None else [arm]), *axes])


def _as_name(value: Any) -> str:
    """Write an axis value with characters that every file system takes."""
    if isinstance(value, list):
        return "-".join(_as_name(item) for item in value) or "empty"
    if type(value) in (int, float):
        return str(value)
    text = value if isinstance(value, str) else json.dumps(value)
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", text).strip("-.") or "empty"


def parse_scenario(tree: Tree) -> tuple[Scenario | None, list[Problem]]:
    """Check the keys, types and bounds of a scenario.

    Returns:
        the scenario (None where there are problems) and every problem, with the place where it was written.
    """
    problems, scenario = list(tree.problems), None
    try:
        scenario = Scenario.model_validate(tree.data)
    except ValidationError as error:
        problems += problems_of(error, Scenario)
    return (None if problems else scenario), [problem.located(tree.origins) for problem in problems]


def check_variant(tree: Tree) -> tuple[Scenario | None, list[Problem]]:
    """Check a scenario without arms and sweep: keys, types and bounds, then the rules."""
    scenario, problems = parse_scenario(tree)
    if scenario is not None:
        problems = [problem.located(tree.origins) for problem in broken_rules(scenario)]
    return (None if problems else scenario), problems
