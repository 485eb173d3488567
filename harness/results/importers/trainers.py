"""What a name of another trainer's log becomes here: one table for each trainer.

``docs/importing.md`` has the same tables with the unit of each figure and the source it was read in; a test compares
them. The logs are verl's (its ``file`` logger), TRL's GRPOTrainer's (``trainer_state.json``), and open-instruct's (its
history in Weights & Biases); all three also as TensorBoard's event files, an export of either, or what was printed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from harness.core.types import Metric, Reduction


@dataclass(frozen=True)
class Entry:
    """One line of a table: a figure here, and the names in the log that it is made of.

    Of the entries for the same figure, the first whose names are all in the record is used.

    Attributes:
        ours: ``wall_s`` for the step's seconds; the stage's name for one with a lane; else a metric's, which is an
            evaluation's where it begins with ``validation/``.
        theirs: in a single name ``*`` stands for one part of a path, and for the same in ``ours``; ``**`` stands for
            one part or more.
        compute: from the columns of ``theirs`` in that order; None: the one column as it is.
        less: names of seconds that are part of those, and are taken off where the log has them.
        caution: what a reader must know of the value; said by the import.
    """

    ours: str
    theirs: tuple[str, ...]
    compute: Callable[..., Any] | None = None
    reduction: Reduction = "mean"
    lane: str = ""
    less: tuple[str, ...] = ()
    caution: str = ""

    @property
    def is_seconds(self) -> bool:
        """Whether it is the step's seconds or a stage's."""
        return bool(self.lane) or self.ours == "wall_s"

    def matches(self, names: Collection[str]) -> list[tuple[tuple[str, ...], str]]:
        """Return (names in the log, name here) for each way in which it fits."""
        if len(self.theirs) > 1 or "*" not in self.theirs[0]:
            return [(self.theirs, self.ours)] if all(name in names for name in self.theirs) else []
        fitting = [match for name in names if (match := pattern(self.theirs[0]).fullmatch(name))]
        return [((match[0],), self.ours.replace("*", match[1])) for match in fitting]


@cache
def pattern(theirs: str, tag: bool = False) -> re.Pattern[str]:
    """Return what fits a name of an entry, the stars as groups.

    Args:
        tag: where ``_`` may stand for each character that is no letter and no digit, as in the name of a file.
    """
    star = {"*": "([^/]+)", "**": "(.+)"}
    parts = re.split(r"(\*+)", theirs)
    plain = (re.sub(r"\W", r"[\\W_]", part) if tag else re.escape(part) for part in parts)
    return re.compile("".join(star.get(part, text) for part, text in zip(parts, plain, strict=True)))


@dataclass(frozen=True)
class Crosswalk:
    """How the log of one trainer is read.

    Attributes:
        trainer: its name on the command line.
        step_names: fields of a record that may hold its step, beside Weights & Biases' ``_step``; the first counts.
        validation: how the names of an evaluation begin.
        bookkeeping: names that alone make no training step.
        run_totals: names of the whole run, which come once at its end.
        prefixes: what one of its loggers puts before the names, as a regular expression -> what stands there in its
            other logs.
        timers: how the names begin, after ``prefixes``, of times that come in records of their own, without a step and
            before the record of the step that they were part of; those of a step are added up.
        no_timers: what to say where no stage is in the log.
        assumption: what was assumed of the log, and is said of each.
        optimizer_steps: in one training step; 0 where the log does not tell.
    """

    trainer: str
    entries: tuple[Entry, ...]
    step_names: tuple[str, ...]
    validation: tuple[str, ...]
    bookkeeping: frozenset[str] = frozenset()
    run_totals: frozenset[str] = frozenset()
    prefixes: tuple[tuple[str, str], ...] = ()
    timers: tuple[str, ...] = ()
    no_timers: str = ""
    assumption: str = ""
    optimizer_steps: int = 0

    def plain_name(self, name: str) -> str:
        """Return a name as the trainer's own log has it, whatever wrote it; the name itself where it is unknown."""
        plain = name
        for prefix, instead in self.prefixes:
            plain = re.sub(f"^{prefix}", instead, plain)
        if self.writes(plain):
            return plain
        for prefix, instead in (("", ""), *self.prefixes):
            own = re.sub("^" + prefix.replace("/", r"[\W_]"), instead, name)
            for theirs in (each for entry in self.entries for each in entry.theirs):
                is_distinct = theirs.rpartition("/")[2].strip("*")  # else rewards/* would fit rewards_NAME_std too
                if is_distinct and (fits := pattern(theirs, tag=True).fullmatch(own)):
                    return re.sub(r"\*+", "{}", theirs).format(*fits.groups())
        return plain

    def writes(self, name: str) -> bool:
        """Whether the trainer is known to write the name."""
        is_known = any(pattern(theirs).fullmatch(name) for entry in self.entries for theirs in entry.theirs)
        return is_known or not self.is_training(name)

    def renamed(self, values: Mapping[str, float]) -> dict[str, Metric]:
        """Return figures that the trainer logged at one step under the names here, those of an evaluation too.

        Seconds, and what is made of several names, are left out: who has the log alone needs them. Names that the
        trainer is not known to write stay as they are.
        """
        left, found = {self.plain_name(name): value for name, value in values.items()}, dict[str, Metric]()
        for entry in self.entries:
            if entry.is_seconds or entry.compute is not None or entry.less:
                continue
            for (theirs,), ours in entry.matches(list(left)):
                found.setdefault(ours, Metric(left.pop(theirs), entry.reduction))
        return found | {name: Metric(value) for name, value in left.items()}

    def is_training(self, name: str) -> bool:
        """Whether the name belongs to a training step."""
        return not name.startswith(self.validation) and name not in self.bookkeeping | self.run_totals


