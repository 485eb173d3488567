"""A GRPO run of TRL that knows nothing of being recorded: ``python train_with_trl.py MODEL_FOLDER STEPS``."""

import os
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

PROMPTS = ["the sky is blue", "the sea is green", "the hill is high", "the sun is warm"]


def distinct(prompts: list[str], completions: list[str], **_: object) -> list[float]:
    """Reward: the share of a completion's characters that are different ones."""
    return [len(set(text)) / (1 + len(text)) for text in completions]


def main() -> None:
    """Train the policy of a folder for some steps."""
    torch.set_num_threads(1)
    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(), max_steps=int(sys.argv[2]), seed=0, learning_rate=1e-4, use_cpu=True, bf16=False,
        per_device_train_batch_size=32, num_generations=8, num_iterations=2, max_completion_length=24, beta=0.04,
        gradient_checkpointing=False, dataloader_pin_memory=False,
        logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True,
    )  # fmt: skip
    data = Dataset.from_list([{"prompt": PROMPTS[number % len(PROMPTS)]} for number in range(256)])
    inputs = ["input_ids", "attention_mask"]  # transformers 4 takes one more for granted
    tokenizer = AutoTokenizer.from_pretrained(
        sys.argv[1], padding_side="left", model_input_names=inputs, trust_remote_code=False
    )
    GRPOTrainer(
        model=sys.argv[1], args=settings, train_dataset=data, reward_funcs=[distinct], processing_class=tokenizer
    ).train()


if __name__ == "__main__":
    main()
