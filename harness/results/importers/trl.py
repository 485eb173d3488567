"""The crosswalk of TRL's GRPOTrainer (``trainer_state.json``, JSON lines, TensorBoard, an export of W&B)."""

from __future__ import annotations

from harness.results.importers.entry import GROWTH, STEPS, Crosswalk, Entry, Role

_TRAINER = "trl/trainer/grpo_trainer.py"
_BASE = "src/transformers/trainer.py (huggingface/transformers)"


def _metric(theirs: str, ours: str, how: str, source: str = _TRAINER) -> Entry:
    return Entry((theirs,), ours, Role.METRIC, how, source)


def _validation(theirs: str, ours: str, how: str) -> Entry:
    return Entry((theirs,), ours, Role.VALIDATION, how, _TRAINER)


TRL = Crosswalk(
    trainer="trl",
    title="TRL",
    repository="huggingface/trl",
    entries=(
        Entry(
            ("step_time",),
            "",
            Role.STEP,
            "seconds, generation included; optimizer step, logging and evaluation left out; no stage has its own",
            _TRAINER,
        ),
        Entry(("eval_runtime",), "evaluate", Role.STAGE, "seconds", _BASE, "driver"),
        _metric("reward", "reward/total", "mean over rollouts of the weighted sum of its reward functions"),
        _metric("rewards/*/mean", "reward/*", "mean over rollouts of one reward function"),
        _metric("completions/mean_length", "response_length", "mean tokens over rollouts"),
        _metric("completions/clipped_ratio", "truncated_fraction", "share of responses without an end token"),
        _metric("entropy", "token_entropy", "nats, mean over response tokens"),
        _metric("grad_norm", "grad_norm", "before clipping, of the last optimizer step before the row", _BASE),
        _metric("loss", "loss", "mean over the optimizer steps since the last row", _BASE),
        _metric(
            "clip_ratio/region_mean",
            "clip_fraction",
            "share of response tokens; in older versions a mean over responses of their shares",
        ),
        _metric(
            "kl",
            "kl/reference_k3",
            "k3 per token to the reference policy; only with `beta` > 0, and weighted by the ratio with "
            "`use_bias_correction_kl`",
        ),
        Entry(
            (GROWTH + "num_tokens", "step_time", STEPS),
            "perf/processed_tokens_per_s",
            Role.METRIC,
            "growth / (seconds x steps): prompt and response tokens, all devices together",
            _TRAINER,
            compute=lambda tokens, seconds, steps: tokens / (seconds * steps),
        ),
        _validation("eval_reward", "validation/reward", "mean over rollouts"),
        _validation("eval_completions/mean_length", "validation/response_length", "mean tokens over rollouts"),
        _validation("eval_completions/clipped_ratio", "validation/truncated_fraction", "as in training"),
    ),
    step_names=("step", "train/global_step"),
    validation=("eval_",),
    bookkeeping=frozenset({"epoch", "global_step", "total_flos"}),
    run_totals=frozenset({"train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss"}),
    cumulative=("num_tokens",),
    prefixes=(("train/", ""), ("eval/", "eval_")),  # transformers' integrations rewrite the names so
    optimizer_steps=1,
)
