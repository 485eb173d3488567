"""``BUILDERS``: the one table from a ``type:`` to what makes it. Heavy imports happen inside the makers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from harness.core.protocols import Engine, Task
from harness.run.options import trainer_options
from harness.run.parts import StopSignal
from harness.run.workers import Trainer
from harness.scenario import Scenario


@dataclass(frozen=True)
class Policy:
    """A model (None in a paced run) with its tokenizer, and how many tokens its context holds (None if unknown)."""

    model: nn.Module | None
    tokenizer: Any  # a Hugging Face tokenizer
    context: int | None

    @property
    def num_parameters(self) -> int | None:
        """Trainable parameters, shared ones once; None without a model."""
        return None if self.model is None else sum(parameter.numel() for parameter in self.model.parameters())


def _keyword_task(settings: Any) -> Task:
    if settings.train is not None:
        from harness.tasks.keyword_files import KeywordFileTask

        return KeywordFileTask(settings.train, settings.validation)
    from harness.tasks.keywords import KeywordTask

    return KeywordTask(settings.keywords_per_prompt, settings.train_prompts, settings.validation_prompts, settings.seed)


def _jsonl_task(settings: Any) -> Task:
    from harness.tasks.jsonl import JsonlTask

    return JsonlTask(
        settings.train,
        settings.reward,
        validation=settings.validation,
        validation_fraction=settings.validation_fraction,
        prompt_field=settings.prompt_field,
        answer_field=settings.answer_field,
    )


def _maths_task(settings: Any) -> Task:
    from harness.tasks.maths import MathsTask

    return MathsTask(
        settings.train,
        validation=settings.validation,
        validation_fraction=settings.validation_fraction,
        format=settings.format,
        prompt=settings.prompt,
        symbolic_timeout_s=settings.symbolic_timeout_s,
    )


def _arithmetic_task(settings: Any) -> Task:
    from harness.tasks.arithmetic import ArithmeticTask

    return ArithmeticTask(settings.train_prompts, settings.validation_prompts, settings.seed)


def _sorting_task(settings: Any) -> Task:
    from harness.tasks.sorting import SortingTask

    return SortingTask(settings.reward)


def _preset_policy(scenario: Scenario, device: str, should_stop: StopSignal) -> Policy:
    from harness.learner.warm_start import initial_policy, warm_start_policy

    settings: Any = scenario.model
    if settings.warm_start:
        model, tokenizer, _ = warm_start_policy(
            settings.preset,
            settings.warm_start_seed,
            threads=settings.threads,
            keywords_per_prompt=getattr(scenario.task, "keywords_per_prompt", 2),
            should_stop=should_stop,
        )
    else:
        model, tokenizer = initial_policy(settings.preset, settings.warm_start_seed)
    return Policy(model.to(device), tokenizer, model.config.max_position_embeddings)


def _folder_policy(scenario: Scenario, device: str, should_stop: StopSignal) -> Policy:
    import torch

    from harness.models.storage import load_policy

    settings: Any = scenario.model
    model, tokenizer = load_policy(settings.path, device, dtype=getattr(torch, settings.dtype))
    return Policy(model, tokenizer, getattr(model.config, "max_position_embeddings", None))


def _sorting_policy(scenario: Scenario, device: str, should_stop: StopSignal) -> Policy:
    from harness.models.sorting import sorting_policy

    settings: Any = scenario.model
    model, tokenizer = sorting_policy(scenario.seed if settings.seed is None else settings.seed)
    return Policy(model.to(device), tokenizer, None)


def _paced_policy(scenario: Scenario, device: str, should_stop: StopSignal) -> Policy:
    from harness.engines.paced import PacedTokenizer

    return Policy(None, PacedTokenizer(), None)


def _policy_trainer(scenario: Scenario, policy: Policy, should_stop: StopSignal) -> Trainer:
    from harness.learner import PolicyTrainer

    assert policy.model is not None
    return PolicyTrainer(policy.model, policy.tokenizer.pad_token_id, trainer_options(scenario), should_stop)


def _folder_trainer(scenario: Scenario, policy: Policy, should_stop: StopSignal) -> Trainer:
    trainer = _policy_trainer(scenario, policy, should_stop)
    settings: Any = scenario.model
    if settings.gradient_checkpointing:
        from harness.models.checkpointing import checkpoint_layers

        assert policy.model is not None
        checkpoint_layers(policy.model)  # after the trainer put the model into evaluation mode
    return trainer


def _paced_trainer(scenario: Scenario, policy: Policy, should_stop: StopSignal) -> Trainer:
    from harness.learner.paced import PacedTrainer

    settings: Any = scenario.model
    return PacedTrainer(settings.update_s, settings.megabytes, settings.tensors, trainer_options(scenario))


def _native_engine(scenario: Scenario, policy: Policy, device: str, should_stop: StopSignal) -> Engine:
    from harness.engines.native import native_engine

    settings: Any = scenario.engine
    assert policy.model is not None
    return native_engine(
        policy.model,
        policy.tokenizer,
        precision=settings.precision,
        device=device,
        max_batch=settings.max_batch,
        should_stop=should_stop,
    )


def _vllm_engine(scenario: Scenario, policy: Policy, device: str, should_stop: StopSignal) -> Engine:
    from harness.engines.vllm import vllm_engine
    from harness.engines.vllm_memory import ALONE
    from harness.models.scenario_shape import shape_for
    from harness.run.memory.plan import beside_vllm

    assert policy.model is not None
    return vllm_engine(
        scenario.engine,
        policy.model,
        policy.tokenizer,
        device=device,
        sleeps=scenario.placement.colocated,
        neighbours=beside_vllm(scenario, shape_for(scenario)[0]) if device == "cuda" else ALONE,
        should_stop=should_stop,
    )


def _sglang_engine(scenario: Scenario, policy: Policy, device: str, should_stop: StopSignal) -> Engine:
    from harness.engines.sglang import sglang_engine

    assert policy.model is not None
    sleeps = scenario.placement.colocated
    return sglang_engine(
        scenario.engine, policy.model, policy.tokenizer, device=device, sleeps=sleeps, should_stop=should_stop
    )


def _fake_engine(scenario: Scenario, policy: Policy, device: str, should_stop: StopSignal) -> Engine:
    from harness.engines.fake import FakeEngine

    return FakeEngine(policy.tokenizer, vocab_size=len(policy.tokenizer), should_stop=should_stop)


def _paced_engine(scenario: Scenario, policy: Policy, device: str, should_stop: StopSignal) -> Engine:
    from harness.engines.paced import PacedEngine

    settings: Any = scenario.engine
    return PacedEngine(settings.generate_s, settings.spread, scenario.prompts_per_batch, should_stop=should_stop)


BUILDERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("task", "keywords"): _keyword_task,
    ("task", "jsonl"): _jsonl_task,
    ("task", "maths"): _maths_task,
    ("task", "arithmetic"): _arithmetic_task,
    ("task", "sorting"): _sorting_task,
    ("model", "preset"): _preset_policy,
    ("model", "folder"): _folder_policy,
    ("model", "paced"): _paced_policy,
    ("model", "sorting"): _sorting_policy,
    ("trainer", "preset"): _policy_trainer,
    ("trainer", "folder"): _folder_trainer,
    ("trainer", "paced"): _paced_trainer,
    ("trainer", "sorting"): _policy_trainer,
    ("engine", "native"): _native_engine,
    ("engine", "vllm"): _vllm_engine,
    ("engine", "sglang"): _sglang_engine,
    ("engine", "fake"): _fake_engine,
    ("engine", "paced"): _paced_engine,
}
