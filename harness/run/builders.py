"""``BUILDERS``, the one table from a ``type:`` to what makes it, and the workers of a run.

Everything is made in the process in which it works: plain functions, so that they can be sent there. Heavy imports
happen inside the makers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from harness.core.plugins import PluginKind, make_plugin
from harness.core.protocols import Engine, Task
from harness.core.trace import HookedTracer, InterruptingTracer, Tracer
from harness.core.types import SamplingParams
from harness.engines.stop_strings import SpecialTokens, decode_text
from harness.learner import TrainerOptions
from harness.learner.optimizer import Schedule
from harness.learner.plugins import PluginAdvantage, PluginLoss
from harness.run.data_files import fields_of
from harness.run.devices import resolve_device
from harness.run.fitting import FittingTask, context_of
from harness.run.overlapped_publish import OverlappedPublish
from harness.run.parts import StopSignal
from harness.run.policy import Policy, response_ends
from harness.run.workers import (
    Encode,
    GeneratorWorker,
    LearnerWorker,
    ProbeRow,
    ScorerWorker,
    Trainer,
    first_probe_rows,
)
from harness.scenario.batch_plan import num_tokens
from harness.scenario.derived import in_shards, mesh_shape, microbatches, offloaded, zero_stage
from harness.scenario.lanes import rank_lanes
from harness.scenario.schema import Scenario
from harness.tasks.scoring import DirectRewards, GroupRewards, TimedRewards
from harness.transports.protocol import TransportOptions, WeightReceiver, WeightSender

if TYPE_CHECKING:
    import torch

    from harness.learner import PolicyTrainer
    from harness.learner.offload import Offload
    from harness.learner.process_group import RankGroup
    from harness.learner.ranks import Ranks
    from harness.run.rank_worker import LearnerRank

EXACT_BOUND, ROUNDED_BOUND = 1e-4, 0.5


def _keyword_task(settings: Any) -> Task:
    if settings.train is not None:
        from harness.tasks.keyword_files import KeywordFileTask

        return KeywordFileTask(settings.train, settings.validation, fields_of(settings))
    from harness.tasks.keywords import KeywordTask

    return KeywordTask(settings.keywords_per_prompt, settings.train_prompts, settings.validation_prompts, settings.seed)


def _jsonl_task(settings: Any) -> Task:
    from harness.tasks.jsonl import JsonlTask

    return JsonlTask(
        settings.train,
        settings.reward,
        validation=settings.validation,
        validation_fraction=settings.validation_fraction,
        fields=fields_of(settings),
    )


def _maths_task(settings: Any) -> Task:
    from harness.tasks.maths.task import MathsTask

    return MathsTask(
        settings.train,
        validation=settings.validation,
        validation_fraction=settings.validation_fraction,
        format=settings.format,
        prompt=settings.prompt,
        reward=settings.reward,
        fields=fields_of(settings),
    )


def _arithmetic_task(settings: Any) -> Task:
    from harness.tasks.arithmetic import ArithmeticTask

    return ArithmeticTask(settings.train_prompts, settings.validation_prompts, settings.seed)


def _sorting_task(settings: Any) -> Task:
    from harness.tasks.sorting import SortingTask

    return SortingTask(settings.reward)


def _preset_policy(scenario: Scenario, device: str, should_stop: StopSignal) -> Policy:
    from harness.learner.warm_start import initial_policy, policy_without_weights, warm_start_policy

    settings: Any = scenario.model
    if device == "meta":
        model, tokenizer = policy_without_weights(settings.preset)
    elif settings.warm_start:
        model, tokenizer, _ = warm_start_policy(
            settings.preset,
            threads=settings.threads,
            keywords_per_prompt=getattr(scenario.task, "keywords_per_prompt", 2),
            should_stop=should_stop,
        )
    else:
        model, tokenizer = initial_policy(settings.preset)
    return Policy(model.to(device), tokenizer, model.config.max_position_embeddings)


def _folder_policy(scenario: Scenario, device: str, should_stop: StopSignal) -> Policy:
    import torch

    from harness.models.config import context_length
    from harness.models.storage import load_policy

    settings: Any = scenario.model
    model, tokenizer = load_policy(settings.path, device, dtype=getattr(torch, settings.dtype))
    return Policy(model, tokenizer, context_length(model.config))


def _sorting_policy(scenario: Scenario, device: str, should_stop: StopSignal) -> Policy:
    from harness.models.sorting import sorting_policy

    model, tokenizer = sorting_policy(scenario.seed)
    return Policy(model.to("cpu" if device == "meta" else device), tokenizer, None)


def _paced_policy(scenario: Scenario, device: str, should_stop: StopSignal) -> Policy:
    from harness.engines.paced import PacedTokenizer

    return Policy(None, PacedTokenizer(), None)


def _policy_trainer(
    scenario: Scenario,
    policy: Policy,
    should_stop: StopSignal,
    ranks: Ranks | None = None,
    offload: Offload | None = None,
) -> PolicyTrainer:
    from harness.learner import PolicyTrainer

    assert policy.model is not None
    options = trainer_options(scenario)
    stop = sampling_for(scenario, make_task(scenario)).stop if options.ban_eos_first else ()
    ends = response_ends(policy, stop).ids
    return PolicyTrainer(policy.model, policy.padding, options, should_stop, ends, ranks, offload)


def _offload(scenario: Scenario, tracer: Tracer, device: str, lane: str = "learner") -> tuple[Offload, Tracer]:
    """Return what moves a Learner's memory, and the tracer with which the other stages of its lane are recorded."""
    from harness.learner.offload import FileTarget, Offload, PinnedTarget

    settings = scenario.learner.offload
    if settings is None or scenario.model.type == "paced":
        return Offload(), tracer
    tracer = InterruptingTracer(tracer)
    target = PinnedTarget() if device == "cuda" else FileTarget()
    return Offload(offloaded(scenario), target, tracer, lane), tracer


