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

from harness.fault_runs.draws import draw
from harness.fault_runs.invariants import Broken
from harness.fault_runs.running import Outcome, Wiring, run_schedule
from harness.fault_runs.schedule import Fault, FaultKind, Schedule, Unrewarded
from harness.fault_runs.search import Summary, search
from harness.fault_runs.shrinking import shrink, smallest_run

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
