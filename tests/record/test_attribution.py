"""Each stage gets the time that the program's own clock read around it, in threads and in a child process too."""

from __future__ import annotations

import json
import subprocess
import sys

from harness.record.format import EVENTS
from harness.results import load_run
from harness.results.recordings import NANOSECONDS

PROGRAM = """
import json, subprocess, sys, threading, time
from harness import record

readings = []

def stage(lane, name, seconds):
    "Sleep in a stage; keep the clock outside of the span and within it."
    before = time.monotonic_ns()
    with record.span(name):
        begin = time.monotonic_ns()
        time.sleep(seconds)
        end = time.monotonic_ns()
    readings.append([lane, name, before, begin, end, time.monotonic_ns()])

def thread(lane, name, seconds):
    record.lane(lane)
    stage(lane, name, seconds)

if __name__ == "__main__":
    if sys.argv[2:] == ["child"]:
        thread("scorer0", "score", 0.011)
        print(json.dumps(readings))
        sys.exit()
    with record.run(sys.argv[1]):
        for step in range(3):
            record.step(step)
            orders = [("generator%d" % number, "generate", 0.02 + number / 100) for number in (0, 1)]
            threads = [threading.Thread(target=thread, args=order) for order in orders]
            for each in threads: each.start()
            child = subprocess.run([sys.executable, *sys.argv, "child"], capture_output=True, check=True)
            readings += json.loads(child.stdout)
            for each in threads: each.join()
            for place, name in enumerate(("prepare_batch", "old_logprobs", "reference_logprobs", "update", "my stage")):
                stage("learner", name, 0.001 * (1 + place))
    print(json.dumps(readings))
"""


def test_each_stage_gets_what_the_programs_own_clock_read_around_it(tmp_path):
    """Seven stages, two threads and a child a step: a span lies between the readings outside and inside of it."""
    folder, program = tmp_path / "run", tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, program, folder], capture_output=True, text=True, check=True)
    readings = json.loads(done.stdout)
    run = load_run(folder)
    origin_ns = min(json.loads(file.read_text().splitlines()[0])[3] for file in (folder / EVENTS).iterdir())
    gaps_ns = list[int]()
    for lane, name, before, begin, end, after in readings:
        (span,) = (
            span
            for span in run.spans()
            if (span.lane.partition("-")[0], span.stage.value) == (lane, name)  # the second child's is scorer0-2
            and before - origin_ns <= span.start_ns <= after - origin_ns
        )
        start_ns, end_ns = span.start_ns + origin_ns, span.end_ns + origin_ns
        assert before <= start_ns <= begin < end <= end_ns <= after
        gaps_ns += [begin - start_ns, start_ns - before, end_ns - end, after - end_ns]
    print(f"largest distance between a span and the program's clock: {max(gaps_ns) / 1e6:.3f} ms")
    assert len(readings) == 3 * 8
    for row in run.steps:
        stages = {name: seconds for name, seconds in row.lanes["learner"].items() if name != "wait_for_batch"}
        own = [reading for reading in readings if reading[0] == "learner"][5 * row.step : 5 * row.step + 5]
        assert [name for _, name, *_ in own] == [name for name in stages if name != "wait_for_batch"]  # of the threads
        for _, name, before, begin, end, after in own:
            assert (end - begin) / NANOSECONDS <= stages[name] <= (after - before) / NANOSECONDS
