"""Experiments on simulated noise whose truth is known, judged as ``harness.compare`` judges recorded ones.

The noise makes step times; blocks are means of ten of them, as in a run. From the blocks' log-ratios on, everything is
the code that judges real experiments: estimates, correction, verdicts, the side of a gate's limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, log1p

import numpy as np

from harness.compare.experiment import Member
from harness.compare.judging import block_seconds
from harness.compare.stats.estimates import Estimate, of_blocks, of_occasions
from harness.compare.stats.intervals import Numbers, t_quantile
from harness.compare.stats.verdicts import STAGE_THRESHOLD, STEP, STEP_THRESHOLD, Comparison, Effect, judge
from tests.stand_ins.members import made_run
from tests.stand_ins.noise import NoiseModel

STEPS = 10
SHARES = {
    "generate": 0.45,
    "update": 0.36,
    "old_logprobs": 0.1,
    "weight_load": 0.04,
    "score": 0.03,
    "prepare_batch": 0.02,
}
"""Stages of a simulated step, as shares of it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of noise.

    Attributes:
        in_turns: whether the arms take turns by step; else one after the other, mirrored from block to block.
    """

    noise: NoiseModel
    in_turns: bool = False

    def log_times(self, generator: np.random.Generator, trials: int, blocks: int, arms: int = 2) -> Numbers:
        """Return what machine and launch do to each step, without its own noise: [trials, blocks, arms, steps]."""
        make = self.noise.alternated if self.in_turns else self.noise.launched
        return make(generator, trials, blocks, STEPS, arms)


def judge_step(log_ratios: Sequence[float] | Numbers, threshold: float = STEP_THRESHOLD, name: str = STEP) -> Effect:
    """Judge one time of one arm by itself.

    Args:
        log_ratios: one for each block, in the order in which they ran.

    Raises:
        UserError: the threshold is not a number above 0.
    """
    (effect,), _ = judge([Comparison(name, of_blocks(log_ratios), threshold)])
    return effect


def log_ratio(before: Mapping[int, float], after: Mapping[int, float], alternated: bool) -> float | None:
    """Return the log of the arm's mean step time over the baseline's in one block; None where no step is left.

    Args:
        before, after: seconds by step number, of the baseline and of the arm.
    """

    def member(seconds: Mapping[int, float]) -> Member:
        return made_run(steps=len(seconds), wall_s=[*seconds.values()], columns={"step": [*seconds]})

    block = block_seconds(member(before), member(after), alternated)
    return None if block is None else log(block[1][STEP] / block[0][STEP])


def _only(**some: float) -> NoiseModel:
    """Return noise of one kind, and a little of each step's own."""
    calm = {"wander_sd": 0.0, "drift_most": 0.0, "burst_every": float("inf"), "launch_sd": 0.0, "step_sd": 0.03}
    return NoiseModel(**calm | some)


KINDS = {
    "launches, sd 3%": Kind(_only(launch_sd=0.03)),
    "launches, t with 2 df": Kind(_only(launch_sd=0.02, launch_tails=2)),
    "AR(1) 0.3 from step to step": Kind(_only(wander_sd=0.1, wander_memory=0.3)),
    "AR(1) 0.8 from step to step": Kind(_only(wander_sd=0.1, wander_memory=0.8)),
    "AR(1) 0.95 from step to step": Kind(_only(wander_sd=0.1, wander_memory=0.95)),
    "the same, turns by step": Kind(_only(wander_sd=0.1, wander_memory=0.95), in_turns=True),
    "AR(1) 0.25 from block to block": Kind(_only(between_sd=0.03, between_memory=0.25, step_sd=0.005)),
    "AR(1) 0.5 from block to block": Kind(_only(between_sd=0.03, between_memory=0.5, step_sd=0.005)),
    "bursts of 6 steps, up to 4 times": Kind(_only(burst_every=60.0, burst_steps=6.0, burst_most=3.0)),
    "drift by up to 20%": Kind(_only(drift_most=0.2)),
}


def step_log_ratios(kind: Kind, generator: np.random.Generator, trials: int, blocks: int) -> Numbers:
    """Return the log-ratios of two like arms, shape [trials, blocks]."""
    log_times = kind.noise.with_own_noise(generator, kind.log_times(generator, trials, blocks))
    means = np.log(np.exp(log_times).mean(axis=-1))
    return np.asarray(means[:, :, 1] - means[:, :, 0])


def staged_log_ratios(kind: Kind, generator: np.random.Generator, trials: int, blocks: int, arms: int) -> Numbers:
    """Return the log-ratios of the step and of six stages of like arms, shape [trials, arms - 1, 7, blocks].

    All stages share the weather and the launch; each has its own noise. The step is their sum.
    """
    log_times = kind.log_times(generator, trials, blocks, arms)
    stages = [
        share * np.exp(kind.noise.with_own_noise(generator, log_times)).mean(axis=-1) for share in SHARES.values()
    ]
    seconds = np.log(np.stack([sum(stages), *stages]))  # [1 + stages, trials, blocks, arms]
    return np.asarray(np.moveaxis(seconds[..., 1:] - seconds[..., :1], (0, 1, 2, 3), (2, 0, 3, 1)))


def judge_experiment(log_ratios: Numbers) -> tuple[list[Effect], list[Effect]]:
    """Judge one experiment of ``staged_log_ratios``, shape [arms - 1, 7, blocks], as one family.

    Returns:
        the arms' steps, and every stage, arm by arm.
    """
    steps = [Comparison(STEP, of_blocks(arm[0]), STEP_THRESHOLD) for arm in log_ratios]
    stages = [
        Comparison(name, of_blocks(values), STAGE_THRESHOLD)
        for arm in log_ratios
        for name, values in zip(SHARES, arm[1:], strict=True)
    ]
    return judge(steps, stages)


def judge_occasions(
    generator: np.random.Generator, trials: int, occasions: int, spread: float, change: float, blocks: int = 10
) -> list[Effect]:
    """Judge a new occasion against a baseline of so many, once for each trial.

    Args:
        spread: standard deviation between occasions, in log units; blocks within one spread by 3%.
        change: the true relative change.
    """
    levels = generator.normal(0, spread, (trials, occasions + 1, 1))
    values = levels + generator.normal(0, 0.03, (trials, occasions + 1, blocks))
    values[:, -1] += log1p(change)
    return [
        judge([Comparison(STEP, of_occasions(list(trial[:-1]), [trial[-1]]), STEP_THRESHOLD)])[0][0] for trial in values
    ]


def effect_seen(estimates: Sequence[Estimate], spread: float, threshold: float, level: float) -> float:
    """Return the true relative change that is called different in 80% of experiments.

    A change moves the estimate and not its error, so each experiment has one from which on it is called different; it
    is their 80% quantile.

    Args:
        estimates: of experiments without any change whose log-ratios spread by 1.
        spread: standard deviation of the log-ratios.
        level: at which p is judged.
    """
    needed = [
        max(t_quantile(1 - level / 2, item.degrees) * (item.error or 0.0) * spread, log1p(threshold))
        - item.point * spread
        for item in estimates
    ]
    return float(np.expm1(np.quantile(needed, 0.8)))


def shifted(log_ratios: Numbers, change: float) -> Numbers:
    """Return the log-ratios of an arm that truly is so much slower."""
    return log_ratios + log(1 + change)
