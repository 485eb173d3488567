"""One whole GRPO step, ours against TRL's ``GRPOTrainer``, on identical work in one process.

Same model folder, same prompts, group size, response lengths (forced), threads and precision; every step of TRL is
followed by one of ours on the prompts that TRL has just used, so both meet the same weather. Both train: rollout,
reward, advantages, forward, backward, clip, AdamW. Ours also moves the weights into its engine, which TRL's
``generate`` on the trained model itself does not need. TRL does not time its stages, so its methods are wrapped here.

    python tests/benchmarks/step_vs_trl.py --precision float32 --steps 12 --json step_vs_trl.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

GROUP_SIZE, PROMPTS_PER_BATCH, WARM_UP = 8, 8, 2


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Time one GRPO step against TRL's GRPOTrainer on identical work.",
        epilog="example:\n  python tests/benchmarks/step_vs_trl.py --precision bfloat16",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--steps", type=int, default=12, help=f"timed steps of each, after {WARM_UP} warm-up steps")
    parser.add_argument("--tokens", type=int, default=32, help="forced response tokens")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", type=Path, help="Hugging Face folder; default: the warm-started `small` preset")
    parser.add_argument("--json", type=Path, help="also write every timing to this file")
    return parser.parse_args()


class Stopwatch:
    """Seconds and CPU seconds of named pieces of each step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._current: dict[str, float] = defaultdict(float)

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self._current[name] += time.perf_counter() - start

        return wrapped

    def add(self, name: str, seconds: float) -> None:
        self._current[name] += seconds

    def next_step(self) -> None:
        self.steps.append(dict(self._current))
        self._current.clear()

    def medians(self) -> dict[str, float]:
        kept = self.steps[WARM_UP:]
        names = {name for step in kept for name in step}
        return {name: statistics.median(step.get(name, 0.0) for step in kept) for name in sorted(names)}


