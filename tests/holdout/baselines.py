"""Four ways to predict a step without simulating it: what a simulator has to beat.

Each takes what the simulator's fit sees, and no held-out run. ``summary.BASELINES`` says in a line what each does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import fmean

from harness.core.trace import Stage
from harness.models.config import PRESETS
from harness.results import Run, ShardRow
from harness.run.memory.shape import shape_for
from harness.scenario.schema import Scenario
from harness.simulate.features import FLOAT32_BYTES, Group, generate_features, pass_features, update_features
from harness.simulate.forecast import closed_form
from harness.simulate.machine import MachineProfile
from harness.simulate.metrics import costs_of, stage_times, step_time, table_of_rows

PER_TOKEN = (Stage.GENERATE.value, Stage.SCORE.value, Stage.PREPARE_BATCH.value)
PER_TOKEN_AND_PASS = (Stage.UPDATE.value,)
OPTIMIZER_COPIES = 7
"""Times that a step of Adam goes over the weights: reads them, gradients and two moments, writes all but gradients."""
SYNC_COPIES = 3
"""Times that a weight sync goes over the weights: publish, transfer, load."""
WARM_BYTES = 10_000_000
"""A copy of fewer bytes stays in a cache, and tells nothing of memory."""
PROMPT_TOKENS = 12
"""Where no fitted run has told its prompts' lengths."""
BACKWARD = 3.0
"""A pass with gradients over one without: the way back takes twice the products of the way there."""


@dataclass(frozen=True)
class FittedRun:
    """What the baselines take from a fitted run.

    Attributes:
        preset: of the model; None for another model.
        prompts: mean tokens of a prompt.
        lengths: of all responses that were sampled to train on, sorted.
        tokens: of the responses of a step.
        update_gflop_s: 10^9 operations a second of its updates; None where the model's shape is not known.
    """

    run: Run
    arm: str
    preset: str | None
    step_s: float
    stages_s: Mapping[str, float]
    prompts: float
    lengths: tuple[int, ...]
    update_gflop_s: float | None

    @property
    def tokens(self) -> float:
        """Response tokens of a step."""
        return sum(self.lengths) / max(1, len(self.run.steps))

    @property
    def passes(self) -> int:
        """Passes over a rollout batch."""
        return self.run.setting("epochs_per_batch") or 1


def fitted_run(run: Run) -> FittedRun:
    """Read what the baselines take from a run.

    Raises:
        UserError: a file is damaged.
    """
    shards = [row for row in run.groups() if isinstance(row, ShardRow) and row.purpose == "train"]
    prompts = [tokens for shard in shards for tokens in shard.prompt_tokens if tokens]
    preset, stages = run.setting("model.preset"), stage_times(table_of_rows(run.steps))
    return FittedRun(
        run=run,
        arm=run.manifest.arm or "",
        preset=preset if isinstance(preset, str) else None,
        step_s=step_time(table_of_rows(run.steps)),
        stages_s=stages,
        prompts=fmean(prompts) if prompts else PROMPT_TOKENS,
        lengths=tuple(sorted(length for shard in shards for group in shard.lengths for length in group)),
        update_gflop_s=_update_rate(run, shards, stages.get(Stage.UPDATE.value, 0.0)),
    )


def expected_groups(scenario: Scenario, fitted: Sequence[FittedRun]) -> list[Group]:
    """Return a rollout batch with lengths as they are to be expected.

    Pinned lengths are spread evenly from the shortest to the longest. Others are the quantiles of what was sampled in
    those fitted runs that let the policy end its responses: of this model, or where there is none of any.
    """
    free = [item for item in fitted if item.run.setting("sampling.pinned_lengths") is None]
    preset = getattr(scenario.model, "preset", None)
    alike = [item for item in free if item.preset == preset] or free
    pinned, sampled = scenario.sampling.pinned_lengths, [length for item in alike for length in item.lengths]
    lengths = range(pinned[0], pinned[1] + 1) if pinned else sampled or [scenario.sampling.max_tokens]
    rows = spread(lengths, scenario.rollout_batch_size)
    prompt = round(fmean(item.prompts for item in fitted)) if fitted else PROMPT_TOKENS
    size = scenario.group_size
    return [(prompt, rows[start : start + size]) for start in range(0, len(rows), size)]


def spread(lengths: Sequence[int], rows: int) -> list[int]:
    """Return as many lengths as there are rows, at the middles of equal parts of the sorted ones, in mixed order."""
    ordered = sorted(lengths)
    picked = [ordered[int((row + 0.5) / rows * len(ordered))] for row in range(rows)]
    half = (rows + 1) // 2
    mixed = [length for pair in zip(picked[:half], reversed(picked), strict=False) for length in pair]
    return mixed[:rows]


def tokens_of(groups: Sequence[Group]) -> int:
    """Return the response tokens of groups."""
    return sum(sum(lengths) for _, lengths in groups)


def _update_rate(run: Run, shards: Sequence[ShardRow], update_s: float) -> float | None:
    """Return the operations a second of a run's updates: those of a pass over a batch, forward and back, by passes."""
    preset, batch = run.setting("model.preset"), run.setting("rollout_batch_size") or 1
    if preset not in PRESETS or update_s <= 0 or not shards:
        return None
    shape = PRESETS[preset]
    gflop = 0.0
    for shard in shards:
        groups = [(prompt or 0, group) for prompt, group in zip(shard.prompt_tokens, shard.lengths, strict=True)]
        gflop += pass_features(shape, groups, batch)["position_gflop"]
    return BACKWARD * gflop / max(1, len(run.steps)) * (run.setting("epochs_per_batch") or 1) / update_s


