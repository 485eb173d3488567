"""``python -m harness.models.make_folder``: a Hugging Face folder of a public model's shape, with random weights.

What runs on such a folder runs on the real weights too: only ``model.path`` changes. Its rewards mean nothing.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.core.errors import UserError
from harness.models.config import ModelConfig
from harness.models.published import PUBLIC_SHAPES

_TEXTS = (
    "What is 12 + 34? Let us think step by step. 12 + 34 = 46, so the answer is 46.",
    "A baker sells 48 loaves in the morning and half as many in the afternoon. How many loaves are sold in all?",
    "Solve for x: 3x - 7 = 20. Then 3x = 27 and x = 9. <think> </think> <answer> 9 </answer>",
    "The area of a circle of radius r is \\pi r^2; a third of it is \\frac{1}{3} \\pi r^2.",
    "User: Write a sentence with the words river and stone. Assistant: The river runs over the stone.",
)
"""What the tokenizer's merges are learnt from; any other text is still encoded, byte by byte where need be."""
CHAT_TEMPLATE = (
    "{% for turn in messages %}[{{ turn.role }}] {{ turn.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
"""Of the project's own making, and plain text: no token of the tokenizer stands for the marks of a turn."""
_LARGEST_TOKENIZER = 1024
_LARGEST_SEED = 2**63 - 1
_EXAMPLE = "python -m harness.models.make_folder --shape qwen2.5-math-1.5b --layers 2 --vocab 512 -o models/qwen"


def shape_config(name: str, *, layers: int | None = None, vocab_size: int | None = None) -> dict[str, Any]:
    """Return the ``config.json`` of a public model, with fewer layers or a smaller vocabulary if asked for.

    Raises:
        UserError: no such shape, or a number out of bounds.
    """
    if name not in PUBLIC_SHAPES:
        raise UserError(f"no shape {name!r}", "--shape", f"take one of {', '.join(sorted(PUBLIC_SHAPES))}")
    config = dict(PUBLIC_SHAPES[name])
    for key, option, value in (("num_hidden_layers", "--layers", layers), ("vocab_size", "--vocab", vocab_size)):
        if value is None:
            continue
        if not 1 <= value <= config[key]:
            what = f"{key} is {value}, must be from 1 to {config[key]}, as {name} has"
            raise UserError(what, option, f"leave {option} out for the model's own {config[key]}")
        config[key] = value
    return config


def make_folder(
    shape: str,
    folder: str | Path,
    *,
    layers: int | None = None,
    vocab_size: int | None = None,
    dtype: str = "bfloat16",
    seed: int = 0,
    chat: bool = False,
) -> int:
    """Write ``config.json``, safetensors weights and a tokenizer of the project's own making.

    The tokenizer has at most 1,024 tokens; the model keeps its whole vocabulary, as published models do whose
    vocabulary is padded.

    Args:
        shape: a name in ``PUBLIC_SHAPES``.
        folder: a new or empty folder.
        layers, vocab_size: fewer than the shape has; None keeps its own.
        dtype: of the stored weights, ``bfloat16`` or ``float32``.
        seed: of the weights, from 0 to 2^63 - 1.
        chat: give the tokenizer a chat template, ``CHAT_TEMPLATE``.

    Returns:
        The number of weights.

    Raises:
        UserError: an unknown shape, a number out of bounds, a folder that holds something, or a disk too small.
    """
    config = shape_config(shape, layers=layers, vocab_size=vocab_size)
    if not 0 <= seed <= _LARGEST_SEED:
        raise UserError(f"the seed is {seed}, must be from 0 to {_LARGEST_SEED}", "--seed", "leave --seed out for 0")
    target = Path(folder).expanduser()
    if target.exists() and (target.is_file() or any(target.iterdir())):
        what = f"{target} is a file" if target.is_file() else f"the folder {target} is not empty"
        raise UserError(what, "-o", "name a new folder: nothing is ever overwritten")
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from harness.models.storage import save_policy
    from harness.models.tokenizer import train_tokenizer

    tokenizer = train_tokenizer(_TEXTS, min(config["vocab_size"], _LARGEST_TOKENIZER))
    if chat:
        tokenizer.chat_template = CHAT_TEMPLATE
    config |= {name: getattr(tokenizer, name) for name in ("eos_token_id", "pad_token_id")} | {"bos_token_id": None}
    count = ModelConfig.from_hf(config).num_parameters
    require_space(target, count * (2 if dtype == "bfloat16" else 4))
    theirs = AutoConfig.for_model(**config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(theirs, dtype=getattr(torch, dtype), trust_remote_code=False)
    save_policy(model, tokenizer, target)
    return count


def require_space(folder: Path, num_bytes: int) -> None:
    """Refuse to write more than the folder's disk has room for.

    Raises:
        UserError: with both sizes.
    """
    existing = next(parent for parent in (folder, *folder.resolve().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if num_bytes > free:
        what = f"the weights take {num_bytes / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
        raise UserError(what, f"-o {folder}", "free space, name a folder on another disk, or ask for fewer --layers")


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command line and return its exit code: 0, or 2 for what cannot be done."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.models.make_folder",
        description="Make a Hugging Face folder of a public model's shape, with random weights and a small tokenizer.",
        epilog=f"example:\n  {_EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--shape", required=True, metavar="NAME", help=", ".join(sorted(PUBLIC_SHAPES)))
    add("--layers", type=int, metavar="N", help="fewer layers than the model has")
    add("--vocab", type=int, metavar="N", dest="vocab_size", help="a smaller vocabulary than the model has, from 258")
    add("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the stored weights")
    add("--seed", type=int, default=0, metavar="N", help="of the weights (default: 0)")
    add("--chat", action="store_true", help="with a chat template (default: without)")
    add("-o", "--out", required=True, type=Path, metavar="DIR", dest="folder", help="a new or empty folder")
    options = parser.parse_args(argv)
    try:
        count = make_folder(**vars(options))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    use = "model: {type: folder, path: ...}"
    print(f"{options.folder}: {options.shape} with {count:,} random weights; use it as {use}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
