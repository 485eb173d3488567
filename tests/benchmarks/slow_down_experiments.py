"""Experiments with an injected slow-down, run for real: is the delayed stage named, and is any other one?

``python tests/benchmarks/slow_down_experiments.py --experiments 30 --json slow_down.json`` runs that many experiments
of the scenario ``slow_stage`` one after the other (about 20 s each on two quiet cores), each with seeds of its own. The
delay goes into ``update`` and ``generate`` in turns. What comes out is reported, whatever it says.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from harness.compare import Judgement, gather, judgements
from harness.compare.run_frame import TIMING
from harness.compare.stats.intervals import wilson_interval
from harness.compare.stats.verdicts import Effect, Verdict
from harness.run.experiment import run_scenario
from harness.scenario.load import check_data, load_scenario
from harness.scenario.schema import Scenario

STAGES = ("update", "generate")
DELAY_S = 0.01
SEEDS_APART = 1000


@dataclass(frozen=True)
class Outcome:
    """What one experiment found.

    Attributes:
        stage: that was delayed, by ``delay_s``.
        truth: ratio that the delay makes of the stage's time in the plain arm, the median of its blocks.
        step, stages: the effects.
    """

    seed: int
    stage: str
    delay_s: float
    truth: float
    step: Effect
    stages: tuple[Effect, ...]

    @property
    def own(self) -> Effect:
        """The delayed stage's effect."""
        return next(effect for effect in self.stages if effect.name == self.stage)

    @property
    def is_named(self) -> bool:
        """Whether the delayed stage is called different."""
        return self.own.verdict is Verdict.DIFFERENT

    @property
    def is_covered(self) -> bool:
        """Whether the stage's interval holds the truth."""
        return self.own.low is not None and self.own.high is not None and self.own.low <= self.truth <= self.own.high

    @property
    def false_calls(self) -> list[str]:
        """Other stages that are called different."""
        others = [effect for effect in self.stages if effect.name != self.stage]
        return [effect.name for effect in others if effect.verdict is Verdict.DIFFERENT]


def scenario_with(seed: int, stage: str, delay_s: float, blocks: int) -> Scenario:
    """Return the experiment's scenario."""
    data = load_scenario("slow_stage", [f"seed={seed}", f"blocks={blocks}"]).model_dump(mode="json")
    data["arms"] = {"plain": {}, "delayed": {"faults.delays": {stage: delay_s}}}
    return check_data(data, "slow_down_experiments.py")


def run_experiment(seed: int, stage: str, delay_s: float, blocks: int) -> Outcome:
    """Run one experiment in a folder that is thrown away, and judge it."""
    with tempfile.TemporaryDirectory(prefix="slow-down-") as folder:
        run_scenario(scenario_with(seed, stage, delay_s, blocks), Path(folder), quiet=True, show=lambda path: None)
        (experiment,), _ = gather([Path(folder)])
        (judged,) = judgements(experiment)
        plain_s = experiment.values("plain", TIMING + stage)
    return outcome_of(judged, seed, stage, delay_s, median(plain_s))


def outcome_of(judged: Judgement, seed: int, stage: str, delay_s: float, plain_s: float) -> Outcome:
    """Set an experiment's effects beside what was injected."""
    return Outcome(seed, stage, delay_s, 1 + delay_s / plain_s, judged.step, judged.effects[1:])


def main() -> None:
    """Run the experiments, and report after each of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=30)
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--delay", type=float, default=DELAY_S, help="seconds added to each span of the stage")
    parser.add_argument("--json", type=Path, help="write every experiment's effects there")
    options = parser.parse_args()
    console, outcomes = Console(), list[Outcome]()
    for number in range(options.experiments):
        outcome = run_experiment(number * SEEDS_APART, STAGES[number % 2], options.delay, options.blocks)
        outcomes.append(outcome)
        others = f", false calls: {', '.join(outcome.false_calls)}" if outcome.false_calls else ""
        own = outcome.own
        console.print(
            f"{number + 1} of {options.experiments}: {outcome.stage} {own.verdict.value} "
            f"({own.ratio:.3f}, truth {outcome.truth:.3f}){others}",
            highlight=False,
        )
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(item) for item in outcomes], indent=1) + "\n")
    console.print(summary(outcomes))


def summary(outcomes: list[Outcome]) -> Table:
    """Return the rates with their 95% intervals (Wilson)."""
    table = Table("what", "of", "rate", "95% interval", title="Injected slow-downs")
    others = sum(len(outcome.stages) - 1 for outcome in outcomes)
    counts = {
        "delayed stage named": (sum(outcome.is_named for outcome in outcomes), len(outcomes)),
        "its interval holds the truth": (sum(outcome.is_covered for outcome in outcomes), len(outcomes)),
        "step time called different": (
            sum(outcome.step.verdict is Verdict.DIFFERENT for outcome in outcomes),
            len(outcomes),
        ),
        "experiments with a false call": (sum(bool(outcome.false_calls) for outcome in outcomes), len(outcomes)),
        "other stages called different": (sum(len(outcome.false_calls) for outcome in outcomes), others),
    }
    for what, (hits, of) in counts.items():
        low, high = wilson_interval(hits, of)
        table.add_row(what, f"{hits} of {of}", f"{hits / of:.1%}", f"{low:.1%} to {high:.1%}")
    return table


if __name__ == "__main__":
    main()
