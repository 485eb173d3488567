"""Fake loops on the shipped timers, loggers and methods of other trainers: ``python loops.py NAME``.

Each takes three steps; what a stage does is to sleep. It runs in a trainer's environment (``harness oracle --install``)
and knows nothing of being recorded: ``test_trainers.py`` says what the recording must hold.
"""

# mypy: disable-error-code="untyped-decorator, attr-defined"

from __future__ import annotations

import asyncio
import sys
import time
import typing
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import torch
import typing_extensions

from harness.oracle.peers.common import Absent

typing.TypedDict = typing_extensions.TypedDict  # SkyRL's configuration on Python 3.11
torch.set_num_threads(1)


def sleep(milliseconds: int) -> None:
    """Sleep."""
    time.sleep(milliseconds / 1000)


class Stub:
    """Has every attribute, is called with anything, and is false."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return Stub()

    def __bool__(self) -> bool:
        return False


def verl() -> None:
    """The timer that the trainer's module bound when it was imported; its figures; its logger."""
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import compute_data_metrics, marked_timer
    from verl.utils.tracking import Tracking

    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    ones = torch.ones(2, 3)
    tensors = dict.fromkeys(("token_level_scores", "token_level_rewards", "advantages", "returns"), ones)
    tensors |= {"prompts": mask, "responses": mask, "response_mask": mask, "attention_mask": torch.ones(2, 6)}
    logger = Tracking("project", "experiment", default_backend="console")

    class Trainer:
        def fit(self) -> None:
            for self.global_steps in range(1, 4):
                timing: dict[str, float] = {}
                with marked_timer("step", timing):
                    with marked_timer("gen", timing, color="red"):
                        sleep(30)
                    with marked_timer("reward", timing):
                        sleep(10)
                    with marked_timer("old_log_prob", timing):
                        sleep(15)
                    with marked_timer("ref", timing):
                        sleep(10)
                    with marked_timer("adv", timing):
                        sleep(5)
                    with marked_timer("update_actor", timing):
                        sleep(25)
                    with marked_timer("update_weights", timing):
                        sleep(5)
                with marked_timer("testing", timing):
                    sleep(5)
                metrics = compute_data_metrics(batch=DataProto.from_dict(tensors), use_critic=False)
                logger.log(data=metrics | {"actor/loss": self.global_steps / 2}, step=self.global_steps)

    Trainer().fit()


def skyrl() -> None:
    """Its timer with ``with`` and ``async with``; steps of one number, as in dynamic sampling."""
    from skyrl.train.fully_async_trainer import Timer
    from skyrl.train.trainer import RayPPOTrainer

    class Trainer:
        async def train(self) -> None:
            self.all_timings: dict[str, float] = {}
            for self.global_step in range(1, 4):
                for _ in range(2):
                    with Timer("step", self.all_timings):
                        async with Timer("generate", self.all_timings):
                            await asyncio.sleep(0.015)
                with Timer("step", self.all_timings):
                    with Timer("convert_to_training_input", self.all_timings), suppress(KeyError):
                        sleep(5)
                        RayPPOTrainer.convert_to_training_input(self, {"response_ids": [[1, 2, 3], [4, 5]]}, ["a", "a"])
                    with Timer("fwd_logprobs_values_reward", self.all_timings):
                        sleep(15)
                    with Timer("compute_advantages_and_returns", self.all_timings):
                        sleep(5)
                    with Timer("train_critic_and_policy", self.all_timings):
                        with Timer("policy_train", self.all_timings):
                            sleep(20)
                        with Timer("critic_train", self.all_timings):
                            sleep(5)
                    with Timer("sync_weights", self.all_timings):
                        sleep(5)
                with Timer("eval", self.all_timings):
                    sleep(5)

    asyncio.run(Trainer().train())


def areal() -> None:
    """Its tracker's context, by the module's name and by an object's; its figures as it exports them."""
    Absent("wandb", "swanlab", "trackio")
    from areal.trainer.rl_trainer import stats_tracker
    from areal.utils.stats_logger import StatsLogger

    timing = stats_tracker.record_timing
    for global_step in range(3):
        with timing("rollout"):
            sleep(30)
        with timing("ref_logp"):
            sleep(10)
        with timing("recompute_logp"):
            sleep(15)
        with timing("compute_advantage"):
            sleep(5)
        with stats_tracker.get("actor").record_timing("train_step"):
            sleep(25)
        with timing("update_weights"):
            sleep(5)
        with timing("save"), timing("my own"):
            sleep(5)
        with timing("rollout_offload"):
            sleep(5)
        with stats_tracker.scope("ppo_actor"):
            valid = torch.tensor([[True, True, True], [True, True, False]])
            stats_tracker.denominator(n_seqs=torch.ones(2, dtype=torch.bool), n_valid_tokens=valid)
        with suppress(AttributeError):
            StatsLogger.commit(SimpleNamespace(), 0, 0, global_step, stats_tracker.export_all())