@dataclass(frozen=True)
class Baselines:
    """What the baselines go by.

    Attributes:
        fitted: training runs, at least one.
        peak_gflop_s: the most 10^9 operations a second that a fitted run's updates reached; None where not known.
        peak_gb_s: the most 10^9 bytes a second, read and written, that a plain copy reached; None where not known.
        machine: the profile fitted to the runs.
    """

    fitted: Sequence[FittedRun]
    machine: MachineProfile
    peak_gflop_s: float | None
    peak_gb_s: float | None

    def predict(self, scenario: Scenario) -> dict[str, float | None]:
        """Return the seconds of a step by each baseline, in the order of ``summary.BASELINES``."""
        return {
            "nearest run": self.nearest_run(scenario),
            "stage means": self.stage_means(scenario),
            "closed form": self.closed_form(scenario),
            "roofline": self.roofline(scenario),
        }

    def nearest_run(self, scenario: Scenario) -> float:
        """Return the mean step time of the runs of the fitted arm that is most alike; see ``distance``."""
        tokens = tokens_of(expected_groups(scenario, self.fitted)) / scenario.rollout_batch_size
        distances: dict[str, float] = {}
        for item in self.fitted:
            distances.setdefault(item.arm, _distance(scenario, tokens, item))
        nearest = min(distances, key=distances.__getitem__)
        return fmean(item.step_s for item in self.fitted if item.arm == nearest)

    def stage_means(self, scenario: Scenario) -> float:
        """Return the sum of the stages' means: a token's share of generating, scoring and training, and all else whole.

        Means over the fitted runs of the same model, or of any where there is none.
        """
        preset = getattr(scenario.model, "preset", None)
        alike = [item for item in self.fitted if item.preset == preset] or list(self.fitted)
        tokens, passes = tokens_of(expected_groups(scenario, self.fitted)), scenario.epochs_per_batch
        seconds = 0.0
        for stage in dict.fromkeys(stage for item in alike for stage in costs_of(item.stages_s)):
            per_unit = [item.stages_s.get(stage, 0.0) / units(stage, item.tokens, item.passes) for item in alike]
            seconds += fmean(per_unit) * units(stage, tokens, passes)
        return seconds

    def closed_form(self, scenario: Scenario) -> float:
        """Return the fitted stage costs without contention: their sum, or with a lag those of the busiest lane."""
        return closed_form(scenario, self.machine)

    def roofline(self, scenario: Scenario) -> float | None:
        """Return the time of the operations or of the bytes of each stage, whichever is longer, at measured peaks.

        None where the model's shape or a peak is not known. With a lag, sampling and training go on at the same time.
        """
        shape, gflop_s, gb_s = shape_for(scenario)[0], self.peak_gflop_s, self.peak_gb_s
        if shape is None or gflop_s is None or gb_s is None:
            return None
        groups, batch = expected_groups(scenario, self.fitted), scenario.rollout_batch_size
        sampling = generate_features(shape, groups, getattr(scenario.engine, "max_batch", batch))
        training = update_features(shape, groups, batch, scenario.epochs_per_batch, scenario.minibatches_per_epoch)
        sample_gflop = sampling["prompt_gflop"] + sampling["row_gflop"]
        sample_s = max(sample_gflop / gflop_s, sampling["weight_gb"] / gb_s)
        train_s = max(
            BACKWARD * training["position_gflop"] / gflop_s, OPTIMIZER_COPIES * training["parameter_gb"] / gb_s
        )
        sync_s = SYNC_COPIES * shape.num_parameters * FLOAT32_BYTES / 1e9 / gb_s
        return (max(sample_s, train_s) if scenario.max_lag else sample_s + train_s) + sync_s


def peak_gb_s(sweeps: Sequence[Run]) -> float | None:
    """Return the most 10^9 bytes a second, read and written, that a plain copy in a transport sweep reached."""
    syncs = [sync for run in sweeps for sync in run.syncs if sync.num_bytes >= WARM_BYTES and sync.plain_copy_s > 0]
    return max((2 * sync.num_bytes / 1e9 / sync.plain_copy_s for sync in syncs), default=None)


def peak_gflop_s(fitted: Sequence[FittedRun]) -> float | None:
    """Return the most 10^9 operations a second that a run's updates reached."""
    return max((item.update_gflop_s for item in fitted if item.update_gflop_s is not None), default=None)


def units(stage: str, tokens: float, passes: int) -> float:
    """Return the units of a stage in a step: response tokens, those of every pass, or 1 step."""
    return tokens if stage in PER_TOKEN else tokens * passes if stage in PER_TOKEN_AND_PASS else 1.0


def distance(mine: Sequence[float], theirs: Sequence[float], unlike: int) -> float:
    """Return how unlike two settings are: factors between quantities, as logarithms; log 2 for each other difference.

    Quantities are responses in a batch, passes, mean response tokens and parameters; other differences are transport,
    placement and number of Generators.
    """
    return sum(abs(log(one / other)) for one, other in zip(mine, theirs, strict=True)) + unlike * log(2)


def _distance(scenario: Scenario, tokens: float, item: FittedRun) -> float:
    shape, run = shape_for(scenario)[0], item.run
    mine = (scenario.rollout_batch_size, scenario.epochs_per_batch, tokens, shape.num_parameters if shape else 1)
    parameters = run.manifest.parameters or 1
    theirs = (run.setting("rollout_batch_size"), item.passes, fmean(item.lengths), parameters)
    placement = scenario.placement
    unlike = (
        scenario.transport.type != run.setting("transport.type"),
        placement.colocated != run.setting("placement.colocated"),
        placement.generator.count != run.setting("placement.generator.count"),
    )
    return distance(mine, theirs, sum(unlike))
