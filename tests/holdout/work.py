"""How much work a step is: of fitted runs as recorded, of a scenario as its settings and those runs let one expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from harness.core.trace import Stage
from harness.models.config import PRESETS
from harness.models.shape import shape_of_own
from harness.results import Run, ShardRow
from harness.scenario import Scenario
from harness.simulate.features import Group, pass_features
from harness.simulate.metrics import stage_times, step_time

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

    @property
    def is_free(self) -> bool:
        """Whether the policy ended its responses itself."""
        return self.run.setting("sampling.pinned_lengths") is None


def fitted_run(run: Run) -> FittedRun:
    """Read what the baselines take from a run.

    Raises:
        UserError: a file is damaged.
    """
    shards = [row for row in run.groups() if isinstance(row, ShardRow) and row.purpose == "train"]
    prompts = [tokens for shard in shards for tokens in shard.prompt_tokens if tokens]
    preset, stages = run.setting("model.preset"), stage_times(run.steps)
    return FittedRun(
        run=run,
        arm=run.manifest.arm or "",
        preset=preset if isinstance(preset, str) else None,
        step_s=step_time(run.steps),
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
    free = [item for item in fitted if item.is_free]
    preset = getattr(scenario.model, "preset", None)
    alike = [item for item in free if item.preset == preset] or free
    rows = spread(_known_lengths(scenario, alike), scenario.rollout_batch_size)
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


def _known_lengths(scenario: Scenario, fitted: Sequence[FittedRun]) -> list[int]:
    pinned = scenario.sampling.pinned_lengths
    if pinned is not None:
        return list(range(pinned[0], pinned[1] + 1))
    return [length for item in fitted for length in item.lengths] or [scenario.sampling.max_tokens]


def _update_rate(run: Run, shards: Sequence[ShardRow], update_s: float) -> float | None:
    """Return the operations a second of a run's updates: those of a pass over a batch, forward and back, by passes."""
    preset, batch = run.setting("model.preset"), run.setting("rollout_batch_size") or 1
    if preset not in PRESETS or update_s <= 0 or not shards:
        return None
    shape = shape_of_own(PRESETS[preset])
    gflop = 0.0
    for shard in shards:
        groups = [(prompt or 0, group) for prompt, group in zip(shard.prompt_tokens, shard.lengths, strict=True)]
        gflop += pass_features(shape, groups, batch)["position_gflop"]
    return BACKWARD * gflop / max(1, len(run.steps)) * (run.setting("epochs_per_batch") or 1) / update_s