def trinity() -> None:
    """Its Trainer's own ``train_step``, ``sync_weight`` and ``save_checkpoint``; verl's timer within a step."""
    from trinity.trainer.trainer import Timer, Trainer
    from trinity.utils.monitor import TensorboardMonitor
    from verl.utils.debug import marked_timer

    class Engine:
        global_steps = 0

        async def train_step(self, exps: list[Any]) -> dict[str, float]:
            self.global_steps += 1
            timing: dict[str, float] = {}
            with marked_timer("step", timing):
                with marked_timer("old_log_prob", timing):
                    sleep(15)
                with marked_timer("update_actor", timing):
                    sleep(25)
            return {"actor/loss": self.global_steps / 2}

        async def save_state_dict(self) -> None:
            sleep(5)

        async def save_checkpoint(self, **kwargs: Any) -> None:
            sleep(5)

    async def read(step: int) -> list[Any]:
        with Timer({}, "time/read_experience"):
            await asyncio.sleep(0.03)
        return [SimpleNamespace(tokens=[0] * 5, prompt_length=2), SimpleNamespace(tokens=[0] * 5, prompt_length=3)]

    async def train() -> None:
        from trinity.common.constants import SyncMethod

        logger = Stub()
        trainer = Stub(
            engine=Engine(), logger=logger, train_step_num=0, sync_method=SyncMethod.CHECKPOINT, last_sync_time=None
        )
        for step in range(1, 4):
            exps = await asyncio.create_task(read(step))
            figures = await Trainer.train_step(trainer, exps)
            trainer.train_step_num = step
            await Trainer.sync_weight(trainer)
            await Trainer.save_checkpoint(trainer)
            TensorboardMonitor.log(Stub(), data=figures, step=step)

    asyncio.run(train())


def tinker() -> None:
    """Its spans of an iteration, also of functions and of evaluation that looks back; its logger."""
    from tinker_cookbook.rl.train import trace
    from tinker_cookbook.utils.ml_log import MultiplexLogger

    @trace.scope
    async def train_step() -> None:
        async with trace.scope_span("train/fwd_bwd_substep_0_mb_0_enqueue"):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.015)

    @trace.scope
    async def evaluation_loop(step: int) -> None:
        with trace.trace_iteration(step=step):
            async with trace.scope_span("run_evals"):
                await asyncio.sleep(0.005)

    @trace.scope
    async def main() -> None:
        for batch in range(3):
            with trace.trace_iteration(step=batch) as window:
                async with trace.scope_span("sampling"):
                    await asyncio.sleep(0.03)
                with trace.scope_span_sync("assemble_training_data"):
                    sleep(5)
                await train_step()
            await evaluation_loop(batch - 1)
            figures = {"env/all/total_ac_tokens": 5, "env/all/total_episodes": 2}
            MultiplexLogger([]).log_metrics(window.get_timing_metrics() | figures, step=batch)

    asyncio.run(main())