def _paced_trainer(
    scenario: Scenario, policy: Policy, should_stop: StopSignal, ranks: None = None, offload: Offload | None = None
) -> Trainer:
    from harness.learner.paced import PacedTrainer

    settings: Any = scenario.model
    options, groups = trainer_options(scenario), scenario.prompts_per_batch
    return PacedTrainer(settings.update_s, settings.megabytes, settings.tensors, options, groups)


def _native_engine(scenario: Scenario, policy: Policy, device: str, should_stop: StopSignal) -> Engine:
    from harness.engines.native import native_engine

    settings: Any = scenario.engine
    assert policy.model is not None
    return native_engine(
        policy.model,
        policy.tokenizer,
        precision=settings.precision,
        kv_cache=settings.kv_cache,
        device=device,
        max_batch=settings.max_batch,
        should_stop=should_stop,
        ends=policy.ends,
    )


def _vllm_engine(scenario: Scenario, policy: Policy, device: str, should_stop: StopSignal) -> Engine:
    from harness.engines.vllm import vllm_engine
    from harness.engines.vllm_options import ALONE
    from harness.run.memory.generator import beside_vllm
    from harness.run.memory.shape import shape_for

    assert policy.model is not None
    settings: Any = scenario.engine
    return vllm_engine(
        settings,
        policy.model,
        policy.tokenizer,
        ends=policy.ends,
        device=device,
        sleeps=scenario.placement.colocated,
        neighbours=beside_vllm(scenario, shape_for(scenario)[0]) if device == "cuda" else ALONE,
        should_stop=should_stop,
    )


def _sglang_engine(scenario: Scenario, policy: Policy, device: str, should_stop: StopSignal) -> Engine:
    from harness.engines.sglang import sglang_engine

    assert policy.model is not None
    settings: Any = scenario.engine
    return sglang_engine(
        settings, policy.model, policy.tokenizer, ends=policy.ends, device=device, should_stop=should_stop
    )


def _paced_engine(scenario: Scenario, policy: Policy, device: str, should_stop: StopSignal) -> Engine:
    from harness.engines.paced import PacedEngine

    settings: Any = scenario.engine
    return PacedEngine(settings.generate_s, settings.spread, scenario.prompts_per_batch, should_stop=should_stop)


TASK_PLUGIN = PluginKind(
    "task", "task.type", "(**options) -> Task", "docs.examples.own_parts.parts:Counting", protocol=Task
)
"""Made with the scenario's ``task.options``."""
ENGINE_PLUGIN = PluginKind(
    "engine",
    "engine.type",
    "(model, tokenizer, **options) -> Engine",
    "docs.examples.own_parts.parts:Remote",
    arguments=("model", "tokenizer", "ends", "device", "precision", "max_batch", "should_stop"),
    protocol=Engine,
)
"""Made with those of these arguments that it names, and the scenario's ``engine.options``."""


