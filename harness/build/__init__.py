"""From a scenario to the parts that run it.

table         the one table from a ``type:`` to what makes it
options       what the Learner is told, and what the parts may use
making        the workers, made where they run
parts         all that one run needs, in this process or simulated
actors        the same as Ray actors
workshop      builds the parts of a command's runs, with Ray where it is needed
"""

from harness.build.options import Build, StopSignal, resolve_device, threads_of, trainer_options
from harness.build.parts import Parts, build_in_process_parts, build_simulated_parts
from harness.build.table import BUILDERS, Policy
from harness.build.workshop import Workshop
from harness.planning import all_lanes, loop_plan

__all__ = [
    "BUILDERS",
    "Build",
    "Parts",
    "Policy",
    "StopSignal",
    "Workshop",
    "all_lanes",
    "build_in_process_parts",
    "build_simulated_parts",
    "loop_plan",
    "resolve_device",
    "threads_of",
    "trainer_options",
]
