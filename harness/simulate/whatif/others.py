"""What a change would do to a recorded run of another trainer: arithmetic, since its loop cannot be replayed here.

A step is the sum of its critical path: the stages of the loop's lane, and while that waits, of who works then. A stage
that takes ``f`` times as long takes that much more or less of the path. What is hidden behind others is taken to stay
hidden, so that with several lanes a large change is right as a bound only.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.compare.experiment import member_of
from harness.compare.numbers import change, number
from harness.compare.run_frame import EXPOSED
from harness.core.errors import UserError
from harness.core.terminal_text import plain
from harness.core.trace import Stage, in_order, stage_named
from harness.report.console import Output
from harness.report.document import Table
from harness.report.terminal import print_list, print_table
from harness.results import Run
from harness.results.frames import table_of
from harness.simulate.whatif.change import scale_of

FASTER = 0.9


@dataclass(frozen=True, slots=True)
class Path:
    """The critical path of a mean training step after warm-up, in seconds.

    Attributes:
        step_s: seconds of a step.
        stages_s: of it by stage; the rest is in no stage.
        lanes: how many lanes were recorded.
    """

    step_s: float
    stages_s: Mapping[str, float]
    lanes: int

    @classmethod
    def of(cls, run: Run) -> Path:
        """Read it off a recorded run.

        Raises:
            UserError: the run kept no spans.
        """
        member = member_of(table_of(run))
        figures, known = member.figures, {span.stage for span in run.spans() if not span.stage.is_wait}
        stages = {stage.value: figures.get(EXPOSED + stage.value) or 0.0 for stage in in_order(known - {Stage.STARTUP})}
        if not figures.get("step_s") or not any(stages.values()):
            raise UserError("no step of the recording has a stage", str(run.folder), "record again, with spans")
        return cls(figures["step_s"], stages, len({span.lane for span in run.spans()}))

    def scaled(self, factors: Mapping[str, float]) -> float:
        """Return the seconds of a step with some stages ``factor`` times as long."""
        return self.step_s + sum((factor - 1) * self.stages_s[name] for name, factor in factors.items())


def run(recorded: Run, options: argparse.Namespace) -> int:
    """Print what the changes would do; return the exit code.

    Raises:
        UserError: a setting is to be changed, which only a replay could answer, or a stage is not in the recording.
    """
    if options.set or options.out is not None:
        given = "--set" if options.set else "--out"
        what = f"{given} needs a replay, and the loop of another trainer's recording cannot be replayed"
        raise UserError(what, given, "change a stage: --scale update=0.5; or record the other setting as an arm")
    path = Path.of(recorded)
    factors = dict(scale_of(text, list(path.stages_s)) for text in options.scale)
    if options.json:
        print(json.dumps(figures(path, factors), indent=2))
        return 0
    told = list(sentences(path, factors))
    if options.quiet:
        print(plain(told[0]))
        return 0
    output = Output()
    print_table(output, gains(path))
    print_list(output, "", told)
    return 0


def figures(path: Path, factors: Mapping[str, float]) -> dict[str, object]:
    """Return the answer for programs."""
    after = path.scaled(factors)
    gained = {name: 1 - path.scaled({name: FASTER}) / path.step_s for name in path.stages_s}
    step_s = {"recorded": path.step_s, "after": after}
    return {"step_s": step_s, "ratio": after / path.step_s, "gain_of_10_percent_off": gained}


def gains(path: Path) -> Table:
    """Return what 10% off each stage takes off a step."""
    rows = [
        (stage.value, number(path.stages_s[stage.value]), change(path.scaled({stage.value: FASTER}) / path.step_s))
        for stage in map(stage_named, path.stages_s)
        if path.stages_s[stage.value]
    ]
    title = f"What 10% faster would give: {number(path.step_s)} s a step, by its critical path"
    return Table(title, ("stage", "seconds of a step", "step time"), tuple(rows))


def sentences(path: Path, factors: Mapping[str, float]) -> Iterator[str]:
    """Say what comes of it."""
    told = ", ".join(f"{name} x {factor:g}" for name, factor in factors.items()) or "nothing changed"
    after = path.scaled(factors)
    yield (
        f"with {told} a step would take {number(after)} s in place of {number(path.step_s)} s "
        f"({change(after / path.step_s)})"
    )
    if path.lanes > 1:
        yield "several parts were recorded: what is hidden behind others is taken to stay hidden"
