"""The order in which an asynchronous run's rollouts arrive: written down, or repeated; with the rules that bind it."""

from __future__ import annotations

from harness.scenario.problems import Problem, broken
from harness.scenario.schema import Scenario

_RECORD, _REPEAT = "arrivals.record", "arrivals.repeat"


def arrivals_are_events_of_the_loop(scenario: Scenario) -> Problem | None:
    """There is a loop, and all that depends on time is decided in it."""
    key = scenario.arrivals.used
    if key is None:
        return None
    if scenario.transport_sweep is not None:
        what = f"{key} is set with a transport_sweep, in which nothing arrives"
        return broken(what, f"leave {key} out", key, "transport_sweep")
    engine, model = scenario.engine.type, scenario.model.type
    if scenario.lag_control == "in_flight" and (engine, model) != ("native", "preset"):
        what = (
            f"{key} is set with lag_control in_flight, engine.type {engine} and model.type {model}: of all engines the "
        )
        what += "one of presets alone can be told between which two tokens it swaps weights"
        fix = f"leave {key} out, or set lag_control to wait or drop, or engine.type to native and model.type to preset"
        return broken(what, fix, key, "lag_control", "engine.type")
    return None


def one_run_is_repeated(scenario: Scenario) -> Problem | None:
    """Only a single run can be repeated."""
    if scenario.arrivals.repeat is None:
        return None
    for key, several in (("arms", scenario.arms), ("sweep", scenario.sweep), ("blocks", scenario.blocks > 1)):
        if several:
            what = f"{_REPEAT} names one run, and {key} make several"
            return broken(what, f"leave {key} out, or name a run of one of them and its settings", _REPEAT, key)
    return None


ARRIVAL_RULES = (arrivals_are_events_of_the_loop, one_run_is_repeated)
