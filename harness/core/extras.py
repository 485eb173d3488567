"""The extras of pyproject.toml, and how this copy was installed and started: what messages tell a person to type."""

from __future__ import annotations

import re
import sys
from pathlib import Path

EXTRA_OF = {
    **dict.fromkeys(("torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "tensorboardX"), "train"),
    **dict.fromkeys(("math_verify", "py_spy", "pynvml", "nvtx"), "train"),
    "ray": "ray",
    "nixl": "nixl",
    "cupy": "nccl",
    "vllm": "vllm",
    "deepspeed": "deepspeed",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "trl": "peers",
}
"""The extra that brings a package."""
INSTALLED_COMMAND = "grpo-harness"
_ALWAYS_IN_A_CHECKOUT = ("train", "ray", "nixl")
_ROOT = Path(__file__).resolve().parents[2]


def how_to_install(extra: str, checkout: bool | None = None) -> str:
    """Return the command that installs an extra.

    Args:
        extra: its name.
        checkout: whether the package stands in a checkout, whose Makefile installs it; None looks.
    """
    if checkout is None:
        checkout = (_ROOT / "Makefile").is_file() and (_ROOT / "pyproject.toml").is_file()
    if not checkout:
        return f"pip install 'grpo-harness[{extra}]'"
    if extra in _ALWAYS_IN_A_CHECKOUT:
        return "make install"
    return "make install-vllm" if extra == "vllm" else f"make install PARTS={extra}"


def program() -> str:
    """Return what was typed: the installed command, or the module."""
    return INSTALLED_COMMAND if Path(sys.argv[0]).name == INSTALLED_COMMAND else "python -m harness"


def as_typed(text: str) -> str:
    """Return a text whose commands, written as ``python -m harness``, are named as the program was started."""
    if program() != INSTALLED_COMMAND:
        return text
    return re.sub(r"python -m harness(?: |\.(?=compare\b))", f"{INSTALLED_COMMAND} ", text)
