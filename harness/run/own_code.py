"""The user's own code that a scenario names: which it is, and whether it can be used.

A scenario that is only read, as by ``validate`` or ``list``, runs none of it: it may be someone else's.
"""

from __future__ import annotations

from harness.core.own_code import import_function, import_part, module_hash
from harness.probes.load import load_profile
from harness.scenario.schema import Scenario
from harness.settings.engine import PluginEngineSettings
from harness.settings.task import JsonlTaskSettings, PluginTaskSettings


def own_names(scenario: Scenario) -> dict[str, str]:
    """Return the user's own code by the setting that names it, as ``package.module:name``; imports none of it."""
    sweep = scenario.transport_sweep
    named = {
        "task.type": scenario.task.type,
        **_rewards_of(scenario),
        "loss.function": scenario.loss.function,
        "advantage.function": scenario.advantage.function,
        "engine.type": scenario.engine.type,
        "transport.type": scenario.transport.type,
        **{
            f"transport_sweep.transports[{place}]": name for place, name in enumerate(sweep.transports if sweep else ())
        },
        **{f"trackers[{place}]": name for place, name in enumerate(scenario.trackers)},
        **{f"profile.own[{place}]": name for place, name in enumerate(load_profile(scenario.profile).own)},
    }
    return {key: name for key, name in named.items() if name is not None and ":" in name}


def hashes_of(scenario: Scenario) -> dict[str, dict[str, str | None]]:
    """Return the user's own code that a scenario names, with the hash of its file; see ``Manifest``."""
    return {key: {"name": name, "sha256": module_hash(name)} for key, name in own_names(scenario).items()}


def check_own_code(scenario: Scenario) -> None:
    """Import the user's own code and check it against what it should be; a loss and an advantage are tried, too.

    Raises:
        UserError: something cannot be imported or used: what is missing or different, and how it should be.
    """
    from harness.probes.reading import OWN_PROBE
    from harness.results.trackers import OWN_TRACKER
    from harness.run.builders import OWN_ENGINE, OWN_TASK, own_functions
    from harness.tasks.rewards import KIND as OWN_REWARD

    for key, name in own_names(scenario).items():
        if key.startswith("task.reward"):
            import_function(name, OWN_REWARD)
        elif key.startswith("transport"):
            from harness.transports.catalogue import transport_kind  # loads Ray

            transport_kind(name)
        elif key.startswith("trackers"):
            import_part(name, OWN_TRACKER, {})
        elif key.startswith("profile"):
            import_part(name, OWN_PROBE, {})
    if isinstance(scenario.task, PluginTaskSettings):
        import_part(scenario.task.type, OWN_TASK, scenario.task.options)
    if isinstance(scenario.engine, PluginEngineSettings):
        import_part(scenario.engine.type, OWN_ENGINE, scenario.engine.options)
    own_functions(scenario)


def _rewards_of(scenario: Scenario) -> dict[str, str]:
    """Return the user's own reward functions: ``task.reward``, or ``task.reward.<name>`` for each of several."""
    task = scenario.task
    if not isinstance(task, JsonlTaskSettings):
        return {}
    if isinstance(task.reward, str):
        return {"task.reward": task.reward}
    return {f"task.reward.{part.label}": part.function for part in task.reward}
