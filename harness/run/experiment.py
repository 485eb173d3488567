"""Runs a scenario: its blocks, the points of its sweep in each, and at the end the comparison."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from harness.compare.stats import PairedBlock, enough, judge_step
from harness.core.errors import HarnessError, Interrupted, RunStopped, UserError
from harness.results.recorder import Row, RowListener
from harness.results.writer import PICTURES, REPORT
from harness.run.arm_runner import ArmRunner
from harness.run.errors import full_gpu_as_user_error, signals_as_interrupts
from harness.run.factory import PartsFactory
from harness.run.interleaving import interleaving_of, side_by_side
from harness.run.parts import Build
from harness.run.preflight import check_before_start
from harness.run.session import Experiment
from harness.scenario import Scenario, Variant, expand
from harness.scenario.axes import FEWEST_BLOCKS


def show_results(folder: Path) -> None:
    """Draw the pictures of an experiment, write its page, and print its tables."""
    from harness.report.html.page import make_report
    from harness.report.pictures import make_pictures
    from harness.report.text import print_run_summary

    page = folder / REPORT
    make_report([folder], page)  # what cannot be read is named by the summary
    print_run_summary(folder, files=[page, *make_pictures(folder, folder / PICTURES)])


def run_scenario(
    scenario: Scenario,
    out: Path,
    quiet: bool,
    build: Build | None = None,
    show: Callable[[Path], None] = show_results,
) -> int:
    """Run every arm and point of a scenario, then print the comparison and draw its pictures.

    An arm or point that fails does not stop the others.

    Args:
        scenario: as loaded; arms and sweep are expanded here.
        out: the results folder.
        quiet: show no progress.
        build: makes the parts of one run; None takes a ``PartsFactory``.
        show: called with the experiment's folder at the end.

    Returns:
        The exit code, 0.

    Raises:
        UserError: the scenario names something that cannot be used.
        RunStopped: a run had to stop; its folder says why.
        Interrupted: Ctrl-C or SIGTERM; the folders say so.
    """
    points = list(_points(expand(scenario)))
    if scenario.transport_sweep is None:
        check_before_start(points, lambda line: None if quiet else print(line, file=sys.stderr))
    experiment = Experiment(out, scenario.name)
    with (
        signals_as_interrupts(),
        PartsFactory([group for variants in points for group in side_by_side(variants)]) as factory,
    ):
        console = Console(stderr=True)
        runner = ArmRunner(experiment, build or factory, console, quiet)
        try:
            if scenario.blocks > 1:
                _run_blocks(points, scenario, experiment, runner)
            for variants in points if scenario.blocks == 1 else ():
                if scenario.transport_sweep is not None:
                    runner.failures += _sweep_transports(variants, experiment, factory, console, quiet)
                else:
                    runner.run_point(variants, interleaving_of(variants))
        except (KeyboardInterrupt, Interrupted):
            kept = f"what was measured so far is in {experiment.folder}"
            raise Interrupted(kept if experiment.folder else "nothing had been measured yet") from None
    if experiment.folder is not None:
        try:
            show(experiment.folder)
        except UserError as error:
            runner.failures.append(("showing the results", error))
    _raise_first(runner.failures, experiment.folder)
    return 0


def _points(variants: Sequence[Variant]) -> Iterator[list[Variant]]:
    """The variants of one point of the sweep in one block side by side: those are the arms that take turns."""
    for _, group in itertools.groupby(variants, key=lambda variant: (variant.block, variant.point)):
        yield list(group)


def _run_blocks(points: Sequence[list[Variant]], scenario: Scenario, experiment: Experiment, runner: ArmRunner) -> None:
    """Run block after block, the machine's speed measured before each, until there are enough.

    A block that fails for what the user wrote ends it, since the next one would too.
    """
    blocks = [list(group) for _, group in itertools.groupby(points, key=lambda variants: variants[0].block)]
    labels = [variant.label for variants in blocks[0] for variant in variants]
    alternated = len(blocks[0]) == 1 and interleaving_of(blocks[0][0]) == "step"
    watch = BlockWatch(labels, len(blocks), scenario.stop_at_half_width, alternated)
    for block, members in enumerate(blocks):
        experiment.measure_speed()
        for variants in reversed(members) if block % 2 else members:  # so that drift hits the points of a sweep alike
            listeners = [watch.listener(block, variant.label) for variant in variants]
            runner.run_point(variants, interleaving_of(variants), listeners)
        runner.say(watch.line(block))
        if watch.is_enough or any(isinstance(error, UserError) for _, error in runner.failures):
            return


def _sweep_transports(
    variants: Sequence[Variant], experiment: Experiment, factory: PartsFactory, console: Console, quiet: bool
) -> list[tuple[str, HarnessError]]:
    """Measure weight syncs alone, for each variant; return what failed."""
    from harness.run.transport_sweep import run_transport_sweep

    failures: list[tuple[str, HarnessError]] = []
    for variant in variants:
        try:
            with full_gpu_as_user_error(variant.scenario):
                run_transport_sweep(variant, experiment, factory.session(variant.scenario), console, quiet)
        except (UserError, RunStopped) as error:
            failures.append((variant.name or variant.scenario.name, error))
    return failures


def _raise_first(failures: Sequence[tuple[str, HarnessError]], folder: Path | None) -> None:
    if not failures:
        return
    label, error = failures[0]
    if folder is None:
        raise error
    others = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    if isinstance(error, UserError):
        raise UserError(f"{label} failed{others}: {error.what}", error.where, error.fix) from error
    raise RunStopped(f"{label} stopped{others}: {error}\n  results: {folder}") from error


class BlockWatch:
    """Keeps the step times of each arm and block, and sets every arm against the first one.

    Args:
        arms: names, the baseline first.
        blocks: how many are made at most.
        stop_at: no more are made once the 95% interval of every ratio is within this of its middle; None makes all.
        alternated: whether arms take turns by step, so that step i of two arms are neighbours in time.
    """

    def __init__(self, arms: Sequence[str], blocks: int, stop_at: float | None, alternated: bool) -> None:
        self._arms, self._blocks, self._stop_at, self._alternated = list(arms), blocks, stop_at, alternated
        self._seconds: dict[tuple[int, str], dict[int, float]] = {}

    def listener(self, block: int, arm: str) -> RowListener:
        """Return what hears of each row of an arm's run in a block."""
        seconds = self._seconds.setdefault((block, arm), {})

        def keep(row: Row, train_s: float) -> None:
            left_out = row.get("warmup") or row.get("profiled")
            if row["kind"] == "step" and not left_out:
                seconds[row["step"]] = row["wall_s"]

        return keep

    def paired(self, arm: str) -> list[PairedBlock]:
        """Return the blocks in which both this arm and the first one have steps to compare."""
        numbers = sorted({block for block, _ in self._seconds})
        pairs = [
            PairedBlock.from_steps(
                self._seconds.get((block, self._arms[0]), {}), self._seconds.get((block, arm), {}), self._alternated
            )
            for block in numbers
        ]
        return [pair for pair in pairs if pair is not None]

    @property
    def is_enough(self) -> bool:
        """Whether every arm's interval is as narrow as asked for."""
        if self._stop_at is None:
            return False
        return all(enough(self.paired(arm), self._stop_at, FEWEST_BLOCKS, self._blocks) for arm in self._arms[1:])

    def line(self, block: int) -> str:
        """Say how the arms stand after a block."""
        said = [self._standing(arm) for arm in self._arms[1:]]
        return f"block {block + 1} of {self._blocks}" + (f": {'; '.join(said)}" if said else " done")

    def _standing(self, arm: str) -> str:
        pairs = self.paired(arm)
        effect = judge_step(pairs)
        if effect.ratio is None:
            return f"{arm}: no step to compare with {self._arms[0]}"
        text = f"{arm} takes {effect.ratio:.3f} times the step time of {self._arms[0]}"
        if effect.low is None or effect.high is None:
            return text
        return f"{text}, 95% interval {effect.low:.3f} to {effect.high:.3f}"
