"""TRL's ``GRPOTrainer``: 1.16 as it is, with the form of before, where ``profiling_context`` was a generator.

TRL times its stages with a context of its own. That is the seam of generation, weight sync, rewards and log-probs; the
Trainer of transformers, on which it stands, has those of a step, its backward pass and its optimizer. Spans lie within
each other, and an instant is of the one that began last: ``update`` gets of ``training_step`` what nothing else has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from harness.record.recording import count, lane, metrics, span
from harness.record.seams import Seam, Shim, Wrap
from harness.record.timers import begin_step

STAGES = {
    "transformers.generate": "generate",
    "transformers.generate_batch": "generate",
    "vLLM.generate": "generate",
    "sync_weights": "weight_transfer",
    "_calculate_rewards": "score",
    "_prepare_inputs": "prepare_batch",
    "compute_loss": "update",
}
"""TRL's names of what it times, without the trainer's. What else it times within rewards is a reward function."""
LOGPROBS = "_get_per_token_logps_and_entropies"
_OF_LOGPROBS = (LOGPROBS, "_get_last_hidden_state")
REWARD = "score"
EVALUATE = "evaluate"
_doing = threading.local()


def stage_of(name: str, stages: Mapping[str, str] = STAGES) -> str:
    """Return our stage of what TRL times under a name; the name itself where it is none of TRL's own.

    Log-probabilities are ``old_logprobs``, of the reference ``reference_logprobs``, and within the loss ``update``. An
    evaluation is ``evaluate`` with all that is in it.
    """
    if EVALUATE in _stack():
        return EVALUATE
    name = name.rpartition(".")[2] if name.startswith("GRPOTrainer.") else name
    if name in _OF_LOGPROBS:
        return "update" if "update" in _stack() else str(getattr(_doing, "logprobs", "old_logprobs"))
    if name in stages:
        return stages[name]
    return REWARD if REWARD in _stack() else name


def _stack() -> list[str]:
    stack: list[str] = _doing.__dict__.setdefault("stack", [])
    return stack


def _entered(enter: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(self: Any) -> Any:
        stage = stage_of(self.name)
        self._recorded = span(stage).__enter__()
        _stack().append(stage)
        return enter(self)

    return recorded


def _left(leave: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(self: Any, *error: Any) -> Any:
        try:
            return leave(self, *error)
        finally:
            if (inner := self.__dict__.pop("_recorded", None)) is not None:
                _stack().pop()
                inner.__exit__(*error)

    return recorded


def context_of(stages: Mapping[str, str]) -> Wrap:
    """Record a ``profiling_context`` that is a generator, as TRL's before 0.25: nothing but its name can be seen."""

    def wrap(context: Callable[..., AbstractContextManager[Any]]) -> Callable[..., AbstractContextManager[Any]]:
        if not hasattr(context, "__wrapped__"):  # a factory of the class, whose own seams record
            return context

        @contextmanager
        def recorded(trainer: Any, name: str) -> Iterator[Any]:
            stage = stage_of(name, stages)
            _stack().append(stage)
            try:
                with span(stage), context(trainer, name) as value:
                    yield value
            finally:
                _stack().pop()

        return recorded

    return wrap


def logprobs(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Tell the reference model's log-probabilities, of which the timer has but one name, from the policy's."""

    def recorded(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        reference = getattr(self, "ref_model", None)
        before = getattr(_doing, "logprobs", "old_logprobs")
        _doing.logprobs = "reference_logprobs" if reference is not None and model is reference else "old_logprobs"
        try:
            return compute(self, model, *args, **kwargs)
        finally:
            _doing.logprobs = before

    return recorded


def _generated(generate: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = generate(self, *args, **kwargs)
        mask = batch.get("completion_mask") if isinstance(batch, dict) else None
        if mask is not None and self.model.training:
            count(tokens=int(mask.sum()), rollouts=int(mask.shape[0]))
        return batch

    return recorded


def _evaluated(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        _stack().append(EVALUATE)
        try:
            with span(EVALUATE):
                return evaluate(self, *args, **kwargs)
        finally:
            _stack().pop()

    return recorded


def _training_step(train: Callable[..., Any]) -> Callable[..., Any]:
    """Forward and backward; after the last of a step the update goes on to its end: clipping, optimizer, schedule."""

    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        with span("update"):
            loss = train(self, *args, **kwargs)
        if self.accelerator.sync_gradients:
            _doing.update = span("update").__enter__()
        return loss

    return recorded


def _with_callback(make: Callable[..., None]) -> Callable[..., None]:
    """A Trainer that tells of its steps."""

    def recorded(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        from transformers import TrainerCallback

        class Steps(TrainerCallback):  # type: ignore[misc,unused-ignore]
            """Begin and end of each training step, and what is logged."""

            def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                self.step = begin_step(int(state.global_step))

            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                if (update := _doing.__dict__.pop("update", None)) is not None:
                    update.__exit__(None, None, None)
                self.step.__exit__(None, None, None)

            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
                metrics({name: value for name, value in (logs or {}).items() if isinstance(value, int | float)})

        self.add_callback(Steps())
        if self.args.world_size > 1:
            lane(f"learner/{self.args.process_index}")

    return recorded


HF_TRAINER = (
    Seam("Trainer.__init__", _with_callback),
    Seam("Trainer.get_batch_samples", "prepare_batch"),
    Seam("Trainer.training_step", _training_step),
    Seam("Trainer._maybe_log_save_evaluate", "log"),
    Seam("Trainer.evaluate", _evaluated),
    Seam("Trainer._save_checkpoint", "checkpoint"),
)
"""The Trainer of transformers, on which others stand too."""
SHIM = Shim(
    "trl",
    {
        "trl.extras.profiling": (
            Seam("ProfilingContext.__enter__", _entered, "context"),
            Seam("ProfilingContext.__exit__", _left, "context"),
            Seam("profiling_context", context_of(STAGES), "context"),
        ),
        "trl.trainer.grpo_trainer": (
            Seam(f"GRPOTrainer.{LOGPROBS}", logprobs),
            Seam("GRPOTrainer._generate_and_score_completions", _generated),
        ),
        "transformers.trainer": HF_TRAINER,
    },
)
