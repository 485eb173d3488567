"""What a name of another trainer's log becomes here: one table for each trainer.

``docs/importing.md`` has the same tables with the unit of each figure and the source it was read in; a test compares
them. The logs are verl's (its ``file`` logger), TRL's GRPOTrainer's (``trainer_state.json``), and open-instruct's (its
history in Weights & Biases); all three also as TensorBoard's event files, an export of either, or what was printed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Literal

Values = Mapping[str, float]
Reduction = Literal["mean", "sum", "max", "min"]

# Names that the importer puts beside those of the log
DEVICES = "--devices"
STEPS = "steps since the row before"
GROWTH = "growth of "  # + a name whose value counts up from the run's start


class Role(StrEnum):
    """Where a value goes."""

    STEP = "seconds of the step"
    STAGE = "seconds of a stage"
    METRIC = "metric of the step"
    VALIDATION = "metric of the evaluation"


def same(*values: float) -> float:
    """Return the one value as it is."""
    (value,) = values
    return value


def total(*values: float) -> float:
    """Return the sum."""
    return sum(values)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a crosswalk.

    Of the entries with the same role and name here, the first whose names are all in the log is used.

    Attributes:
        theirs: names in the log. In a single name ``*`` stands for one part of a path, and for the same in ``ours``;
            ``**`` stands for one part or more.
        ours: name here; the stage's for a stage, empty for the step's seconds.
        lane: of a stage.
        compute: from the values of ``theirs`` in that order; raises ZeroDivisionError where there is none.
        caution: what a reader must know of the value; said by the import.
    """

    theirs: tuple[str, ...]
    ours: str
    role: Role
    lane: str = ""
    reduction: Reduction = "mean"
    compute: Callable[..., float] = same
    caution: str = ""

    @property
    def is_pattern(self) -> bool:
        """Whether the entry fits more than one name."""
        return len(self.theirs) == 1 and "*" in self.theirs[0]

    @property
    def is_renaming(self) -> bool:
        """Whether the value is the log's own, so that nothing is lost with the name."""
        return self.compute is same


@cache
def pattern(theirs: str, tag: bool = False) -> re.Pattern[str]:
    """Return what fits a name of an entry, the stars as groups.

    Args:
        tag: in the name of a file, where ``_`` may stand for each character that is no letter and no digit.
    """
    star = {"*": "([^/]+)", "**": "(.+)"}
    parts = re.findall(r"\*\*|.", theirs)
    return re.compile(
        "".join(star.get(part) or (r"[\W_]" if tag and re.match(r"\W", part) else re.escape(part)) for part in parts)
    )


@dataclass(frozen=True)
class Crosswalk:
    """How the log of one trainer is read.

    Attributes:
        trainer: its name on the command line.
        title: its name in sentences.
        step_names: the fields of a record that may hold its step; the first that is there counts.
        clock_names: fields with the time of a record in seconds, used where no step's seconds are in the log.
        validation: how the names of an evaluation begin.
        bookkeeping: names that alone make no training step.
        run_totals: names of the whole run, which come once at its end.
        cumulative: names whose value counts up from the run's start.
        prefixes: what one of its loggers puts before the names -> what stands there in its other logs.
        optimizer_steps: in one training step; 0 where the log does not tell.
    """

    trainer: str
    title: str
    entries: tuple[Entry, ...]
    step_names: tuple[str, ...]
    validation: tuple[str, ...]
    clock_names: tuple[str, ...] = ("_timestamp", "_runtime")
    bookkeeping: frozenset[str] = frozenset()
    run_totals: frozenset[str] = frozenset()
    cumulative: tuple[str, ...] = ()
    prefixes: tuple[tuple[str, str], ...] = ()
    optimizer_steps: int = 0

    def plain_name(self, name: str) -> str:
        """Return a name as the trainer's own log has it, whatever logger wrote it."""
        for prefix, instead in self.prefixes:
            if name.startswith(prefix):
                return instead + name[len(prefix) :]
        return name

    def name_of_tag(self, tag: str) -> str:
        """Return the name whose series TensorBoard exports under this tag; the tag itself where none fits."""
        for prefix, instead in (("", ""), *self.prefixes):
            before = pattern(prefix, tag=True).match(tag)
            own = instead + tag[before.end() :] if before else ""
            for theirs in (name for entry in self.entries for name in entry.theirs):
                distinct = theirs.rpartition("/")[2].strip("*")  # else rewards/* would fit rewards_NAME_std too
                if distinct and (found := pattern(theirs, tag=True).fullmatch(own)):
                    name = theirs.replace("**", "*")
                    for part in found.groups():
                        name = name.replace("*", part, 1)
                    return name
        return tag

    def writes(self, name: str) -> bool:
        """Whether the trainer is known to write the name."""
        if self.is_validation(name) or name in self.bookkeeping | self.run_totals:
            return True
        return any(pattern(theirs).fullmatch(name) for entry in self.entries for theirs in entry.theirs)

    def is_training(self, name: str) -> bool:
        """Whether the name belongs to a training step."""
        return name not in self.bookkeeping | self.run_totals and not self.is_validation(name)

    def is_validation(self, name: str) -> bool:
        """Whether the name belongs to an evaluation."""
        return name.startswith(self.validation)


