"""The crosswalk of verl's logs (its ``file`` logger, TensorBoard, or an export of Weights & Biases)."""

from __future__ import annotations

from harness.results.importers.entry import DEVICES, Crosswalk, Entry, Role, total

_FIT = "verl/trainer/ppo/ray_trainer.py"
_V1 = "verl/trainer/ppo/v1/trainer_base.py"
_METRICS = "verl/trainer/ppo/metric_utils.py"
_LOSS = "verl/trainer/ppo/core_algos.py"
_ACTOR = "verl/workers/actor/dp_actor.py"
_ASYNC = "verl/experimental/fully_async_policy/fully_async_trainer.py"
_ONE_STEP_OFF = "verl/experimental/one_step_off_policy/ray_trainer.py"
_DRIVER = "driver"  # one process runs the stages and times them

_TOTAL, _STEP = "perf/total_num_tokens", "timing_s/step"
_PROMPT, _RESPONSE, _PER_DEVICE = "prompt_length/mean", "response_length/mean", "perf/throughput"


def _stage(theirs: str, ours: str, how: str = "seconds", source: str = _FIT) -> Entry:
    return Entry((theirs,), ours, Role.STAGE, how, source, _DRIVER)


def _metric(theirs: str, ours: str, how: str, source: str) -> Entry:
    return Entry((theirs,), ours, Role.METRIC, how, source)


def _generated(tokens: float, prompt: float, response: float) -> float:
    return tokens * response / (prompt + response)


def _generated_per_s(tokens: float, prompt: float, response: float, seconds: float) -> float:
    return _generated(tokens, prompt, response) / seconds


def _all_devices(per_device: float, devices: float, prompt: float, response: float) -> float:
    return _generated(per_device * devices, prompt, response)


