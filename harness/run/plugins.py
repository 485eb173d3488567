"""The plugins that a scenario names: which they are, and whether they can be used.

A scenario that is only read, as by ``validate`` or ``list``, runs none of them: it may be someone else's.
"""

from __future__ import annotations

from harness.core.plugins import load_callable, plugin_digest
from harness.probes.load import load_profile
from harness.scenario.schema import Scenario
from harness.settings.engine import PluginEngineSettings
from harness.settings.task import JsonlTaskSettings, PluginTaskSettings


def plugin_names(scenario: Scenario) -> dict[str, str]:
    """Return the plugins by the setting that names each, as ``package.module:Name``; imports none."""
    task, sweep = scenario.task, scenario.transport_sweep
    reward = task.reward if isinstance(task, JsonlTaskSettings) else ()
    rewards = {"": reward} if isinstance(reward, str) else {f".{part.label}": part.function for part in reward}
    named = {
        "task.type": task.type,
        **{f"task.reward{label}": name for label, name in rewards.items()},
        "loss.function": scenario.loss.function,
        "advantage.function": scenario.advantage.function,
        "engine.type": scenario.engine.type,
        "transport.type": scenario.transport.type,
        **{f"transport_sweep.transports[{i}]": name for i, name in enumerate(sweep.transports if sweep else ())},
        **{f"trackers[{i}]": name for i, name in enumerate(scenario.trackers)},
        **{f"profile.own[{i}]": name for i, name in enumerate(load_profile(scenario.profile).own)},
    }
    return {key: name for key, name in named.items() if name is not None and ":" in name}


def plugin_digests(scenario: Scenario) -> dict[str, dict[str, str | None]]:
    """Return the plugins that a scenario names, each with the hash of its file; see ``Manifest``."""
    return {key: {"name": name, "sha256": plugin_digest(name)} for key, name in plugin_names(scenario).items()}


def check_plugins(scenario: Scenario) -> None:
    """Import the plugins and check them against what they should be; a loss and an advantage are tried, too.

    Raises:
        UserError: one cannot be imported or used: what is missing or different, and how it should be.
    """
    from harness.engines.make import ENGINE_PLUGIN
    from harness.learner.make import plugin_functions
    from harness.probes.reading import PROBE_PLUGIN
    from harness.results.trackers import TRACKER_PLUGIN
    from harness.tasks.make import TASK_PLUGIN
    from harness.tasks.rewards import KIND as REWARD_PLUGIN

    for key, name in plugin_names(scenario).items():
        if key.startswith("task.reward"):
            load_callable(name, REWARD_PLUGIN)
        elif key.startswith("transport"):
            from harness.transports.catalogue import transport_kind  # loads Ray

            transport_kind(name)
        elif key.startswith("trackers"):
            load_callable(name, TRACKER_PLUGIN)
        elif key.startswith("profile"):
            load_callable(name, PROBE_PLUGIN, {})
    if isinstance(scenario.task, PluginTaskSettings):
        load_callable(scenario.task.type, TASK_PLUGIN, scenario.task.options)
    if isinstance(scenario.engine, PluginEngineSettings):
        load_callable(scenario.engine.type, ENGINE_PLUGIN, scenario.engine.options)
    plugin_functions(scenario)