def openrlhf() -> None:
    """Its Trainer's methods, on stand-ins for what is remote: Ray's calls, and the engines."""
    Absent("flash_attn", "vllm")
    from openrlhf.trainer import ppo_trainer
    from openrlhf.trainer.ppo_utils import experience_maker
    from openrlhf.trainer.ppo_utils.experience import Experience
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

    args = Stub(critic=Stub(freezing_steps=-1), logger=Stub(logging_steps=1), ckpt=Stub(save_steps=1e9))
    args.rollout = Stub(batch_size=1, n_samples_per_prompt=2, vllm_generate_batch_size=1)
    args.ds = Stub(ring_attn_size=1, tensor_parallel_size=1, enable_sleep=False)

    class Sampler(SamplesGenerator):  # type: ignore[misc]
        def __init__(self) -> None:
            self.args, self.prompts_dataloader, self.eval_dataloader = args, [0] * 9, [0]

        def _generate_vllm(self, **kwargs: Any) -> tuple[list[Experience], int, bool]:
            sleep(5 if "_eval_dataloader_iter" in self.__dict__ and self._eval_dataloader_iter else 30)
            ones = torch.ones(1, 3)
            made = [
                Experience(
                    sequences=torch.ones(1, 4, dtype=torch.long), action_mask=ones, rewards=torch.ones(1),
                    response_length=torch.tensor([length]), truncated=torch.zeros(1), info={"reward": torch.ones(1)},
                )
                for length in (3, 2)
            ]  # fmt: skip
            return made, 1, "_eval_dataloader_iter" in self.__dict__

    class Maker(experience_maker.RemoteExperienceMaker):  # type: ignore[misc]
        def __init__(self) -> None:
            self.strategy, self.args = Stub(args=args), args
            self.critic_model_group = self.reward_model_group = self.initial_model_group = None
            self.actor_model_group = Stub()

        def split_rollout_samples(self, samples: list[Any]) -> list[Any]:
            sleep(5)
            return samples

        def _dispatch_forward(self, *args: Any, **kwargs: Any) -> None:
            sleep(15)

        def _flatten_results(self, *args: Any) -> list[Any]:
            return [torch.zeros(1, 3)] * 2

        def compute_advantages_and_returns(self, experiences: list[Any]) -> list[Any]:
            return experiences

    def run(name: str, **kwargs: Any) -> list[dict[str, float]]:
        sleep({"append": 0, "fit": 25, "broadcast_to_vllm": 5}[name])
        return [{"policy_loss": 0.5}]

    group = Stub(
        async_run_method=lambda method_name, **kwargs: run(method_name),
        async_run_method_batch=lambda method_name, **kwargs: run(method_name),
    )
    ppo_trainer.ray = experience_maker.ray = SimpleNamespace(get=lambda found: found, put=lambda value: value)

    class Trainer(ppo_trainer.BasePPOTrainer):  # type: ignore[misc]
        def __init__(self) -> None:
            self.args, self.actor_model_group, self.critic_model_group = args, group, None
            self.experience_maker, self.vllm_engines, self.kl_ctl = Maker(), (), Stub()
            self.tokenizer = SimpleNamespace(decode=lambda *args, **kwargs: ["text"])
            self.wandb_logger = self.tensorboard_logger = None

        def fit(self, global_step: int = 0) -> None:
            sampler = Sampler()
            for _ in range(3):
                samples = sampler.generate_samples()[0]
                status, global_step = self.train_step(samples, global_step)
                self.save_logs_and_checkpoints(global_step, status)
            sampler.generate_eval_samples()

    Trainer().fit()


def swift() -> None:
    """Its context and decorator, as its GRPOTrainer bound them, on the Trainer of transformers that really trains."""
    import tempfile

    from swift.rlhf_trainers.grpo_trainer import GRPOTrainer, profiling_context, profiling_decorator
    from transformers import Trainer, TrainingArguments

    samples = [SimpleNamespace(response_token_ids=[[1, 2], [3]]), SimpleNamespace(response_token_ids=[[4, 5]])]

    class Fake(Trainer):
        @profiling_decorator
        def _prepare_inputs(self, inputs: Any) -> Any:
            with profiling_context(self, "generate"):
                sleep(30)
            self._score_completions()
            with suppress(TypeError):
                GRPOTrainer._prepare_batch_inputs(Stub(), samples)
            self._get_per_token_logps_and_entropies()
            return super()._prepare_inputs(inputs)

        @profiling_decorator
        def _score_completions(self) -> None:
            sleep(10)

        @profiling_decorator
        def _get_per_token_logps_and_entropies(self) -> None:
            sleep(15)

        @profiling_decorator
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self._get_per_token_logps_and_entropies()
            return model(inputs["x"]).sum()

    settings = TrainingArguments(
        output_dir=tempfile.mkdtemp(), max_steps=3, use_cpu=True, report_to="none", disable_tqdm=True, logging_steps=1,
        save_strategy="no", per_device_train_batch_size=1, remove_unused_columns=False,
    )  # fmt: skip
    settings.max_epochs = None  # what ms-swift's callback of the Trainer looks at
    data = [{"x": torch.ones(1), "labels": torch.ones(1)}] * 8
    Fake(torch.nn.Linear(1, 1), settings, train_dataset=data).train()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
