"""Fault simulation: the real loop on the virtual clock, with parts that die, dawdle and lie, as a seed says.

draws      seed -> Schedule: the plan, how long everything takes, and which faults happen
faulty     simulated parts that die, dawdle and lie as a schedule says
witness    stands between the loop and its parts and writes down what passes
books      what was written down, checked after each event
listening  the observer: is what the loop tells what was seen from outside?
idling     whether anyone waits for what is there
invariants what must always hold, by name
endings    whether a run ended as it must, given the faults that happened
running    one schedule, from start to outcome
shrinking  the smallest schedule that breaks the same invariant
search     thousands of schedules on several processes
"""

from tests.faults.draws import draw
from tests.faults.invariants import Broken
from tests.faults.running import Outcome, Wiring, run_schedule
from tests.faults.schedule import Fault, FaultKind, Schedule, Unrewarded
from tests.faults.search import Summary, search
from tests.faults.shrinking import shrink, smallest_run

__all__ = [
    "Broken",
    "Fault",
    "FaultKind",
    "Outcome",
    "Schedule",
    "Summary",
    "Unrewarded",
    "Wiring",
    "draw",
    "run_schedule",
    "search",
    "shrink",
    "smallest_run",
]
