"""Makes a training step that a run has kept once more, in one process, and compares every figure with the recorded one.

Rewards come from the texts by the task's own function, advantages from the recorded rewards, loss and gradient norm of
each optimizer step from the tokens by a Learner that has loaded what the run's had learnt before. So one wrong value
does not hide behind another: a reward that was changed is found as that reward, and in all that follows from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harness.core.checkpoints import Checkpoint, Refused, differing, listed, steps_in
from harness.core.errors import Diverged, UserError
from harness.core.trace import NullTracer
from harness.core.types import Metrics, RolloutGroup, UpdateResult, combine_metrics
from harness.learner.warm_start import torch_threads
from harness.loop.state_files import KeptBatch, read_files
from harness.models.chat import on_date
from harness.results.manifest import Manifest
from harness.results.reader import load_run
from harness.results.writer import KEPT_STEPS, POLICY
from harness.run.builders import make_rewards, trainer_of
from harness.run.continuation import check_same
from harness.run.inputs import date_of_run
from harness.run.kept_steps import KeptResult, read_result
from harness.run.parts import never
from harness.run.plugins import plugin_digests
from harness.run.policy import Policy, make_policy
from harness.run.prompts import prompt_encoder, response_text
from harness.run.workers import LearnerWorker
from harness.scenario.schema import Scenario
from harness.tasks.make import make_task
from harness.tasks.scoring import RewardFailed
from harness.transports.in_process import InProcessTransport

TOLERANCE = 1e-5
"""Of a figure, relative: sums of float32 in another order."""
MOST_NAMED = 5
SERVED = ("vllm", "sglang")
"""Engines that make a text of the tokens by their own rules."""


@dataclass(frozen=True, slots=True)
class Check:
    """One kind of value, recorded and recomputed.

    Attributes:
        what: of the values.
        values: how many were compared.
        differing: each one that is another, in words, the largest difference first.
        largest: relative difference of all; 0 where the values are equal.
    """

    what: str
    values: int
    differing: tuple[str, ...] = ()
    largest: float = 0.0

    @property
    def agrees(self) -> bool:
        return not self.differing


def recompute(
    folder: Path, step: int, scenario: Scenario, tolerance: float = TOLERANCE
) -> tuple[list[Check], list[str]]:
    """Recompute a training step.

    Args:
        folder: of the run.
        step: the training step.
        scenario: of the run.
        tolerance: relative; figures that differ by no more agree.

    Returns:
        What was compared, and what a reader has to know beside it.

    Raises:
        UserError: the step was not kept, a file cannot be read, or the scenario is another one, with its keys.
    """
    run = load_run(folder)
    check_same(run.settings, scenario, folder)
    kept = kept_step(folder, step)
    home, changed = kept.folder, tuple(map(str, differing(kept)))
    batch, result, scenario = read_files(home, KeptBatch), read_result(home), for_this_machine(scenario, folder)
    policy = policy_here(scenario)
    with on_date(date_of_run(run.manifest)):
        prompts = _prompts(scenario, policy, batch)
    checks = [
        Check("files", len(kept.files), changed),
        prompts,
        *([] if scenario.engine.type in SERVED else [_texts(scenario, policy, batch)]),
        _rewards(scenario, batch),
    ]
    with torch_threads(run.manifest.threads):
        checks += _training(scenario, policy, batch, result, home, tolerance)
    row = next((row for row in run.steps if row.step == step), None)
    if row is not None and result.diverged is None:
        checks.append(_row(row.metric, result, tolerance))
    return checks, _notes(scenario, run.manifest)


def kept_step(folder: Path, step: int) -> Checkpoint:
    """Return the files of a training step that a run has kept; UserError, with those that it has, where it did not."""
    home = folder / KEPT_STEPS / f"step_{step}"
    kept = listed(home)
    if isinstance(kept, Refused):
        there = ", ".join(map(str, sorted(steps_in(folder / KEPT_STEPS)))) or "none"
        what = (
            f"training step {step} is not kept whole ({kept})"
            if home.is_dir()
            else f"training step {step} was not kept"
        )
        raise UserError(
            f"{what}; kept are: {there}", str(home), "name one of these, or run with checkpoint.keep_steps set"
        )
    return kept


def for_this_machine(scenario: Scenario, folder: Path) -> Scenario:
    """Leave out what this process has no use for. The weights come from the kept step, not from the model's start."""
    learner = scenario.learner.model_copy(update={"offload": None, "overlapped_publish": False})
    changes: dict[str, Any] = {"learner": learner}
    if scenario.model.type == "preset":
        changes["model"] = scenario.model.model_copy(update={"warm_start": False})
    elif scenario.model.type == "folder" and (folder / POLICY).is_dir():
        changes["model"] = scenario.model.model_copy(update={"path": str(folder / POLICY)})
    return scenario.model_copy(update=changes)


