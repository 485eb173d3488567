"""Arms made of whole scenarios: ``python -m harness bench A B``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.core.errors import UserError
from harness.scenario.load import check_data, load_scenario
from harness.scenario.schema import Scenario

AGAIN = "again"
USUAL_BLOCKS = 10
"""Enough for a verdict on a stage, too."""
_OF_THE_CAMPAIGN = (
    "name", "description", "seed", "arms", "sweep", "blocks", "interleaving", "stop_at_half_width",
)  # fmt: skip


def load_side_by_side(
    names: Sequence[str], overrides: Sequence[str] = (), settings: Mapping[str, Any] | None = None, again: bool = False
) -> Scenario:
    """Load scenarios as the arms of one experiment; the first is the baseline. One alone keeps arms of its own.

    Args:
        names: names or files; the same one twice compares it with itself.
        overrides: ``key=value``, laid over each of them.
        settings: of the experiment, such as ``blocks``; a first scenario without blocks makes ``USUAL_BLOCKS``.
        again: add the first one once more as the arm ``again``: what it differs by is the noise floor.

    Raises:
        UserError: one cannot be loaded, or has arms or a sweep of its own beside others.
    """
    scenarios = [load_scenario(name, overrides) for name in names]
    base = scenarios[0]
    data = base.model_dump(mode="json") | dict(settings or {})
    if data["blocks"] == 1 and "blocks" not in (settings or {}):
        data["blocks"] = USUAL_BLOCKS
    if len(scenarios) > 1:
        _refuse_variants(scenarios)
        arms = _arm_names([scenario.name for scenario in scenarios])
        data["name"] = "-vs-".join(dict.fromkeys(scenario.name for scenario in scenarios))[:100]
        data["description"] = f"{' against '.join(arms)}."
        data["arms"] = {arm: _changes(base, scenario) for arm, scenario in zip(arms, scenarios, strict=True)}
    if again and AGAIN in data["arms"]:
        what = f"{data['name']} has an arm called {AGAIN!r} already"
        raise UserError(what, f"scenario {data['name']}", "leave --again out")
    if again:
        first = next(iter(data["arms"]), base.name)
        data["arms"] = (data["arms"] or {first: {}}) | {AGAIN: data["arms"].get(first, {})}
    return check_data(data, " ".join(("bench", *names)))


def _refuse_variants(scenarios: Sequence[Scenario]) -> None:
    for scenario in scenarios:
        kind = "arms" if scenario.arms else "sweep" if scenario.sweep else None
        if kind is not None:
            raise UserError(
                f"{scenario.name} has {kind} of its own, and cannot be one arm among others",
                f"scenario {scenario.name}",
                f"bench it alone (its arms are compared), or name scenarios without {kind}",
            )


def _arm_names(names: Sequence[str]) -> list[str]:
    """Number the names that occur more than once: ``quickstart``, ``quickstart-2``."""
    return [
        name if names[:index].count(name) == 0 else f"{name}-{names[:index].count(name) + 1}"
        for index, name in enumerate(names)
    ]


def _changes(base: Scenario, other: Scenario) -> dict[str, Any]:
    """Return what an arm must set so that it is ``other``, laid over ``base``."""
    before, after = base.model_dump(mode="json"), other.model_dump(mode="json")
    changed = {key: value for key, value in after.items() if key not in _OF_THE_CAMPAIGN and value != before[key]}
    if "faults" in changed:  # its delays are laid over the base's one by one
        changed["faults"]["delays"] = dict.fromkeys(base.faults.delays, 0.0) | other.faults.delays
    return changed
