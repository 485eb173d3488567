"""Arms and sweep: one scenario file to the variants that are run."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.scenario.check import check_variant
from harness.scenario.problems import Path, Problem, as_user_error, dotted
from harness.scenario.schema import Scenario
from harness.scenario.tree import Tree, paths_in, tree_of_key

MAX_VARIANTS = 10_000
FEWEST_BLOCKS = 10
"""Blocks before which no experiment stops early: those of ``harness.compare.stats.enough``."""
_FIXED_KEYS = ("name", "arms", "sweep", "extends", "blocks", "interleaving", "stop_at_half_width")
_RESERVED_ARMS = ("pictures",)
_MAX_NAME = 100
Arms = Mapping[str, Mapping[str, Any]]
Sweep = Mapping[str, list[Any]]


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


def expand(scenario: Scenario) -> list[Variant]:
    """Return the runs of a scenario, block by block: every arm at every point, the arms of one point side by side.

    Raises:
        UserError: a variant breaks a rule or sets something unknown; the message names the arm and the point.
    """
    subject = f"scenario {scenario.name}"
    variants, problems = try_expand(scenario, dict.fromkeys(paths_in(scenario.model_dump(mode="json")), subject))
    if problems:
        raise as_user_error(problems, subject)
    return variants


def try_expand(scenario: Scenario, origins: dict[Path, str]) -> tuple[list[Variant], list[Problem]]:
    """Return the variants of a scenario, and all that is wrong with them; ``origins`` says where values were written.

    Changes are laid over the base with its defaults written out. So an arm that switches a section's ``type`` keeps
    the settings that both types have.
    """
    tree, arms, sweep = Tree(scenario.model_dump(mode="json"), origins), scenario.arms, scenario.sweep
    problems = [problem.located(origins) for problem in (*_axis_problems(arms, sweep), *_block_problems(scenario))]
    if problems:
        return [], problems
    base = tree.without("arms", "sweep")
    variants: list[Variant] = []
    found: dict[Problem, list[str]] = {}
    names: list[str | None] = [*arms] or [None]
    for point, arm in itertools.product(_points(sweep), names):
        changed = _at_point(_in_arm(base, tree, arm), tree, point)
        resolved, broken = check_variant(changed)
        label = _label(arm, point)
        for problem in broken:
            found.setdefault(problem, []).append(label)
        if resolved is not None:
            variants.append(Variant(arm, point, label, resolved, len(variants)))
    count = _count(arms, sweep)
    problems = [_in_variants(problem, labels, count) for problem, labels in found.items()]
    return _with_folder_names(_in_blocks(variants, scenario.blocks)), problems


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


def _count(arms: Arms, sweep: Sweep) -> int:
    return math.prod(map(len, sweep.values())) * max(1, len(arms))


def _block_problems(scenario: Scenario) -> Iterator[Problem]:
    """Blocks set the seed; nothing else may. Stopping early needs blocks enough, and something to compare."""
    blocks, width = scenario.blocks, scenario.stop_at_half_width
    if blocks > 1 and scenario.transport_sweep is not None:
        what = f"blocks is {blocks} with a transport_sweep, whose transports take turns in each of its own repeats"
        yield Problem(what, "leave blocks out, and set transport_sweep.repeats", (("blocks",),))
    if blocks > 1:
        setters: list[Path] = [("sweep", "seed")] if "seed" in scenario.sweep else []
        setters += [("arms", arm, "seed") for arm, changes in scenario.arms.items() if "seed" in changes]
        for path in setters:
            what = f"blocks is {blocks}, and `seed` is set by `{dotted(path[:-1])}`: each block has a seed of its own"
            yield Problem(what, "leave the seed out there, or set blocks to 1", (path,))
        if scenario.seed + blocks > 2**32:
            what = f"seed {scenario.seed} and {blocks} blocks go beyond the largest seed, {2**32 - 1}"
            yield Problem(what, "take a smaller seed", (("seed",),))
    runs = blocks * _count(scenario.arms, scenario.sweep)
    if runs > MAX_VARIANTS >= _count(scenario.arms, scenario.sweep):
        what = f"blocks, arms and sweep make {runs} runs, must be at most {MAX_VARIANTS}"
        yield Problem(what, f"set blocks to at most {MAX_VARIANTS * blocks // runs}", (("blocks",),))
    if width is not None and (blocks < FEWEST_BLOCKS or _count(scenario.arms, scenario.sweep) < 2):
        what = f"stop_at_half_width is {width:g} with blocks {blocks} and {_count(scenario.arms, scenario.sweep)} runs"
        fix = f"set blocks to {FEWEST_BLOCKS} or more (the most that may be made), and name two arms to compare"
        yield Problem(what, fix, (("stop_at_half_width",),))


def _points(sweep: Sweep) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*sweep.values()):
        yield dict(zip(sweep, values, strict=True))


def _in_arm(base: Tree, tree: Tree, arm: str | None) -> Tree:
    for key, value in tree.data["arms"][arm].items() if arm is not None else ():
        base = base.overlaid(tree_of_key(key, value, tree.origins.get(("arms", str(arm), key), f"arm {arm}")))
    return base


def _at_point(base: Tree, tree: Tree, point: Mapping[str, Any]) -> Tree:
    for key, value in point.items():
        base = base.overlaid(tree_of_key(key, value, tree.origins.get(("sweep", key), "sweep")))
    return base


def _axis_problems(arms: Arms, sweep: Sweep) -> Iterator[Problem]:
    for arm, changes in arms.items():
        if arm.lower() in _RESERVED_ARMS:
            what = f"an arm cannot be called `{arm}`: that folder holds the pictures"
            yield Problem(what, "give it another name", (("arms", arm),))
        for key in changes:
            yield from _fixed_key(key, ("arms", arm, key))
    for axis, values in sweep.items():
        yield from _fixed_key(axis, ("sweep", axis))
        if len({json.dumps(value, sort_keys=True) for value in values}) < len(values):
            yield Problem(f"sweep axis `{axis}` names a value twice: {values}", "name each once", (("sweep", axis),))
    yield from _conflicts(arms, sweep)
    if _count(arms, sweep) > MAX_VARIANTS:
        what = f"arms and sweep make {_count(arms, sweep)} runs, must be at most {MAX_VARIANTS}"
        yield Problem(what, "sweep fewer values", (("sweep",),))


def _conflicts(arms: Arms, sweep: Sweep) -> Iterator[Problem]:
    for arm, changes in arms.items():
        for key, axis in itertools.product(_leaves(changes), sweep):
            if _overlap(key, axis):
                what = f"`{key}` is set by arm `{arm}` and by the sweep axis `{axis}`"
                yield Problem(what, "let one of them set it", (("sweep", axis),))
    for one, other in itertools.combinations(sweep, 2):
        if _overlap(one, other):
            yield Problem(f"sweep axes `{one}` and `{other}` set the same thing", "keep one", (("sweep", other),))


def _fixed_key(key: str, path: Path) -> Iterator[Problem]:
    if key.split(".")[0] in _FIXED_KEYS:
        yield Problem(f"`{key}` cannot differ between the runs of one scenario", "leave it out here", (path,))


def _leaves(changes: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in changes.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def _overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(other + ".") or other.startswith(one + ".")


def _in_variants(problem: Problem, labels: list[str], count: int) -> Problem:
    """Say in which runs the problem is."""
    if labels == [""]:
        return problem
    if len(labels) == count > 1:
        return replace(problem, what=f"in all {count} runs: {problem.what}")
    names = ", ".join(f"`{label}`" for label in labels[:4])
    more = f" and {len(labels) - 4} more" if len(labels) > 4 else ""
    return replace(problem, what=f"in {names}{more}: {problem.what}")


def _label(arm: str | None, point: Mapping[str, Any]) -> str:
    last_parts = [key.rsplit(".", 1)[-1] for key in point]
    parts = [] if arm is None else [arm]
    for key, last in zip(point, last_parts, strict=True):
        parts.append(f"{last if last_parts.count(last) == 1 else key}={_as_name(point[key])}")
    return ",".join(parts)


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