def _table(text: str) -> tuple[Entry, ...]:
    """Return the entries of a table: on each line a figure, a stage behind its lane, and the names that it has."""
    lines = [line.split() for line in text.strip().splitlines()]
    split = [(*figure.rpartition(":"), names) for figure, *names in lines]
    return tuple(Entry(ours, (name,), lane=lane) for lane, _, ours, names in split for name in names)


# ---- verl: one process runs the stages and times them

_TOTAL, _STEP, _PER_DEVICE = "perf/total_num_tokens", "timing_s/step", "perf/throughput"
_LENGTHS = ("prompt_length/mean", "response_length/mean")
_AFTER_PENALTY = "reward/total is critic/rewards/mean: after the KL penalty, if the run puts one into its rewards"


def _generated(tokens: Any, prompt: Any, response: Any) -> Any:
    return tokens * response / (prompt + response)


_VERL = _table("""
    wall_s                     timing_s/step perf/time_per_step
    driver:generate            timing_s/gen
    driver:score               timing_s/reward
    driver:old_logprobs        timing_s/old_log_prob
    driver:reference_logprobs  timing_s/ref
    driver:prepare_batch       timing_s/adv
    driver:update              timing_s/update_actor
    driver:weight_transfer     timing_s/update_weights timing_s/param_sync timing_s/sync_rollout_weights
    driver:checkpoint          timing_s/save_checkpoint
    driver:evaluate            timing_s/testing
    reward/total               critic/score/mean
    response_length            response_length/mean
    truncated_fraction         response_length/clip_ratio
    token_entropy              actor/entropy actor/entropy_loss
    grad_norm                  actor/grad_norm
    clip_fraction              actor/pg_clipfrac
    learning_rate              actor/lr
    perf/mfu                   perf/mfu/actor mfu/actor
    off_policy/mean            training/off_policy/trajectory_staleness_worst/mean
    validation/reward          val-core/**/mean@* val/test_score/**
""")
VERL = Crosswalk(
    "verl",
    (
        *_VERL,
        Entry("reward/total", ("critic/rewards/mean",), caution=_AFTER_PENALTY),
        Entry("learning_rate", ("actor/lr(1e-4)",), lambda scaled: scaled / 1e4),
        Entry("off_policy/max", ("training/off_policy/trajectory_staleness_worst/max",), reduction="max"),
        Entry("response_tokens", (_TOTAL, *_LENGTHS), _generated, "sum"),
        Entry("perf/throughput_total", (_TOTAL, *_LENGTHS, _STEP), lambda *x: _generated(*x[:3]) / x[3]),
        Entry("perf/throughput_per_device", (_PER_DEVICE, *_LENGTHS), _generated),
        Entry("perf/processed_tokens_per_s", (_TOTAL, _STEP), lambda tokens, seconds: tokens / seconds),
    ),
    step_names=("step", "training/global_step"),
    validation=("val-core/", "val-aux/", "val/"),
    bookkeeping=frozenset({"training/global_step", "training/epoch"}),
    prefixes=(("timing/", "timing_s/"),),  # of its first versions
    assumption="timing_s/gen was read as generation (synchronous)",
)
_WAIT = ("timing_s/gen", "timing_s/wait_for_enough_samples")
ASYNC_SIGNS = ("fully_async/", "separate_async/", "timing_s/param_sync", "timing_s/sync_rollout_weights", _WAIT[1])
"""How names begin that only verl's asynchronous trainers write."""
VERL_ASYNC = replace(
    VERL,
    entries=(
        Entry("wait_for_batch", _WAIT, lambda generating, waiting: generating + waiting, lane="driver"),
        *_table("driver:wait_for_batch timing_s/gen"),
        *(entry for entry in VERL.entries if entry.ours != "generate"),
    ),
    assumption="timing_s/gen was read as waiting for the next batch (asynchronous)",
)

# ---- TRL: its timers hold each other: step_time is _prepare_inputs, compute_loss and the backward pass, and
# _prepare_inputs, in a step that generates, is all that comes before the loss