class OurStep:
    """The parts of an in-process run, driven one step at a time."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, watch: Stopwatch) -> None:
        from harness.core.trace import RecordingTracer
        from harness.run.inprocess import InProcessParts
        from harness.scenario.load import load_scenario

        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("name: step_vs_trl\n")
            file.flush()
            settings = {
                "model.type": "folder",
                "model.path": str(folder),
                "model.precision": arguments.precision,
                "model.threads": arguments.threads,
                "engine.precision": arguments.precision,
                "sampling.min_tokens": arguments.tokens,
                "sampling.max_tokens": arguments.tokens,
                "rollout_batch_size": GROUP_SIZE * PROMPTS_PER_BATCH,
                "group_size": GROUP_SIZE,
                "optimizer.learning_rate": "1.0e-6",
            }
            scenario = load_scenario(file.name, [f"{key}={value}" for key, value in settings.items()])
        self.tracer = RecordingTracer(time.perf_counter_ns)
        self.parts = InProcessParts(scenario, self.tracer, lambda: False)
        self.watch, self.step = watch, 0

    async def run(self, prompt_ids: tuple[int, ...]) -> None:
        from harness.core.types import Purpose, WorkItem

        generator, scorer, learner = self.parts.generators[0], self.parts.scorers[0], self.parts.learner
        self.tracer.drain()
        start, cpu = time.perf_counter(), time.process_time()
        await generator.load_weights(await learner.publish_weights(self.step, frozenset()))
        item = WorkItem(Purpose.TRAIN, self.step, 0, prompt_ids, GROUP_SIZE, seed=self.step)
        scored = await scorer.score(item, await generator.generate(item))
        await learner.update(self.step, scored.groups)
        self.watch.add("step", time.perf_counter() - start)
        self.watch.add("step_cpu", time.process_time() - cpu)
        for span in self.tracer.drain():
            self.watch.add(span.stage.value, (span.end_ns - span.start_ns) / 1e9)
        self.watch.next_step()
        self.step += 1


def trl_trainer(folder: Path, arguments: argparse.Namespace, prompts: list[str], reward: Callable[..., Any]) -> Any:
    import datasets
    from trl import GRPOConfig, GRPOTrainer

    batch = GROUP_SIZE * PROMPTS_PER_BATCH
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=arguments.precision == "bfloat16",
        max_steps=WARM_UP + arguments.steps,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=1,
        num_generations=GROUP_SIZE,
        max_completion_length=arguments.tokens,
        generation_kwargs={"min_new_tokens": arguments.tokens},
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        loss_type="grpo",
        epsilon=0.2,
        learning_rate=1e-6,
        adam_beta1=0.9,
        adam_beta2=0.95,
        weight_decay=0.0,
        max_grad_norm=1.0,
        gradient_checkpointing=False,
        logging_steps=10**6,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    rows = datasets.Dataset.from_list([{"prompt": prompt} for prompt in prompts])
    return GRPOTrainer(model=str(folder), args=config, train_dataset=rows, reward_funcs=[reward])


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    import asyncio

    import torch
    from transformers import TrainerCallback

    from harness.core.keyword_reward import keyword_inclusion_reward_fn
    from harness.tasks.keywords import KeywordTask

    torch.set_num_threads(arguments.threads)
    folder = arguments.model or warm_started_folder()
    task = KeywordTask()
    number_of = {prompt.text: number for number, prompt in enumerate(task.train_prompts)}
    trl_watch, our_watch = Stopwatch(), Stopwatch()
    ours = OurStep(folder, arguments, our_watch)
    used: list[tuple[int, ...]] = []

    def reward(prompts: list[str], completions: list[str], **kwargs: Any) -> list[float]:
        used.append(tuple(number_of[prompt] for prompt in prompts[::GROUP_SIZE]))
        truths = [task.train_prompts[number_of[prompt]].ground_truth for prompt in prompts]
        return [keyword_inclusion_reward_fn(*pair) for pair in zip(completions, truths, strict=True)]

    class Alternate(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            self.start, self.cpu = time.perf_counter(), time.process_time()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            trl_watch.add("step", time.perf_counter() - self.start)
            trl_watch.add("step_cpu", time.process_time() - self.cpu)
            trl_watch.next_step()
            asyncio.run(ours.run(used[-1]))

    trainer = trl_trainer(folder, arguments, [prompt.text for prompt in task.train_prompts[:512]], reward)
    trainer._generate_single_turn = trl_watch.timed("rollout", trainer._generate_single_turn)
    trainer._compute_loss = trl_watch.timed("forward", trainer._compute_loss)
    trainer.accelerator.backward = trl_watch.timed("backward", trainer.accelerator.backward)
    trainer.add_callback(Alternate())
    trainer.train()
    ours.parts.close()
    return {"trl": trl_watch.steps, "ours": our_watch.steps, "medians": [trl_watch.medians(), our_watch.medians()]}


def warm_started_folder() -> Path:
    from harness.learner.warm_start import warm_start_policy
    from harness.models.storage import save_policy

    model, tokenizer, _ = warm_start_policy("small", 0)
    folder = Path(tempfile.mkdtemp()) / "small"
    save_policy(model, tokenizer, folder)
    return folder


def main() -> None:
    arguments = parse_arguments()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    figures = run(arguments)
    trl, ours = figures["medians"]
    pairs = zip(figures["trl"][WARM_UP:], figures["ours"][WARM_UP:], strict=True)
    ratios = sorted(one["step"] / other["step"] for one, other in pairs)
    middle = statistics.median(ratios)
    print(f"{arguments.precision}, {arguments.threads} thread(s), {len(ratios)} steps of each, interleaved")
    print(f"  TRL   {trl.pop('step'):.3f} s a step (median): {_split(trl)}")
    print(f"  ours  {ours.pop('step'):.3f} s a step (median): {_split(ours)}")
    print(f"  TRL / ours: median {middle:.2f}, from {ratios[0]:.2f} to {ratios[-1]:.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"precision": arguments.precision, **figures}, indent=1))


def _split(medians: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.3f}" for name, seconds in sorted(medians.items(), key=lambda item: -item[1]))


if __name__ == "__main__":
    main()