def _plugin_task(settings: Any) -> Task:
    task: Task = make_plugin(settings.type, TASK_PLUGIN, {}, settings.options)
    return task


def _plugin_engine(scenario: Scenario, policy: Policy, device: str, should_stop: StopSignal) -> Engine:
    settings: Any = scenario.engine
    given = {
        "model": policy.model,
        "tokenizer": policy.tokenizer,
        "ends": policy.ends,
        "device": device,
        "precision": settings.precision,
        "max_batch": settings.max_batch,
        "should_stop": should_stop,
    }
    engine: Engine = make_plugin(settings.type, ENGINE_PLUGIN, given, settings.options)
    return engine


OWN = "own"
"""Stands in the table for every type of the form ``package.module:Name``."""
BUILDERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("task", "keywords"): _keyword_task,
    ("task", "jsonl"): _jsonl_task,
    ("task", "maths"): _maths_task,
    ("task", "arithmetic"): _arithmetic_task,
    ("task", "sorting"): _sorting_task,
    ("task", OWN): _plugin_task,
    ("model", "preset"): _preset_policy,
    ("model", "folder"): _folder_policy,
    ("model", "paced"): _paced_policy,
    ("model", "sorting"): _sorting_policy,
    ("trainer", "preset"): _policy_trainer,
    ("trainer", "folder"): _policy_trainer,
    ("trainer", "paced"): _paced_trainer,
    ("trainer", "sorting"): _policy_trainer,
    ("engine", "native"): _native_engine,
    ("engine", "vllm"): _vllm_engine,
    ("engine", "sglang"): _sglang_engine,
    ("engine", "paced"): _paced_engine,
    ("engine", OWN): _plugin_engine,
}


def builder(part: str, type_name: str) -> Callable[..., Any]:
    """Return what makes a part of this type."""
    return BUILDERS[part, OWN if ":" in type_name else type_name]


def plugin_functions(scenario: Scenario) -> tuple[PluginLoss | None, PluginAdvantage | None]:
    """Return the plugins of loss and advantage, each tried once; None for what the scenario does not name.

    Raises:
        UserError: one of them cannot be used.
    """
    loss, advantage = scenario.loss.function, scenario.advantage.function
    return (
        None if loss is None else PluginLoss(loss, scenario.needs_reference),
        None if advantage is None else PluginAdvantage(advantage, scenario.group_size),
    )


def trainer_options(scenario: Scenario) -> TrainerOptions:
    """Return how the Learner trains.

    Raises:
        UserError: a plugin of loss or advantage cannot be used.
    """
    from harness.models.flops import group_flops
    from harness.run.memory.shape import shape_for

    optimizer, shape = scenario.optimizer, shape_for(scenario)[0]
    own_loss, own_advantage = plugin_functions(scenario)
    return TrainerOptions(
        group_size=scenario.group_size,
        loss=scenario.loss.model_copy(update={"constant": scenario.loss_constant}),
        advantage=scenario.advantage,
        optimizer=optimizer,
        own_loss=own_loss,
        own_advantage=own_advantage,
        ban_eos_first=scenario.banned_eos_tokens,
        temperature=scenario.sampling.temperature,
        epochs_per_batch=scenario.epochs_per_batch,
        minibatches_per_epoch=scenario.minibatches_per_epoch,
        shuffle_minibatches=scenario.shuffle_minibatches,
        seed=scenario.seed,
        gradient_accumulation_steps=microbatches(scenario),
        behaviour_is_engine=scenario.behaviour_is_older,
        schedule=Schedule(
            optimizer.schedule,
            scenario.warmup_optimizer_steps,
            scenario.num_optimizer_steps,
            optimizer.min_learning_rate_ratio,
        ),
        precision=scenario.model.precision,
        gradient_checkpointing=getattr(scenario.model, "gradient_checkpointing", False),
        balance=scenario.learner.balance,
        group_cost=num_tokens if shape is None else partial(group_flops, shape),
    )