_STAGES = (
    _stage("timing_s/reward", "score", "seconds; near 0 where the agent loop computed the rewards while generating"),
    _stage("timing_s/old_log_prob", "old_logprobs"),
    _stage("timing_s/ref", "reference_logprobs"),
    _stage("timing_s/adv", "prepare_batch", "seconds; KL penalty, rollout correction and advantages"),
    _stage("timing_s/update_actor", "update"),
    _stage("timing_s/update_weights", "weight_transfer", "seconds; publish, transfer and load are one figure"),
    _stage("timing_s/param_sync", "weight_transfer", "seconds; publish, transfer and load are one figure", _ASYNC),
    _stage("timing_s/sync_rollout_weights", "weight_transfer", "seconds; of its one-step-off trainer", _ONE_STEP_OFF),
    _stage("timing_s/save_checkpoint", "checkpoint"),
    _stage("timing_s/testing", "evaluate", "seconds; outside of `timing_s/step`, so both make the step here"),
)
_GEN_IS_GENERATION = (_stage("timing_s/gen", "generate", "seconds; synchronous runs only"),)
_GEN_IS_WAITING = (
    Entry(
        ("timing_s/gen", "timing_s/wait_for_enough_samples"),
        "wait_for_batch",
        Role.STAGE,
        "sum, seconds; asynchronous runs: the trainer waits for its next batch, nobody knows how long was generated",
        _ASYNC,
        _DRIVER,
        compute=total,
    ),
    _stage("timing_s/gen", "wait_for_batch", "seconds; asynchronous runs: the same wait", _V1),
)
_STEP_SECONDS = (
    Entry((_STEP,), "", Role.STEP, "seconds, without evaluation", _FIT),
    Entry(("perf/time_per_step",), "", Role.STEP, "seconds; the same figure", _METRICS),
)
_TOKENS = (
    Entry(
        (_TOTAL, _PROMPT, _RESPONSE),
        "response_tokens",
        Role.METRIC,
        "total x response / (prompt + response): tokens generated in the step, without the prompts' tokens",
        _METRICS,
        reduction="sum",
        compute=_generated,
    ),
    Entry(
        (_TOTAL, _PROMPT, _RESPONSE, _STEP),
        "perf/throughput_total",
        Role.METRIC,
        "generated tokens / seconds of the step, all devices together",
        _METRICS,
        compute=_generated_per_s,
    ),
    Entry(
        (_PER_DEVICE, DEVICES, _PROMPT, _RESPONSE),
        "perf/throughput_total",
        Role.METRIC,
        "the same from the figure per device, where the total is not in the log",
        _METRICS,
        compute=_all_devices,
    ),
    Entry(
        (_PER_DEVICE, _PROMPT, _RESPONSE),
        "perf/throughput_per_device",
        Role.METRIC,
        "throughput x response / (prompt + response): verl's figure is per device and counts prompts too",
        _METRICS,
        compute=_generated,
    ),
    Entry(
        (_TOTAL, _STEP),
        "perf/processed_tokens_per_s",
        Role.METRIC,
        "total / seconds of the step: prompt and response tokens, all devices together",
        _METRICS,
        compute=lambda tokens, seconds: tokens / seconds,
    ),
    Entry(
        (_PER_DEVICE, DEVICES),
        "perf/processed_tokens_per_s",
        Role.METRIC,
        "throughput x devices, where the total is not in the log",
        _METRICS,
        compute=lambda per_device, devices: per_device * devices,
    ),
)
_LEARNING = (
    _metric(
        "critic/score/mean",
        "reward/total",
        "mean over rollouts with a response, before a KL penalty (`critic/rewards/mean` is after it)",
        _METRICS,
    ),
    _metric(_RESPONSE, "response_length", "mean tokens over rollouts", _METRICS),
    _metric(
        "response_length/clip_ratio",
        "truncated_fraction",
        "share of responses of the greatest length, one that ends exactly there among them",
        _METRICS,
    ),
    _metric("actor/entropy", "token_entropy", "nats; averaged as its `loss_agg_mode` says", _FIT),
    _metric("actor/grad_norm", "grad_norm", "before clipping; mean over its optimizer steps", _ACTOR),
    _metric(
        "actor/pg_clipfrac", "clip_fraction", "share of response tokens, mean over micro-batches (unweighted)", _LOSS
    ),
    _metric("perf/mfu/actor", "perf/mfu", "share of the devices' peak, in the update", _FIT),
    _metric(
        "training/off_policy/trajectory_staleness_worst/mean",
        "off_policy/mean",
        "versions since a rollout's oldest token (without `_worst`: since its newest)",
        _V1,
    ),
    Entry(
        ("training/off_policy/trajectory_staleness_worst/max",),
        "off_policy/max",
        Role.METRIC,
        "the greatest of them",
        _V1,
        reduction="max",
    ),
    Entry(
        ("val-core/*/*/mean@*",),
        "validation/reward",
        Role.VALIDATION,
        "mean over the validation set; only where there is one such name, or the one named with `--validation`",
        _FIT,
    ),
)

VERL = Crosswalk(
    trainer="verl",
    title="verl",
    repository="verl-project/verl",
    entries=(*_STEP_SECONDS, *_GEN_IS_GENERATION, *_STAGES, *_TOKENS, *_LEARNING),
    step_names=("step", "training/global_step", "_step"),
    validation=("val-core/", "val-aux/", "val/"),
    bookkeeping=frozenset({"training/global_step", "training/epoch"}),
)
VERL_ASYNCHRONOUS = Crosswalk(
    trainer="verl",
    title="verl, asynchronous",
    repository=VERL.repository,
    entries=(*_STEP_SECONDS, *_GEN_IS_WAITING, *_STAGES, *_TOKENS, *_LEARNING),
    step_names=VERL.step_names,
    validation=VERL.validation,
    bookkeeping=VERL.bookkeeping,
)
# Names that only its asynchronous trainers write
ASYNCHRONOUS_SIGNS = (
    "fully_async/",
    "separate_async/",
    "timing_s/wait_for_enough_samples",
    "timing_s/param_sync",
    "timing_s/sync_rollout_weights",
)
