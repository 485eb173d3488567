"""From what was typed to the scenario that is simulated: models by size, counts of parts, a GPU for each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.core.errors import UserError
from harness.models.config import PRESETS, PUBLISHED
from harness.scenario import Scenario, Variant, expand, load_scenario
from harness.simulate.machine import MachineProfile

ALIASES = {"generators": "placement.generator.count", "lag": "max_lag", "transport": "transport.type"}
"""Short names of what is often asked for."""
SIZES = {name.rsplit("-", 1)[1].lower(): name for name in PUBLISHED}
"""``7b`` and so on -> name on the hub."""
FEW_PROMPTS = 64
ON_GPUS = ("placement.device=cuda", "placement.generator.gpus=1", "placement.learner.gpus=1")


def load_for(
    scenario: str | Path,
    machine: MachineProfile,
    changes: Sequence[str] = (),
    model: str | None = None,
    generators: int | None = None,
) -> tuple[Scenario, tuple[str, ...]]:
    """Load a scenario with all that was asked for laid over it.

    On a machine with GPUs, a scenario that leaves the device open, or takes the CPU by default, has each part on a GPU
    of its own, unless the changes say otherwise.

    Returns:
        the scenario, and what was set that nobody typed.

    Raises:
        UserError: as ``load_scenario``; or there is no model of that name.
    """
    typed = [*model_changes(model), *([] if generators is None else [f"placement.generator.count={generators}"])]
    typed += changes
    if not machine.device.gpus:
        return load_scenario(scenario, typed), ()
    try:
        loaded = load_scenario(scenario, typed)
    except UserError:  # such as NCCL without a GPU
        return load_scenario(scenario, [*ON_GPUS, *typed]), ON_GPUS
    if loaded.placement.device == "cuda":
        return loaded, ()
    added = ON_GPUS if loaded.uses_ray else ON_GPUS[:1]
    return load_scenario(scenario, [*added, *typed]), added


def model_changes(model: str | None) -> list[str]:
    """Return the changes that make a scenario train this model: a preset's name, or a public size such as ``7b``.

    Raises:
        UserError: there is no such model.
    """
    return [f"{key}={value}" for key, value in model_keys(model).items()] if model is not None else []


def model_keys(model: str) -> dict[str, str]:
    """Return the same by dotted key, with values as YAML has them.

    Raises:
        UserError: there is no such model.
    """
    if model in PRESETS:
        return {"model.type": "preset", "model.preset": model, "model.warm_start": "false"}
    name = SIZES.get(model.lower(), model)
    if name in PUBLISHED:
        return {"model.type": "folder", "model.path": name}
    known = ", ".join([*PRESETS, *SIZES])
    raise UserError(f"there is no model {model!r} to simulate", "--model", f"take one of {known}; or set model.path")


def variants_of(scenario: Scenario, arm: str | None) -> list[Variant]:
    """Return the runs of a scenario, or those of one of its arms.

    Raises:
        UserError: there is no such arm; or the scenario trains nothing.
    """
    if scenario.transport_sweep is not None:
        what = f"{scenario.name} measures weight syncs alone, and there is no training to simulate"
        raise UserError(what, "transport_sweep", "take a scenario that trains")
    variants = [variant for variant in expand(scenario) if arm is None or variant.arm == arm]
    if not variants:
        arms = ", ".join(scenario.arms) or "none"
        raise UserError(f"{scenario.name} has no arm called {arm!r}", "--arm", f"it has {arms}")
    return variants


def only_variant(scenario: Scenario, arm: str | None) -> Scenario:
    """Return the one run that a sweep starts from.

    Raises:
        UserError: there are several.
    """
    single = scenario.model_copy(update={"blocks": 1, "stop_at_half_width": None})
    variants = variants_of(single, arm)
    if len(variants) > 1:
        what = f"{scenario.name} has {len(variants)} runs, and a sweep starts from one"
        fix = f"name one with --arm: {', '.join(scenario.arms)}" if scenario.arms else "--set sweep={}"
        if arm is not None or scenario.sweep:
            fix = "leave its own sweep out: --set sweep={}"
        raise UserError(what, "arms and sweep of the scenario", fix)
    return variants[0].scenario


def steady(scenario: Scenario, steps: int) -> dict[str, Any]:
    """Return the settings of a run that is long enough to tell its steady state, and no longer.

    Step time is a mean over steps, and those with an evaluation are left out of it: so the point of a sweep makes fewer
    steps, validates its first and last policy on a few prompts only, and saves none.
    """
    fewer = min(scenario.steps, steps)
    settings = scenario.model_dump(mode="json") | {"steps": fewer, "save_policy": False}
    few = min(scenario.evaluation.prompts, FEW_PROMPTS)
    return settings | {"evaluation": {"every": fewer, "prompts": few, "examples": 0}}


def facts_of(machine: MachineProfile) -> dict[str, Any]:
    """Return what a manifest says of the machine: that of the profile, not the one that simulates."""
    device = machine.device
    cores = machine.contention.cores if machine.contention else None
    memory = device.memory_gib
    gib = int(memory) if memory is not None and memory == int(memory) else memory
    gpu: Mapping[str, Any] = {"name": device.name, "memory_gib": gib}
    facts: dict[str, Any] = {
        "cpu": None if device.gpus else device.name,
        "cores": cores,
        "memory_gib": None if device.gpus else gib,
        "gpus": [dict(gpu) for _ in range(device.gpus)],
        "fingerprint": device.fingerprint or f"profile {machine.name}",
        "origin": machine.origin,
    }
    return facts | {"missing": {}}