def _renamed(role: Role, names: Mapping[str, str], lane: str = "") -> tuple[Entry, ...]:
    return tuple(Entry((theirs,), ours, role, lane) for theirs, ours in names.items())


def _computed(ours: str, compute: Callable[..., float], *theirs: str) -> Entry:
    return Entry(theirs, ours, Role.METRIC, compute=compute)


def _generated(tokens: float, prompt: float, response: float) -> float:
    return tokens * response / (prompt + response)


def _without_wait(training: float, waiting: float) -> float:
    return max(0.0, training - waiting)


def _rest(share: float) -> float:
    return 1.0 - share


def _per_second(tokens: float, seconds: float, steps: float = 1.0) -> float:
    return tokens / (seconds * steps)


_TOTAL, _STEP, _PER_DEVICE = "perf/total_num_tokens", "timing_s/step", "perf/throughput"
_LENGTHS = ("prompt_length/mean", "response_length/mean")
_VERL_STEP = _renamed(Role.STEP, {_STEP: "", "perf/time_per_step": ""})
_VERL_STAGES = {  # one process runs the stages and times them
    "timing_s/reward": "score",
    "timing_s/old_log_prob": "old_logprobs",
    "timing_s/ref": "reference_logprobs",
    "timing_s/adv": "prepare_batch",
    "timing_s/update_actor": "update",
    "timing_s/update_weights": "weight_transfer",
    "timing_s/param_sync": "weight_transfer",
    "timing_s/sync_rollout_weights": "weight_transfer",
    "timing_s/save_checkpoint": "checkpoint",
    "timing_s/testing": "evaluate",
}
_VERL_METRICS = {
    "critic/score/mean": "reward/total",
    "actor/lr": "learning_rate",
    "response_length/mean": "response_length",
    "response_length/clip_ratio": "truncated_fraction",
    "actor/entropy": "token_entropy",
    "actor/entropy_loss": "token_entropy",
    "actor/grad_norm": "grad_norm",
    "actor/pg_clipfrac": "clip_fraction",
    "perf/mfu/actor": "perf/mfu",
    "mfu/actor": "perf/mfu",
    "training/off_policy/trajectory_staleness_worst/mean": "off_policy/mean",
}
_VERL_REST = (
    *_renamed(Role.STAGE, _VERL_STAGES, "driver"),
    Entry((_TOTAL, *_LENGTHS), "response_tokens", Role.METRIC, reduction="sum", compute=_generated),
    _computed(
        "perf/throughput_total",
        lambda tokens, prompt, response, seconds: _generated(tokens, prompt, response) / seconds,
        *(_TOTAL, *_LENGTHS, _STEP),
    ),
    _computed(
        "perf/throughput_total",
        lambda per_device, devices, prompt, response: _generated(per_device * devices, prompt, response),
        *(_PER_DEVICE, DEVICES, *_LENGTHS),
    ),
    _computed("perf/throughput_per_device", _generated, _PER_DEVICE, *_LENGTHS),
    _computed("perf/processed_tokens_per_s", _per_second, _TOTAL, _STEP),
    _computed("perf/processed_tokens_per_s", lambda per_device, devices: per_device * devices, _PER_DEVICE, DEVICES),
    *_renamed(Role.METRIC, _VERL_METRICS),
    Entry(
        ("critic/rewards/mean",),
        "reward/total",
        Role.METRIC,
        caution="reward/total is critic/rewards/mean: after the KL penalty, if the run puts one into its rewards",
    ),
    _computed("learning_rate", lambda scaled: scaled / 1e4, "actor/lr(1e-4)"),
    Entry(("training/off_policy/trajectory_staleness_worst/max",), "off_policy/max", Role.METRIC, reduction="max"),
    *_renamed(Role.VALIDATION, {"val-core/**/mean@*": "validation/reward", "val/test_score/**": "validation/reward"}),
)
VERL = Crosswalk(
    trainer="verl",
    title="verl",
    entries=(*_VERL_STEP, *_renamed(Role.STAGE, {"timing_s/gen": "generate"}, "driver"), *_VERL_REST),
    step_names=("step", "training/global_step", "_step"),
    validation=("val-core/", "val-aux/", "val/"),
    bookkeeping=frozenset({"training/global_step", "training/epoch"}),
    prefixes=(("timing/", "timing_s/"),),  # its first versions
)
_WAITS_TOO = ("timing_s/gen", "timing_s/wait_for_enough_samples")
VERL_ASYNCHRONOUS = replace(
    VERL,
    title="verl, asynchronous",
    entries=(
        *_VERL_STEP,
        Entry(_WAITS_TOO, "wait_for_batch", Role.STAGE, "driver", compute=total),
        *_renamed(Role.STAGE, {"timing_s/gen": "wait_for_batch"}, "driver"),
        *_VERL_REST,
    ),
)
ASYNCHRONOUS_SIGNS = (
    "fully_async/",
    "separate_async/",
    "timing_s/wait_for_enough_samples",
    "timing_s/param_sync",
    "timing_s/sync_rollout_weights",
)
"""How names begin that only verl's asynchronous trainers write."""