def policy_here(scenario: Scenario) -> Policy:
    """Make the policy on a GPU if the run's Learner had one and there is one here, else on the CPU."""
    on_gpu = torch.cuda.is_available() and scenario.device_of(scenario.placement.learner, has_gpu=True) == "cuda"
    return make_policy(scenario, "cuda" if on_gpu else "cpu", never)


def _named(group: RolloutGroup) -> str:
    return f"prompt {group.prompt_id} of batch {group.step}"


def _prompts(scenario: Scenario, policy: Policy, batch: KeptBatch) -> Check:
    encode, found = prompt_encoder(scenario, policy), []
    for group in batch.groups:
        recorded, made = group.data.prompt_token_ids.tolist(), list(encode(group.data.prompt.asked))
        if recorded != made:
            at = _first_other(recorded, made)
            found.append(f"{_named(group)}: token {at} is {recorded[at : at + 1]}, by its text {made[at : at + 1]}")
    return Check("tokens of prompts", len(batch.groups), tuple(found))


def _texts(scenario: Scenario, policy: Policy, batch: KeptBatch) -> Check:
    text_of, found, responses = response_text(scenario, make_task(scenario.task), policy), [], 0
    for group in batch.groups:
        for number, each in enumerate(group.data.completions):
            responses += 1
            token_ids = each.token_ids.tolist()
            if text_of(token_ids) != each.text:
                place = next(
                    (
                        place
                        for place in range(len(token_ids))
                        if not each.text.startswith(text_of(token_ids[: place + 1]))
                    ),
                    len(token_ids) - 1,
                )
                said = text_of(token_ids)
                found.append(
                    f"{_named(group)}, rollout {number}: token {place} is {token_ids[place]}; the tokens say "
                    f"{said!r:.60}, the text {each.text!r:.60}"
                )
    return Check("tokens of responses", responses, tuple(found))


def _first_other(some: Sequence[int], others: Sequence[int]) -> int:
    return next(
        (at for at, (one, other) in enumerate(zip(some, others, strict=False)) if one != other),
        min(len(some), len(others)),
    )


def _rewards(scenario: Scenario, batch: KeptBatch) -> Check:
    found: list[str] = []
    of_group = make_rewards(scenario, make_task(scenario.task), never)
    try:
        for group in batch.groups:
            data = group.data
            assert group.rewards is not None
            try:
                made = of_group([each.text for each in data.completions], data.prompt.ground_truth, data.prompt.row)
            except RewardFailed as error:
                found.append(f"{_named(group)}: {error}")
                continue
            for number, (recorded, now) in enumerate(zip(group.rewards, made, strict=True)):
                if recorded != now["reward"]:
                    found.append(
                        f"{_named(group)}, rollout {number}: {recorded:.9g} is recorded, {now['reward']:.9g} recomputed"
                    )
    finally:
        of_group.close()
    return Check("rewards", sum(len(group.lengths) for group in batch.groups), tuple(found))


