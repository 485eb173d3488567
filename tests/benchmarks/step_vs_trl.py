"""One whole GRPO step, ours against TRL's ``GRPOTrainer``, on identical work in one process.

Same model folder, prompts, group size, forced response lengths, threads and precision; every step of TRL is followed by
one of ours on the prompts that TRL has just used, so both meet the same weather. Both train: rollout, reward,
advantages, forward, backward, clip, AdamW. Ours also moves the weights into its engine, which TRL's ``generate`` on the
trained model itself does not need. TRL does not time its stages, so its methods are wrapped here.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.core.progress import progress_bars
from harness.report.document import Table
from tests.benchmarks.runner import parser, publish, spread

EXAMPLE = "OMP_NUM_THREADS=1 python -m tests.benchmarks.step_vs_trl --precision bfloat16"
GROUP_SIZE, PROMPTS_PER_BATCH, WARM_UP = 8, 8, 2
Steps = list[dict[str, float]]


class Stopwatch:
    """Seconds and CPU seconds of named pieces of each step."""

    def __init__(self) -> None:
        self.steps: Steps = []
        self.current: dict[str, float] = defaultdict(float)

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.current[name] += time.perf_counter() - start

        return wrapped

    def begin(self) -> None:
        self.start, self.cpu = time.perf_counter(), time.process_time()

    def end(self) -> None:
        self.current["step"] += time.perf_counter() - self.start
        self.current["step_cpu"] += time.process_time() - self.cpu

    def next_step(self) -> None:
        self.steps.append(dict(self.current))
        self.current.clear()


class OurStep:
    """The parts of an in-process run, driven one step at a time."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        from harness.core.trace import RecordingTracer
        from harness.run.inprocess import InProcessParts
        from harness.scenario.load import check_data

        model = {"type": "folder", "path": str(folder), "precision": options.precision, "threads": options.threads}
        settings = {
            "model": model,
            "engine": {"precision": options.precision},
            "sampling": {"min_tokens": options.tokens, "max_tokens": options.tokens},
            "rollout_batch_size": GROUP_SIZE * PROMPTS_PER_BATCH,
            "group_size": GROUP_SIZE,
            "optimizer": {"learning_rate": 1e-6},
        }
        self.tracer, self.watch, self.step = RecordingTracer(time.perf_counter_ns), Stopwatch(), 0
        self.parts = InProcessParts(check_data(settings, "step_vs_trl"), self.tracer, lambda: False)

    async def run(self, prompt_ids: tuple[int, ...]) -> None:
        from harness.core.types import Purpose, WorkItem

        generator, scorer, learner = self.parts.generators[0], self.parts.scorers[0], self.parts.learner
        self.tracer.drain()
        self.watch.begin()
        await generator.load_weights(await learner.publish_weights(self.step, frozenset()))
        item = WorkItem(Purpose.TRAIN, self.step, 0, prompt_ids, GROUP_SIZE, seed=self.step)
        scored = await scorer.score(item, await generator.generate(item))
        await learner.update(self.step, scored.groups)
        self.watch.end()
        for span in self.tracer.drain():
            self.watch.current[span.stage.value] += (span.end_ns - span.start_ns) / 1e9
        self.watch.next_step()
        self.step += 1


def trl_trainer(folder: Path, options: argparse.Namespace, prompts: list[str], reward: Callable[..., Any]) -> Any:
    import datasets
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=options.precision == "bfloat16",
        max_steps=WARM_UP + options.steps,
        per_device_train_batch_size=GROUP_SIZE * PROMPTS_PER_BATCH,
        gradient_accumulation_steps=1,
        num_generations=GROUP_SIZE,
        max_completion_length=options.tokens,
        generation_kwargs={"min_new_tokens": options.tokens},
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


def run(options: argparse.Namespace) -> dict[str, Steps]:
    from transformers import TrainerCallback

    from harness.core.keyword_reward import keyword_inclusion_reward_fn
    from harness.learner.warm_start import warm_start_policy
    from harness.models.storage import save_policy
    from harness.tasks.keywords import KeywordTask

    folder = options.model or Path(tempfile.mkdtemp()) / "small"
    if options.model is None:
        model, tokenizer, _ = warm_start_policy("small", 0)
        save_policy(model, tokenizer, folder)
    task, used = KeywordTask(), list[tuple[int, ...]]()
    number_of = {prompt.text: number for number, prompt in enumerate(task.train_prompts)}
    theirs, ours = Stopwatch(), OurStep(folder, options)

    def reward(prompts: list[str], completions: list[str], **kwargs: Any) -> list[float]:
        used.append(tuple(number_of[prompt] for prompt in prompts[::GROUP_SIZE]))
        truths = [task.train_prompts[number_of[prompt]].ground_truth for prompt in prompts]
        return [keyword_inclusion_reward_fn(*pair) for pair in zip(completions, truths, strict=True)]

    with progress_bars(Console(stderr=True), tenths=True) as bars:
        bar = bars.add_task("pairs of steps", total=WARM_UP + options.steps)

        class Alternate(TrainerCallback):
            def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
                theirs.begin()

            def on_step_end(self, *args: Any, **kwargs: Any) -> None:
                theirs.end()
                theirs.next_step()
                asyncio.run(ours.run(used[-1]))
                bars.advance(bar)

        trainer = trl_trainer(folder, options, [prompt.text for prompt in task.train_prompts[:512]], reward)
        trainer._generate_single_turn = theirs.timed("rollout", trainer._generate_single_turn)
        trainer._compute_loss = theirs.timed("forward", trainer._compute_loss)
        trainer.accelerator.backward = theirs.timed("backward", trainer.accelerator.backward)
        trainer.add_callback(Alternate())
        trainer.train()
    ours.parts.close()
    return {"TRL": theirs.steps[WARM_UP:], "ours": ours.watch.steps[WARM_UP:]}


def table(steps: dict[str, Steps], title: str) -> Table:
    """Return the medians of a step and its pieces, and TRL's seconds over ours, step by step."""
    rows = []
    for who, of in steps.items():
        names = sorted({name for step in of for name in step} - {"step"})
        pieces = {name: statistics.median(step.get(name, 0.0) for step in of) for name in names}
        over = spread(one["step"] / other["step"] for one, other in zip(of, steps["ours"], strict=True))
        cells = ", ".join(f"{name} {seconds:.3f}" for name, seconds in pieces.items())
        rows.append((who, f"{statistics.median(step['step'] for step in of):.3f}", over, cells))
    return Table(title, ("who", "s a step", "times ours (range)", "of that"), tuple(rows))


def main() -> None:
    made = parser(__doc__, EXAMPLE)
    made.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    made.add_argument("--steps", type=int, default=12, help=f"timed steps of each (12), after {WARM_UP} warm-up steps")
    made.add_argument("--tokens", type=int, default=32, help="forced response tokens (32)")
    made.add_argument("--threads", type=int, default=1)
    made.add_argument("--model", type=Path, help="Hugging Face folder; default: the warm-started `small` preset")
    options = made.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    torch.set_num_threads(options.threads)
    steps = run(options)
    publish("Ours against TRL", [table(steps, f"One GRPO step, {options.precision}")], options, steps=steps)


if __name__ == "__main__":
    main()
