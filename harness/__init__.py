"""A benchmark-and-simulation harness for GRPO post-training of language models."""

__version__ = "0.1.0"