def _training(
    scenario: Scenario, policy: Policy, batch: KeptBatch, recorded: KeptResult, home: Path, tolerance: float
) -> list[Check]:
    trainer = trainer_of(scenario, policy, never)
    learner = LearnerWorker(trainer, InProcessTransport(snapshot=False), tracer=NullTracer())
    try:
        learner.load_state(home)
        made: UpdateResult | str = _step(learner, batch)
    except Diverged as error:
        made = str(error)
    finally:
        learner.close()
    if recorded.diverged is not None or isinstance(made, str):
        said, says = recorded.diverged or "it did not diverge", made if isinstance(made, str) else "it does not diverge"
        return [Check("divergence", 1, () if said == says else (f"{said!r} is recorded, recomputed: {says!r}",))]
    names = [f"{_named(group)}, rollout {number}" for group in batch.groups for number in range(len(group.lengths))]
    sizes = [abs(value) for value in recorded.advantages]
    scale = sum(sizes) / len(sizes) if sizes else 0.0
    by_step = [f"optimizer step {number}" for number in range(len(recorded.metrics))]
    found = [_compared("advantages", names, recorded.advantages, made.advantages, tolerance)]
    for what, key, least in (("loss", "loss", scale), ("gradient norm", "grad_norm", 0.0)):
        values, now = _of_each(recorded.metrics, key), _of_each(made.optimizer_step_metrics, key)
        found.append(_compared(what, by_step, values, now, tolerance, least))
    return found


def _step(learner: LearnerWorker, batch: KeptBatch) -> UpdateResult:
    *parts, last = batch.parts
    for groups in parts:
        learner.accumulate(batch.step, groups)
    return learner.update(batch.step, last)


def _of_each(steps: Iterable[Metrics], key: str) -> list[float]:
    return [metrics[key].value for metrics in steps]


def _row(metric: Any, result: KeptResult, tolerance: float) -> Check:
    """Compare the row of ``steps.jsonl``, which has means over the optimizer steps, with what was kept."""
    recorded, made = [], []
    for key in ("loss", "grad_norm"):
        found = metric(key)
        recorded.append(math.nan if found is None else found.value)
        made.append(combine_metrics(list(result.metrics))[key].value)
    return _compared("row in steps.jsonl", ["loss", "gradient norm"], recorded, made, tolerance)


def _compared(
    what: str,
    names: Sequence[str],
    recorded: Sequence[float],
    made: Sequence[float],
    tolerance: float,
    scale: float = 0.0,
) -> Check:
    """Compare numbers: relative to the larger one, or to ``scale`` where that is larger still, since terms cancel."""
    if len(recorded) != len(made):
        return Check(what, len(recorded), (f"{len(recorded)} are recorded, {len(made)} recomputed",), math.inf)
    found: list[tuple[float, str]] = []
    for name, old, new in zip(names, recorded, made, strict=True):
        if old != new:
            gap = abs(old - new) / max(abs(old), abs(new), scale)
            found.append((gap, f"{name}: {old:.9g} is recorded, {new:.9g} recomputed, {gap:.2g} relative"))
    found.sort(key=lambda each: -each[0])
    largest = max((gap for gap, _ in found), default=0.0)
    return Check(what, len(recorded), tuple(said for gap, said in found if not gap <= tolerance), largest)


def _notes(scenario: Scenario, manifest: Manifest) -> list[str]:
    """Say which of the user's functions are others than those of the run, and that ranks add up in another order."""
    now, notes = plugin_digests(scenario), []
    for key, function in now.items():
        was = manifest.inputs.get(key, function)
        if function["sha256"] != was["sha256"]:
            notes.append(f"{key} {was.get('name')} is in another file now than in the run: its checksum differs")
    ranks = scenario.placement.learner.ranks
    if ranks > 1:
        notes.append(f"the run's Learner had {ranks} ranks, whose sums have another order than those of one process")
    return notes