def mismatch_bound(scenario: Scenario) -> float | None:
    """Return the largest gap allowed between engine and Learner log-probs after a weight sync; None: not measured.

    Engines of other makers are always measured: by default within 1e-4 where engine and Learner compute in float32,
    else 0.5.
    """
    settings: Any = scenario.engine
    if settings.type == "paced":
        return None
    asked: float | None = settings.mismatch_bound
    if asked is not None or settings.type not in ("vllm", "sglang"):
        return asked
    model: Any = scenario.model
    exact = settings.precision == model.precision == getattr(model, "dtype", "float32") == "float32"
    return EXACT_BOUND if exact else ROUNDED_BOUND


def never() -> bool:
    """The stop signal of an actor: it is ended with its process."""
    return False


def make_task(scenario: Scenario) -> Task:
    """Return the scenario's task.

    Raises:
        UserError: a file or a reward function cannot be used.
    """
    task: Task = builder("task", scenario.task.type)(scenario.task)
    return task


def make_policy(scenario: Scenario, device: str, should_stop: StopSignal) -> Policy:
    """Return the policy before the first training step; on ``meta`` without weights, for ranks that are handed theirs.

    Raises:
        UserError: the model cannot be used.
        Interrupted: ``should_stop`` returned True.
    """
    if scenario.uses_gpu(has_gpu=True):
        from harness.models.layers import avoid_cudnn_attention

        avoid_cudnn_attention()
    policy: Policy = BUILDERS["model", scenario.model.type](scenario, device, should_stop)
    return policy.with_ends(chat=getattr(scenario.task, "chat_template", False))


def make_rewards(scenario: Scenario, task: Task, should_stop: StopSignal) -> GroupRewards:
    """Return what rewards a group: a process of its own where the task's reward has a time limit."""
    timeout_s = getattr(scenario.task, "reward_timeout_s", None)
    if timeout_s is None:
        return DirectRewards(task.reward, should_stop)
    return TimedRewards(task.reward, timeout_s, should_stop)


def prompt_encoder(scenario: Scenario, policy: Policy) -> Encode:
    """Return what makes token ids of a prompt: the tokenizer, through its chat template where the task asks for it.

    Raises:
        UserError: the tokenizer has no chat template, or it cannot be used.
    """
    from harness.models.chat import chat_encoder, text_encoder

    settings: Any = scenario.task
    if not getattr(settings, "chat_template", False):
        return text_encoder(policy.tokenizer)
    return chat_encoder(policy.tokenizer, settings.system_prompt, settings.chat_template_kwargs)


def response_text(scenario: Scenario, task: Task, policy: Policy) -> Callable[[Sequence[int]], str]:
    """Return what makes the text that is rewarded of a response's token ids."""
    if scenario.sampling.skip_special_tokens:
        return partial(decode_text, policy.tokenizer)
    ends = response_ends(policy, sampling_for(scenario, task).stop).ids
    return SpecialTokens(policy.tokenizer, ends).text


def fitting_task(scenario: Scenario, task: Task, policy: Policy) -> Task:
    """Return the task, without prompts that are too long where they are to be left out.

    Raises:
        UserError: no prompt is left.
    """
    context, _ = context_of(scenario, policy)
    if context is None or not getattr(scenario.task, "filter_overlong_prompts", False):
        return task
    return FittingTask(task, prompt_encoder(scenario, policy), scenario.sampling.max_tokens, context)


def make_generator(
    scenario: Scenario,
    *,
    lane: str,
    receiver: WeightReceiver,
    task: Task,
    policy: Policy,
    tracer: Tracer,
    should_stop: StopSignal,
) -> GeneratorWorker:
    """Return a Generator's worker."""
    device, sampling = resolve_device(scenario, scenario.placement.generator), sampling_for(scenario, task)
    engine: Engine = builder("engine", scenario.engine.type)(scenario, policy, device, should_stop)
    return GeneratorWorker(
        engine,
        receiver,
        task=task,
        encode=prompt_encoder(scenario, policy),
        sampling=sampling,
        tracer=tracer,
        lane=lane,
        mismatch_bound=mismatch_bound(scenario),
        special=SpecialTokens(policy.tokenizer, response_ends(policy, sampling.stop).ids),
        skip_special=scenario.sampling.skip_special_tokens,
    )


def sampling_for(scenario: Scenario, task: Task) -> SamplingParams:
    """Return how responses are sampled: as the scenario says, ended by the task's own stop strings too."""
    sampling = scenario.sampling.to_params()
    return replace(sampling, stop=tuple(dict.fromkeys((*sampling.stop, *getattr(task, "stop", ())))))


