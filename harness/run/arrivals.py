"""The arrivals that a run repeats: those of another run's folder, once that is found to be such a run."""

from __future__ import annotations

from pathlib import Path

from harness.core.errors import UserError
from harness.loop.arrivals import DONE, Arrival, Arrivals, AsItComes, Repeated
from harness.results.reader import load_run
from harness.results.rows import ARRIVALS, ArrivalRow
from harness.results.writer import RunFolder
from harness.run.resume import check_same
from harness.scenario.schema import Scenario


def arrivals_of(scenario: Scenario, folder: RunFolder) -> Arrivals:
    """Return what decides on the order of a run's arrivals, and writes it where that is asked for.

    Raises:
        UserError: see ``recorded_arrivals``.
    """
    settings = scenario.arrivals

    def write(arrival: Arrival) -> None:
        if settings.record:
            folder.append(ArrivalRow(*arrival))

    if settings.repeat is None:
        return AsItComes(write)
    arrivals = recorded_arrivals(scenario)
    folder.log(f"repeats the {len(arrivals)} arrivals of {Path(settings.repeat).name}")
    if arrivals[-1].what != DONE:
        folder.log(f"the last of them is {arrivals[-1]}; from there on things come as they come")
    return Repeated(arrivals, write)


def recorded_arrivals(scenario: Scenario) -> tuple[Arrival, ...]:
    """Return the arrivals of the run that a scenario repeats; none where it repeats none.

    Raises:
        UserError: that run is not over, wrote none, went by another scenario (with the keys), went on from a
            checkpoint, or had parts that died: these come at no moment that could be repeated.
    """
    if scenario.arrivals.repeat is None:
        return ()
    run = load_run(folder := Path(scenario.arrivals.repeat))
    if run.status == "running":
        raise UserError("the run that is to be repeated is not over", str(folder), "wait for its end, or stop it")
    was = check_same(run.settings, scenario, folder)
    if "checkpoint.every" in was:
        what = f"checkpoint.every was {was['checkpoint.every']} in the run that is to be repeated: saves are events too"
        raise UserError(what, str(folder), "set checkpoint.every to that")
    if scenario.steps != run.settings["steps"]:
        what = f"the run that is to be repeated has {run.settings['steps']} training steps, this one {scenario.steps}"
        raise UserError(what, str(folder), f"set steps to {run.settings['steps']}")
    if run.manifest.segments or run.replaced:
        what = f"parts of it died and were replaced: {', '.join(run.replaced)}" if run.replaced else "it was resumed"
        raise UserError(f"the run cannot be repeated: {what}", str(folder), "repeat one that ran through")
    arrivals = run.arrivals()
    if not arrivals:
        raise UserError(f"the run has no {ARRIVALS}", str(folder), "record it with arrivals.record set to true")
    return arrivals
