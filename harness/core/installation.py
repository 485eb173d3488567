"""How this copy was installed and started: what messages tell a person to type."""

from __future__ import annotations

import re
import sys
from pathlib import Path

PART_OF = {
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
"""The extra of pyproject.toml that brings a package."""
INSTALLED_COMMAND = "grpo-harness"
_ALWAYS_IN_A_CHECKOUT = ("train", "ray", "nixl")


_ROOT = Path(__file__).resolve().parents[2]


def is_checkout() -> bool:
    """Whether the package stands in a checkout, whose Makefile installs its parts, and not among installed packages."""
    return (_ROOT / "Makefile").is_file() and (_ROOT / "pyproject.toml").is_file()


def how_to_install(part: str, checkout: bool | None = None) -> str:
    """Return the command that installs an optional part, an extra of pyproject.toml.

    Args:
        checkout: None looks.
    """
    if not (is_checkout() if checkout is None else checkout):
        return f"pip install 'grpo-harness[{part}]'"
    if part in _ALWAYS_IN_A_CHECKOUT:
        return "make install"
    return "make install-vllm" if part == "vllm" else f"make install PARTS={part}"


def program() -> str:
    """Return what was typed: the installed command, or the module."""
    return INSTALLED_COMMAND if Path(sys.argv[0]).name == INSTALLED_COMMAND else "python -m harness"


def as_typed(text: str) -> str:
    """Return a text whose commands, written as ``python -m harness``, are named as the program was started."""
    if program() != INSTALLED_COMMAND:
        return text
    return re.sub(r"python -m harness(?: |\.(?=compare\b))", f"{INSTALLED_COMMAND} ", text)