def make_scorer(scenario: Scenario, lane: str, task: Task, tracer: Tracer, should_stop: StopSignal) -> ScorerWorker:
    """Return a Scorer's worker."""
    return ScorerWorker(make_rewards(scenario, task, should_stop), scenario.evaluation.examples, tracer, lane)


def make_learner(
    scenario: Scenario,
    *,
    sender: WeightSender,
    policy: Policy,
    tracer: Tracer,
    should_stop: StopSignal,
    task: Task | None = None,
) -> LearnerWorker:
    """Return the Learner's worker; without a task it makes one where weight syncs are proven by its prompts."""
    offload, tracer = _offload(scenario, tracer, resolve_device(scenario, scenario.placement.learner))
    trainer = BUILDERS["trainer", scenario.model.type](scenario, policy, should_stop, None, offload)
    save = partial(_save_policy, policy) if scenario.save_policy and policy.model is not None else None
    proven = mismatch_bound(scenario) is not None
    probe = _first_probe(scenario, policy, task) if proven else None
    return LearnerWorker(
        trainer,
        sender,
        tracer=tracer,
        verify=scenario.verifies_weights,
        save=save,
        first_probe=probe,
        offload=offload,
        overlapped=_overlapped_publish(scenario),
        publish_dtype=_publish_dtype(scenario),
    )


def _first_probe(scenario: Scenario, policy: Policy, task: Task | None = None) -> list[ProbeRow]:
    task = task or fitting_task(scenario, make_task(scenario), policy)
    return first_probe_rows(task, prompt_encoder(scenario, policy))


def _publish_dtype(scenario: Scenario) -> torch.dtype | None:
    """Return the type in which weights travel; None: that in which they are trained."""
    if scenario.travel_dtype == getattr(scenario.model, "dtype", "float32"):
        return None
    import torch

    dtype: torch.dtype = getattr(torch, scenario.travel_dtype)
    return dtype


def make_learner_rank(
    scenario: Scenario, *, options: TransportOptions, policy: Policy, tracer: Tracer, group: RankGroup, device: str
) -> LearnerRank:
    """Return the worker of one of the Learner's ranks, whose group there is already."""
    from harness.run.rank_worker import LearnerRank
    from harness.run.slow_rank import SlowComputing
    from harness.transports.catalogue import transport_kind  # loads Ray
    from harness.transports.sharded import rank_sender

    proven, name, slow = mismatch_bound(scenario) is not None, scenario.transport.type, scenario.faults.slow_rank
    lane = rank_lanes(scenario)[group.rank]
    offload, tracer = _offload(scenario, tracer, device, lane)
    tracer = HookedTracer(tracer, group.calls)
    trainer = _policy_trainer(scenario, policy, never, _ranks(scenario, device), offload)
    if slow is not None and slow.rank == group.rank:
        SlowComputing(trainer.model, slow.share)
    return LearnerRank(
        trainer,
        rank_sender(name, options, group.rank) if in_shards(scenario) else transport_kind(name).sender(options),
        tracer=tracer,
        group=group,
        publish=scenario.learner.publish,
        verify=scenario.verifies_weights,
        save=partial(_save_policy, policy) if scenario.save_policy else None,
        first_probe=_first_probe(scenario, policy) if proven else None,
        offload=offload,
        lane=lane,
        overlapped=_overlapped_publish(scenario),
    )


def _overlapped_publish(scenario: Scenario) -> OverlappedPublish | None:
    return OverlappedPublish(scenario.faults.stall_after_s) if scenario.learner.overlapped_publish else None


def _ranks(scenario: Scenario, device: str) -> Ranks:
    from harness.learner.deepspeed import DeepSpeedRanks
    from harness.learner.ranks import FsdpRanks

    settings = scenario.learner
    if settings.sharding == "deepspeed":
        return DeepSpeedRanks(zero_stage(scenario), precision=scenario.model.precision, device=device)
    return FsdpRanks(
        settings.sharding,
        mesh_shape(scenario),
        device=device,
        keeps_buckets="gradients" in offloaded(scenario),
    )


def _save_policy(policy: Policy, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    from harness.models.storage import save_policy

    assert policy.model is not None
    save_policy(policy.model, policy.tokenizer, folder, weights)
