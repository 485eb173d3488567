"""A GRPO run of TRL that knows nothing of being recorded: ``python train_with_trl.py MODEL_FOLDER STEPS [NAME=VALUE]``.

Further settings are those of ``GRPOConfig``. Its last line holds the seconds of each step by a clock of its own, and
the CPU seconds of its process.
"""

import ast
import json
import os
import sys
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

PROMPTS = ["the sky is blue", "the sea is green", "the hill is high", "the sun is warm"]


def distinct(prompts: list[str], completions: list[str], **_: object) -> list[float]:
    """Reward: the share of a completion's characters that are different ones."""
    return [len(set(text)) / (1 + len(text)) for text in completions]


class Clock(TrainerCallback):
    """The clock and the CPU seconds at the end of each training step."""

    def __init__(self) -> None:
        self.ends = [(time.perf_counter(), time.process_time())]

    def on_step_end(self, *args: object, **kwargs: object) -> None:
        """Read them."""
        self.ends.append((time.perf_counter(), time.process_time()))


def main() -> None:
    """Train the policy of a folder for some steps."""
    torch.set_num_threads(1)
    settings = {
        "output_dir": tempfile.mkdtemp(), "max_steps": int(sys.argv[2]), "seed": 0, "use_cpu": True, "bf16": False,
        "learning_rate": 1e-4, "per_device_train_batch_size": 32, "num_generations": 8, "num_iterations": 2,
        "max_completion_length": 24, "beta": 0.04, "gradient_checkpointing": False, "dataloader_pin_memory": False,
        "logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True,
    }  # fmt: skip
    for name, value in (argument.split("=", 1) for argument in sys.argv[3:]):
        settings[name] = ast.literal_eval(value)
    rows = [{"prompt": PROMPTS[number % len(PROMPTS)]} for number in range(256)]
    data, clock = Dataset.from_list(rows), Clock()
    inputs = ["input_ids", "attention_mask"]  # transformers 4 takes one more for granted
    tokenizer = AutoTokenizer.from_pretrained(
        sys.argv[1], padding_side="left", model_input_names=inputs, trust_remote_code=False
    )
    GRPOTrainer(
        model=sys.argv[1], args=GRPOConfig(**settings), reward_funcs=[distinct], callbacks=[clock],
        processing_class=tokenizer,
        train_dataset=data, eval_dataset=data.select(range(16)),
    ).train()  # fmt: skip
    pairs = zip(clock.ends, clock.ends[1:], strict=False)
    print(json.dumps([[round(end - begin, 6) for begin, end in zip(*pair, strict=True)] for pair in pairs]))


if __name__ == "__main__":
    main()