TRL = Crosswalk(
    trainer="trl",
    title="TRL",
    entries=(
        *_renamed(Role.STEP, {"step_time": ""}),
        *_renamed(Role.STAGE, {"eval_runtime": "evaluate"}, "driver"),
        *_renamed(
            Role.METRIC,
            {
                "reward": "reward/total",
                "rewards/*/mean": "reward/*",
                "rewards/*": "reward/*",
                "completions/mean_length": "response_length",
                "completion_length": "response_length",
                "completions/clipped_ratio": "truncated_fraction",
                "entropy": "token_entropy",
                "grad_norm": "grad_norm",
                "loss": "loss",
                "learning_rate": "learning_rate",
                "frac_reward_zero_std": "zero_variance_fraction",
                "clip_ratio/region_mean": "clip_fraction",
                "clip_ratio": "clip_fraction",
                "kl": "kl/reference_k3",
            },
        ),
        _computed("perf/processed_tokens_per_s", _per_second, GROWTH + "num_tokens", "step_time", STEPS),
        *_renamed(
            Role.VALIDATION,
            {
                "eval_reward": "validation/reward",
                "eval_*_reward": "validation/reward",
                "eval_completions/mean_length": "validation/response_length",
                "eval_completion_length": "validation/response_length",
                "eval_completions/clipped_ratio": "validation/truncated_fraction",
            },
        ),
    ),
    step_names=("step", "train/global_step", "global_step", "_step"),
    validation=("eval_",),
    bookkeeping=frozenset({"epoch", "global_step", "total_flos"}),
    run_totals=frozenset({"train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss"}),
    cumulative=("num_tokens",),
    prefixes=(("train/", ""), ("eval/", "eval_")),  # transformers' integrations rewrite the names so
    optimizer_steps=1,
)

_WAITS = ("time/trainer_waiting_for_data", "time/trainer_idle_waiting_for_inference")  # new and old name
_IDLE = ("time/generation_waiting_for_trainer", "time/generation_idle_waiting_for_trainer")
_TRAINING = "time/training"
OPEN_INSTRUCT = Crosswalk(
    trainer="open-instruct",
    title="open-instruct",
    entries=(
        *_renamed(Role.STEP, {"time/total": ""}),
        *(Entry((_TRAINING, wait), "update", Role.STAGE, "learner", compute=_without_wait) for wait in _WAITS),
        *_renamed(Role.STAGE, {_TRAINING: "update"} | dict.fromkeys(_WAITS, "wait_for_batch"), "learner"),
        *_renamed(
            Role.STAGE, dict.fromkeys(_IDLE, "wait_for_room") | {"time/weight_sync": "weight_transfer"}, "generator"
        ),
        *_renamed(Role.STAGE, {"time/saving": "checkpoint"}, "learner"),
        *_renamed(Role.METRIC, {"scores": "reward/total", "val/sequence_lengths": "response_length"}),
        _computed("truncated_fraction", _rest, "val/stop_rate"),
        *_renamed(
            Role.METRIC,
            {
                "policy/entropy_avg": "token_entropy",
                "optim/grad_norm": "grad_norm",
                "lr": "learning_rate",
                "policy/clipfrac_avg": "clip_fraction",
                "val/ratio": "ratio/mean",
                "objective/kl0_avg": "kl/reference_k1",
                "objective/kl2_avg": "kl/reference_k3",
                "learner_tokens_per_second_step": "perf/processed_tokens_per_s",
            },
        ),
        _computed("perf/mfu", lambda percent: percent / 100, "learner_mfu"),
        *_renamed(
            Role.VALIDATION,
            {"eval/scores": "validation/reward", "eval/sequence_lengths": "validation/response_length"},
        ),
        Entry(("eval/stop_rate",), "validation/truncated_fraction", Role.VALIDATION, compute=_rest),
    ),
    step_names=("training_step", "_step", "step"),
    validation=("eval/",),
    bookkeeping=frozenset({"training_step", "global_step", "episode", "epoch"}),
)
CROSSWALKS = {crosswalk.trainer: crosswalk for crosswalk in (VERL, TRL, OPEN_INSTRUCT)}
