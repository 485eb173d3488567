"""``python -m harness validate``: check a scenario without running it."""

from __future__ import annotations

import argparse
import json

from harness.core.arguments import json_argument
from harness.core.errors import UserError
from harness.run.commands.arguments import scenario_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    scenario_arguments(parser, "?")
    parser.add_argument(
        "--check-code",
        action="store_true",
        help="also import the code that the scenario names, which runs it, and check it",
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--resolved", action="store_true", help="print every setting, defaults included")
    shown.add_argument("--memory", action="store_true", help="print what each process would hold in memory")
    shown.add_argument("--schema", action="store_true", help="print the JSON schema of scenarios, for editors")
    json_argument(shown)


def run(options: argparse.Namespace) -> int:
    """Check the scenario and print what it would run; return the exit code."""
    if options.schema:
        from harness.scenario.schema import json_schema

        print(json.dumps(json_schema(), indent=2))
        return 0
    if options.scenario is None:
        raise UserError("validate needs a SCENARIO", None, "name one that `python -m harness list` shows")
    from harness.run.data_files import data_lines
    from harness.run.needs import needs_of
    from harness.scenario.axes import changes_of, expand, identical_arms
    from harness.scenario.load import load_scenario, resolved_yaml

    scenario = load_scenario(options.scenario, options.set)
    if options.resolved:
        print(resolved_yaml(scenario), end="")
        return 0
    variants = expand(scenario)
    arms = [variant for variant in variants if not variant.block]
    if options.check_code:
        from harness.run.plugins import check_plugins

        for variant in arms:
            check_plugins(variant.scenario)
    if options.memory:
        from harness.probes.nvml import list_gpus
        from harness.run.memory.check import memory_table

        has_gpu = bool(list_gpus()[0])
        for variant in arms:
            print("\n".join([f"{variant.label}:", *memory_table(variant.scenario, has_gpu)]))
        return 0
    said = data_lines(variant.scenario for variant in variants)
    rollouts = sum(variant.scenario.num_rollouts for variant in variants)
    if options.json:
        runs = [
            {"run": each.name, "changes": changes_of(scenario, each), "rollouts": each.scenario.num_rollouts}
            for each in variants
        ]
        print(json.dumps({"scenario": scenario.name, "rollouts": rollouts, "runs": runs}, indent=2))
        return 0
    if (sweep := scenario.transport_sweep) is not None:
        from harness.run.dry_run import weight_syncs

        print(f"{scenario.name} is valid: a transport sweep, {weight_syncs(sweep)}")
    else:
        runs_of = "1 run" if len(variants) == 1 else f"{len(variants)} runs"
        print(f"{scenario.name} is valid: {runs_of}, {rollouts:,} rollouts with validation")
        for variant in variants if len(variants) > 1 else ():
            changed = ", ".join(f"{key}={value}" for key, value in changes_of(scenario, variant).items())
            print(f"  {variant.name}" + (f": {changed}" if changed else ""))
        needs = (need for each in arms for need in needs_of(each.scenario))
        lacking = dict.fromkeys(f"missing here: {need.missing}; {need.fix}" for need in needs if need.missing)
        print("".join(f"{line}\n" for line in [*identical_arms(variants), *said, *lacking]), end="")
    if not options.check_code:  # none is imported here: the scenario may be someone else's
        from harness.run.plugins import plugin_names

        names = {name: None for variant in arms for name in plugin_names(variant.scenario).values()}
        if names:
            print(f"not imported, so not checked: {', '.join(names)} (--check-code imports and checks it)")
    return 0
