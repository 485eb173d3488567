"""What a recording looks like on disk: declared here, read by ``harness.results.recordings``.

``FOLDER/recording.json`` says what was recorded. ``FOLDER/events/<process>.jsonl`` holds the events of one process: a
JSON array in each line, in the order in which they ended; what follows the last whole line is room that was not used
(zeros), or a line that a kill cut. Times are nanoseconds of the machine's monotonic clock, which its processes share.

    ["process", pid, name, monotonic_ns, unix_ns]      the first line
    ["span", lane, name, start_ns, end_ns, step, {attribute: value}]
    ["program", {package: version}, threads]           of the process that counts steps, before the first of them
    ["step", step, at_ns]                              a training step begins
    ["end of step", step, at_ns]                       where the caller says so; else the next one's begin
    ["count", step, {name: number}]                    added up over a step
    ["metrics", step, {name: number}]                  the last value of a step counts
    ["seam", trainer, place, is there]                 a place in a trainer's code that is recorded, or was not found
    ["profiled", step]                                 a profiler has part in the time of this step
    ["counters", at_ns, source, {name: number}, {name: why it is missing}]   of the machine, or of a process by its pid
    ["end", status, error, at_ns]                      of the program: completed, interrupted or failed
"""

import json
from collections.abc import Sequence
from typing import Any

SCHEMA, SCHEMA_VERSION = "harness.recording", 1
RECORDING, EVENTS = "recording.json", "events"
PROCESS, PROGRAM, SPAN, STEP, END_OF_STEP, COUNT, METRICS, SEAM, END = (
    *("process", "program", "span", "step", "end of step", "count", "metrics", "seam", "end"),
)
PROFILED, COUNTERS = "profiled", "counters"
NO_STEP = -1
MOST_NAME = 64
"""Characters of a span's, a lane's or a metric's name: longer ones are cut."""
encode = json.JSONEncoder(separators=(",", ":")).encode


def line(event: Sequence[Any]) -> bytes:
    """Return an event as a line of a file."""
    return f"{encode(event)}\n".encode()
