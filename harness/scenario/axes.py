"""Arms and sweep: one scenario file to the variants that are run."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from harness.core.experiment import FEWEST_TO_STOP
from harness.scenario.keys import Path
from harness.scenario.messages import problems_of
from harness.scenario.problems import MOST_TOLD, Problem, as_user_error, broken, dotted, shown
from harness.scenario.rules import broken_rules
from harness.scenario.schema import Scenario
from harness.scenario.tree import Tree, paths_in, tree_of_key, value_at

MAX_VARIANTS = 10_000
_FIXED_KEYS = ("name", "arms", "sweep", "extends", "endpoint", "blocks", "interleaving", "stop_at_half_width")
_RESERVED_ARMS = ("pictures",)
_MAX_NAME = 100


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
    problems = [problem.located(tree.origins) for problem in (*_axis_problems(scenario), *_block_problems(scenario))]
    if problems:
        raise as_user_error(problems, subject)
    base = tree.without("arms", "sweep")
    variants: list[Variant] = []
    found: dict[Problem, list[str]] = {}
    looked_at = refused = 0
    arms: list[str | None] = [*scenario.arms] or [None]
    for values, arm in itertools.product(itertools.product(*scenario.sweep.values()), arms):
        point = dict(zip(scenario.sweep, values, strict=True))
        changes = [] if arm is None else _changes(tree, ("arms", arm), scenario.arms[arm])
        resolved, wrong = check_variant(base.overlaid(Scenario, *changes, *_changes(tree, ("sweep",), point)))
        label = _label(arm, point)
        for problem in wrong:
            found.setdefault(problem, []).append(label)
        if resolved is not None:
            variants.append(Variant(arm, point, label, resolved, len(variants)))
        looked_at, refused = looked_at + 1, refused + (resolved is None)
        if refused == MOST_TOLD:
            break
    wrong = [_in_variants(problem, labels, looked_at, _count(scenario)) for problem, labels in found.items()]
    wrong = wrong or [problem.located(tree.origins) for problem in _endpoint_problems(scenario, variants)]
    if wrong:
        raise as_user_error(wrong, subject)
    variants = _with_folder_names(_in_blocks(variants, scenario.blocks))
    object.__setattr__(scenario, "_variants", tuple(variants))
    return variants


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


def _changes(tree: Tree, path: Path, changes: Mapping[str, Any]) -> list[Tree]:
    """Return dotted keys as trees; ``path`` leads to them in the tree, which knows where they were written."""
    return [tree_of_key(key, value, tree.origins.get((*path, key), dotted(path))) for key, value in changes.items()]


def _in_blocks(variants: list[Variant], blocks: int) -> list[Variant]:
    """Repeat the runs in each block, with a seed of its own: everything in one block shares prompts and draws."""
    if blocks == 1:
        return variants
    repeated: list[Variant] = []
    for block in range(blocks):
        for variant in variants:
            own = {"seed": variant.scenario.seed + block, "blocks": 1, "stop_at_half_width": None}
            seeded = variant.scenario.model_copy(update=own)
            name = ",".join(filter(None, (variant.name, f"block={block:0{len(str(blocks - 1))}d}")))
            repeated.append(replace(variant, name=name, scenario=seeded, position=len(repeated), block=block))
    return repeated


def _count(scenario: Scenario) -> int:
    return math.prod(map(len, scenario.sweep.values())) * max(1, len(scenario.arms))


def _block_problems(scenario: Scenario) -> Iterator[Problem]:
    """Blocks set the seed; nothing else may. Stopping early needs blocks enough, and something to compare."""
    blocks, width = scenario.blocks, scenario.stop_at_half_width
    if blocks > 1 and scenario.transport_sweep is not None:
        what = f"blocks is {blocks} with a transport_sweep, whose transports take turns in each of its own repeats"
        yield broken(what, "leave blocks out, and set transport_sweep.repeats", "blocks")
    if blocks > 1:
        setters: list[Path] = [("sweep", "seed")] if "seed" in scenario.sweep else []
        setters += [("arms", arm, "seed") for arm, changes in scenario.arms.items() if "seed" in changes]
        for path in setters:
            what = f"blocks is {blocks}, and `seed` is set by `{dotted(path[:-1])}`: each block has a seed of its own"
            yield Problem(what, "leave the seed out there, or set blocks to 1", (path,))
        if scenario.seed + blocks > 2**32:
            what = f"seed {scenario.seed} and {blocks} blocks go beyond the largest seed, {2**32 - 1}"
            yield broken(what, "take a smaller seed", "seed")
    runs = _count(scenario)
    if blocks * runs > MAX_VARIANTS >= runs:
        what = f"blocks, arms and sweep make {blocks * runs} runs, must be at most {MAX_VARIANTS}"
        yield broken(what, f"set blocks to at most {MAX_VARIANTS // runs}", "blocks")
    if width is not None and (blocks < FEWEST_TO_STOP or runs < 2):
        what = f"stop_at_half_width is {width:g} with blocks {blocks} and {runs} runs"
        fix = f"set blocks to {FEWEST_TO_STOP} or more (the most that may be made), and name two arms to compare"
        yield broken(what, fix, "stop_at_half_width")


def _endpoint_problems(scenario: Scenario, variants: Sequence[Variant]) -> Iterator[Problem]:
    """Rewards are compared at the same number of rollouts, over seeds."""
    compared = len({variant.label for variant in variants}) > 1
    if scenario.endpoint != "reward_at_rollouts" or not compared:
        return
    seeds = max(scenario.blocks, len(scenario.sweep.get("seed", ())))
    if seeds < 2:
        what = "endpoint is reward_at_rollouts with one seed, and one seed cannot tell arms from luck"
        yield broken(what, "set blocks to 6 or more: each has a seed of its own", "endpoint", "blocks")
    rollouts = {variant.label: variant.scenario.steps * variant.scenario.rollout_batch_size for variant in variants}
    if len(set(rollouts.values())) > 1:
        fewest, most = (choose(rollouts, key=rollouts.__getitem__) for choose in (min, max))
        what = (
            f"endpoint is reward_at_rollouts, and {most} samples {rollouts[most]} rollouts, {fewest} {rollouts[fewest]}"
        )
        yield broken(what, "give all runs the same steps x rollout_batch_size", "endpoint", "steps")


def _axis_problems(scenario: Scenario) -> Iterator[Problem]:
    """Arms and axes have names that can be folders, set what may differ, and no two of them set the same thing."""
    arms, sweep = scenario.arms, scenario.sweep
    for arm in arms:
        if arm.lower() in _RESERVED_ARMS:
            what = f"an arm cannot be called `{arm}`: that folder holds the pictures"
            yield Problem(what, "give it another name", (("arms", arm),))
    set_in_arms = [("arms", arm, key) for arm, changes in arms.items() for key in changes]
    for path in (*set_in_arms, *(("sweep", axis) for axis in sweep)):
        if path[-1].split(".")[0] in _FIXED_KEYS:
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


def _leaves(changes: Mapping[str, Any]) -> Iterator[str]:
    for path in paths_in(dict(changes)):
        below = value_at(changes, path)
        if path and all(isinstance(part, str) for part in path) and not (isinstance(below, dict) and below):
            yield ".".join(map(str, path))


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
    last_parts = [key.rpartition(".")[2] for key in point]
    named = (last if last_parts.count(last) == 1 else key for key, last in zip(point, last_parts, strict=True))
    parts = (f"{name}={_as_name(value)}" for name, value in zip(named, point.values(), strict=True))
    return ",".join([*([] if arm is None else [arm]), *parts])


def _as_name(value: Any) -> str:
    """Write an axis value with characters that every file system takes."""
    if isinstance(value, list):
        return "-".join(_as_name(item) for item in value) or "empty"
    if type(value) in (int, float):
        return str(value)
    text = value if isinstance(value, str) else json.dumps(value)
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", text).strip("-.") or "empty"


def _with_folder_names(variants: list[Variant]) -> list[Variant]:
    """Shorten long names and tell equal ones apart, also on file systems that ignore case."""
    taken: set[str] = set()
    named = []
    for variant in variants:
        name = variant.name
        if len(name) > _MAX_NAME:
            name = f"{name[: _MAX_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        candidates = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        name = next(candidate for candidate in candidates if candidate.casefold() not in taken)
        taken.add(name.casefold())
        named.append(replace(variant, name=name))
    return named


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
