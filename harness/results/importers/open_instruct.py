"""The crosswalk of open-instruct's GRPO (what it logs to Weights & Biases, exported as JSON lines)."""

from __future__ import annotations

from harness.results.importers.entry import Crosswalk, Entry, Role

_MAIN = "open_instruct/grpo_fast.py"
_LOSS = "open_instruct/grpo_utils.py"
_KL = "open_instruct/model_utils.py"
_DATA = "open_instruct/data_loader.py"
_USE = "open_instruct/utils.py"
_TRAINING = "time/training"
_WAITS = ("time/trainer_waiting_for_data", "time/trainer_idle_waiting_for_inference")  # new and old name
_IDLE = ("time/generation_waiting_for_trainer", "time/generation_idle_waiting_for_trainer")


def _metric(theirs: str, ours: str, how: str, source: str) -> Entry:
    return Entry((theirs,), ours, Role.METRIC, how, source)


def _update_with(wait: str) -> Entry:
    how = "training - waiting, seconds: its training time begins before the batch has arrived"
    return Entry((_TRAINING, wait), "update", Role.STAGE, how, _MAIN, "learner", compute=lambda a, b: max(0.0, a - b))


OPEN_INSTRUCT = Crosswalk(
    trainer="open-instruct",
    title="open-instruct",
    repository="allenai/open-instruct",
    entries=(
        Entry(("time/total",), "", Role.STEP, "seconds, without evaluation and the saving of its state", _MAIN),
        *(_update_with(wait) for wait in _WAITS),
        Entry((_TRAINING,), "update", Role.STAGE, "seconds, the wait for the batch among them", _MAIN, "learner"),
        *(Entry((wait,), "wait_for_batch", Role.STAGE, "seconds", _DATA, "learner") for wait in _WAITS),
        *(
            Entry((idle,), "wait_for_room", Role.STAGE, "seconds; enough batches are prepared", _DATA, "generator")
            for idle in _IDLE
        ),
        Entry(
            ("time/weight_sync",),
            "weight_transfer",
            Role.STAGE,
            "seconds, of the step before, beside other work; publish, transfer and load are one figure",
            _MAIN,
            "generator",
        ),
        Entry(("time/saving",), "checkpoint", Role.STAGE, "seconds", _MAIN, "learner"),
        _metric("scores", "reward/total", "mean over the rollouts trained on", _DATA),
        _metric("val/sequence_lengths", "response_length", "mean tokens over rollouts of the training batch", _DATA),
        Entry(
            ("val/stop_rate",),
            "truncated_fraction",
            Role.METRIC,
            "1 - value: share of training responses that did not end by themselves",
            _DATA,
            compute=lambda rate: 1.0 - rate,
        ),
        _metric("policy/entropy_avg", "token_entropy", "nats, mean over response tokens", _LOSS),
        _metric("optim/grad_norm", "grad_norm", "before clipping; mean over its optimizer steps", _MAIN),
        _metric("policy/clipfrac_avg", "clip_fraction", "share of response tokens", _LOSS),
        _metric("val/ratio", "ratio/mean", "mean over response tokens of the training batch", _LOSS),
        _metric("objective/kl0_avg", "kl/reference_k1", "its number 0 is k1, per token", _KL),
        _metric("objective/kl2_avg", "kl/reference_k3", "its number 2 is k3, per token (1 is k2)", _KL),
        _metric(
            "learner_tokens_per_second_step",
            "perf/processed_tokens_per_s",
            "prompt and response tokens per second of the step, all devices together",
            _MAIN,
        ),
        Entry(
            ("learner_mfu",),
            "perf/mfu",
            Role.METRIC,
            "value / 100: share of the learners' peak, in its training time",
            _USE,
            compute=lambda percent: percent / 100,
        ),
        Entry(
            ("eval/scores",),
            "validation/reward",
            Role.VALIDATION,
            "mean over responses; collected some steps after they were asked for",
            _MAIN,
        ),
        Entry(("eval/sequence_lengths",), "validation/response_length", Role.VALIDATION, "mean tokens", _MAIN),
        Entry(
            ("eval/stop_rate",),
            "validation/truncated_fraction",
            Role.VALIDATION,
            "1 - value",
            _MAIN,
            compute=lambda rate: 1.0 - rate,
        ),
    ),
    step_names=("training_step", "_step", "step"),
    validation=("eval/",),
    bookkeeping=frozenset({"training_step", "global_step", "episode", "epoch"}),
)
