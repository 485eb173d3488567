"""What an examination found, as it is saved: ``docs/measured/holdout.json``. Tables and the guard read nothing else."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ValidationError

from harness.core.atomic_files import whole_file
from harness.core.errors import UserError
from harness.scenario.sections import FromList, Section

SCHEMA, SCHEMA_VERSION = "harness.holdout", 1
SMALL = 0.05
"""Stages below this share of a step are shown, and count in no bound."""
BASELINES = {
    "nearest run": "the mean step time of the fitted arm that is most alike",
    "stage means": "each stage's mean seconds in fitted runs of that model, for a unit of its work, added up",
    "closed form": "the fitted stage costs without contention: their sum, or with a lag the busiest lane's",
    "roofline": "operations and bytes over the highest rates that were measured",
}
"""What a simulator has to beat, and how each of them predicts."""

Numbers = Annotated[tuple[float, ...], FromList]
Words = Annotated[tuple[str, ...], FromList]


class Compared(Section):
    """One figure of one arm.

    Attributes:
        repeats: as measured, in the order of the experiments.
        value, low, high: as predicted, with the ends of the 90% interval of a single run.
    """

    repeats: Numbers
    value: float
    low: float
    high: float

    @property
    def measured(self) -> float:
        """Mean of the repeats."""
        return sum(self.repeats) / len(self.repeats)

    @property
    def error(self) -> float:
        """Predicted over measured, minus 1; 0 where both are 0, infinite where something was predicted of nothing."""
        if self.measured <= 0:
            return 0.0 if self.value <= 0 else float("inf")
        return self.value / self.measured - 1


class Lags(Section):
    """Shares of the rollouts trained on by their lag in versions."""

    measured: dict[str, float]
    predicted: dict[str, float]

    def shares(self, which: Literal["measured", "predicted"]) -> dict[int, float]:
        """Return one of them by number."""
        return {int(lag): share for lag, share in getattr(self, which).items()}


class ArmScore(Section):
    """One arm as predicted and as measured, in one tier.

    Attributes:
        step: seconds of a training step.
        stages: seconds of each stage in a step, over all lanes.
        idle: share of the time that lanes of each kind wait.
        throughput: response tokens trained on in a second.
        waste: share of the generated tokens that were never trained on.
        baselines: seconds of a step, by the name of the baseline; None where one has nothing to say.
        extrapolating: what left the range that was fitted.
    """

    tier: str
    arm: str
    step: Compared
    stages: dict[str, Compared]
    idle: dict[str, Compared]
    throughput: Compared
    waste: Compared
    lags: Lags
    baselines: dict[str, float | None]
    extrapolating: Words = ()

    def share(self, stage: str) -> float:
        """Return a stage's measured share of the step; the shares of lanes at the same time add up to more than 1."""
        return self.stages[stage].measured / self.step.measured

    @property
    def large_stages(self) -> tuple[str, ...]:
        """Stages that make up enough of the step to be held to a bound."""
        return tuple(stage for stage in self.stages if self.share(stage) >= SMALL)


class Counted(Section):
    """Measured values that lie in the interval predicted for them."""

    inside: int
    of: int

    @property
    def share(self) -> float:
        """Share inside; NaN where there is nothing."""
        return self.inside / self.of if self.of else float("nan")


class TierScore(Section):
    """A tier in one line.

    Attributes:
        error: median over the arms of the absolute error of step time.
        floor: what a perfect predictor would show; None where arms were measured once.
        baselines: the same as ``error`` for each baseline.
        stages: the same by stage, over the arms in which the stage makes up 5% of the step.
        small: the largest share of the step that each of the other stages reaches.
    """

    name: str
    what: str
    bound: float
    arms: Words
    error: float
    floor: float | None
    baselines: dict[str, float | None]
    stages: dict[str, float]
    small: dict[str, float]
    coverage: Counted
    stage_coverage: Counted

    @property
    def worst_stage(self) -> str:
        """The stage with the largest error."""
        return max(self.stages, key=self.stages.__getitem__)

    @property
    def winners(self) -> tuple[str, ...]:
        """Baselines that are nearer to the truth than the simulator."""
        return tuple(name for name, error in self.baselines.items() if error is not None and error < self.error)


class Ranking(Section):
    """The order of the arms by step time.

    ``repeats`` is Kendall's tau of one repeat against the others; None where arms were measured once.
    """

    tau: float
    bound: float
    repeats: float | None


class Chosen(Section):
    """What it costs to follow the simulator; see ``tests.holdout.scores.Choice``."""

    question: str
    arms: Words
    picked: str
    best: str
    regret: float
    pairs: int
    wrong: int
    mean_cost: float
    worst_cost: float


class ChangeScore(Section):
    """The effect of one change on step time: changed over unchanged, by ``whatif`` and as measured.

    Attributes:
        predicted, predicted_low, predicted_high: mean over the recorded runs it was replayed from, lowest and highest.
        measured, low, high: with the ends of the 95% interval; None where it has none.
        replay_error: by which share the replays of the runs as they were miss the runs at most.
    """

    start: str
    arm: str
    settings: Words
    predicted: float
    predicted_low: float
    predicted_high: float
    measured: float
    low: float | None
    high: float | None
    replay_error: float


class Document(Section):
    """An examination.

    Attributes:
        chosen: date of the plan.
        fitted, held_out: experiments, as SCENARIO/CAMPAIGN.
        machine: fingerprint of the machine that measured.
        draws, seed: of the forecasts.
        coverage_bounds, stage_bound: of the plan.
        notes: what a reader has to know beside the figures.
    """

    chosen: str
    fitted: Words
    held_out: Words
    machine: str
    draws: int
    seed: int
    coverage_bounds: Annotated[tuple[float, float], FromList]
    stage_bound: float
    arms: Annotated[tuple[ArmScore, ...], FromList]
    tiers: Annotated[tuple[TierScore, ...], FromList]
    ranking: Ranking
    choices: Annotated[tuple[Chosen, ...], FromList]
    changes: Annotated[tuple[ChangeScore, ...], FromList]
    notes: Words = ()


def save_document(document: Document, path: Path) -> None:
    """Write an examination as JSON, its numbers rounded to six digits: more would differ from machine to machine.

    Raises:
        UserError: the file cannot be written.
    """
    head: dict[str, Any] = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION}
    text = json.dumps(head | _rounded(document.model_dump(mode="json")), indent=1, allow_nan=False)
    write_text(path, text + "\n")


def load_document(path: Path) -> Document:
    """Read an examination.

    Raises:
        UserError: there is none, or it is of another form or version.
    """
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the examination {str(path)!r}: {error}", str(path)) from error
    if not isinstance(data, dict) or (data.pop("schema", None), data.pop("schema_version", None)) != (
        SCHEMA,
        SCHEMA_VERSION,
    ):
        raise UserError(f"{str(path)!r} is no {SCHEMA} of version {SCHEMA_VERSION}", str(path), "make it again")
    try:
        return Document.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{str(path)!r} is damaged: {error.errors()[0]['loc']}", str(path), "make it again") from error


def rounded(document: Document) -> Document:
    """Return the examination as it reads when it was saved."""
    return Document.model_validate(_rounded(document.model_dump(mode="json")))


def write_text(path: Path, text: str) -> None:
    """Write a whole file, or none.

    Raises:
        UserError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as stream:
            stream.write(text.encode())
    except OSError as error:
        raise UserError(
            f"cannot write {str(path)!r}: {error.strerror or error}", str(path), "name another file"
        ) from error


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}") if isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