_STEP_TIME, _PREPARE = "step_time", "profiling/_prepare_inputs"
_PREPARING = _table("""
    driver:generate            profiling/vLLM.generate profiling/transformers.generate
    driver:generate            profiling/transformers.generate_batch
    driver:weight_transfer     profiling/sync_weights profiling/_move_model_to_vllm
    driver:score               profiling/_calculate_rewards
""")
_TRL = _table("""
    wall_s                         step_time
    driver:update                  profiling/compute_loss
    driver:evaluate                eval_runtime
    reward/total                   reward
    reward/*                       rewards/*/mean rewards/*
    response_length                completions/mean_length completion_length
    truncated_fraction             completions/clipped_ratio
    token_entropy                  entropy
    grad_norm                      grad_norm
    loss                           loss
    learning_rate                  learning_rate
    zero_variance_fraction         frac_reward_zero_std
    clip_fraction                  clip_ratio/region_mean clip_ratio
    kl/reference_k3                kl
    validation/reward              eval_reward eval_*_reward
    validation/response_length     eval_completions/mean_length eval_completion_length
    validation/truncated_fraction  eval_completions/clipped_ratio
""")


def _growth(tokens: Any) -> Any:
    """Return the tokens of a step, of tokens that count up from the run's start; the first row's are unknown."""
    counts = tokens.dropna()
    return counts.diff() / counts.index.to_series().diff()


TRL = Crosswalk(
    "trl",
    (
        *_PREPARING,
        Entry("prepare_batch", (_PREPARE,), lane="driver", less=tuple(entry.theirs[0] for entry in _PREPARING)),
        Entry("update", (_STEP_TIME, _PREPARE), lambda step, inner: (step - inner).clip(lower=0.0), lane="driver"),
        *_TRL,
        Entry("perf/processed_tokens_per_s", ("num_tokens", _STEP_TIME), lambda x, y: _growth(x) / y),
    ),
    step_names=("step", "train/global_step", "global_step"),
    validation=("eval_",),
    bookkeeping=frozenset({"epoch", "global_step", "total_flos"}),
    run_totals=frozenset({"train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss"}),
    # transformers' integrations rewrite names as in the first two; a timer has the trainer's class before its name
    prefixes=(("train/", ""), ("eval/", "eval_"), (r"profiling/Time taken: (?:\w+\.)?", "profiling/")),
    timers=("profiling/",),
    no_timers="no stages: TRL times them for trackers only. GRPOConfig(report_to='wandb') makes it log profiling/Time "
    "taken; import the rows of that run's scan_history()",
    optimizer_steps=1,
)

# ---- open-instruct: its training time begins before the batch has arrived

_OPEN_INSTRUCT = _table("""
    wall_s                       time/total
    learner:wait_for_batch       time/trainer_waiting_for_data time/trainer_idle_waiting_for_inference
    generator:wait_for_room      time/generation_waiting_for_trainer time/generation_idle_waiting_for_trainer
    generator:weight_transfer    time/weight_sync
    learner:checkpoint           time/saving
    reward/total                 scores
    response_length              val/sequence_lengths
    token_entropy                policy/entropy_avg
    grad_norm                    optim/grad_norm
    learning_rate                lr
    clip_fraction                policy/clipfrac_avg
    ratio/mean                   val/ratio
    kl/reference_k1              objective/kl0_avg
    kl/reference_k3              objective/kl2_avg
    perf/processed_tokens_per_s  learner_tokens_per_second_step
    validation/reward            eval/scores
    validation/response_length   eval/sequence_lengths
""")
_WAITS = tuple(entry.theirs[0] for entry in _OPEN_INSTRUCT if entry.ours == "wait_for_batch")
OPEN_INSTRUCT = Crosswalk(
    "open-instruct",
    (
        *_OPEN_INSTRUCT,
        Entry("update", ("time/training",), lane="learner", less=_WAITS),
        Entry("truncated_fraction", ("val/stop_rate",), lambda stopped: 1.0 - stopped),
        Entry("perf/mfu", ("learner_mfu",), lambda percent: percent / 100),
        Entry("validation/truncated_fraction", ("eval/stop_rate",), lambda stopped: 1.0 - stopped),
    ),
    step_names=("training_step", "step"),
    validation=("eval/",),
    bookkeeping=frozenset({"training_step", "global_step", "episode", "epoch"}),
)
CROSSWALKS = {crosswalk.trainer: crosswalk for crosswalk in (VERL, TRL, OPEN_INSTRUCT)}
_COMMON = set.intersection(*({entry.ours for entry in each.entries} for each in CROSSWALKS.values()))
_RENAMED = [entry.ours for entry in VERL.entries if len(entry.theirs) == 1 and not entry.is_seconds]
STANDARD = dict.fromkeys(ours for ours in _RENAMED if ours in _COMMON)
"""Figures of every trainer, which the import names where a log lacks them."""
