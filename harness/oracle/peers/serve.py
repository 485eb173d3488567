"""Answers for a trainer, in that trainer's environment; ``harness.oracle.ask`` starts it.

Each line of standard input is JSON with the file of a ``step`` and where to write the ``answer``. What was done is said
in lines of JSON to the file descriptor FD: first which code this is, then a line for each answer that was written. So
whatever the trainer prints does no harm. ``docs/oracle.md`` has the layout of both.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import warnings
from collections.abc import Callable

import torch

from .common import Advantages, Because, NoCounterpart, Options, Peer, Step, gradient_of, place_of, place_of_line

PACKAGES = {
    "trl": "trl",
    "verl": "verl",
    "skyrl": "skyrl",
    "areal": "areal",
    "openrlhf": "openrlhf",
    "trinity": "trinity-rft",
    "swift": "ms-swift",
    "tinker": "tinker-cookbook",
}
"""The distribution of each trainer; ``of_NAME.py`` has its code."""
DEFAULTS = "defaults"
MOST_SAID = 300
"""Characters of an error that are told."""
Words = Callable[[Options], Options]
"""Returns the options of a step's loss in the trainer's words; raises ``NoCounterpart``."""


def answer(peer: Peer, words: Words, step: Step, with_defaults: bool) -> Options:
    """Compute what a step asks for."""
    variants = ("matched", DEFAULTS) if with_defaults and peer.loss is not None else ("matched",)
    return {
        "losses": [_loss(peer, step, variant, words) for variant in variants],
        "advantages": [_advantages(each, step) for each in peer.advantages],
    }


def _loss(peer: Peer, step: Step, variant: str, words: Words) -> Options:
    if peer.loss is None:
        return {"variant": variant, "absent": peer.no_loss}
    try:
        options = peer.defaults if variant == DEFAULTS else words(step.loss)
        log_probs = step.log_probs.clone().requires_grad_(True)
        if step.entropy is not None:
            step.entropy.requires_grad_(True)
        made = peer.loss(step, log_probs, options)
        gradient = gradient_of(made, log_probs, step.entropy, step.mask_bool)
    except NoCounterpart as error:
        return {"variant": variant, "absent": f"no counterpart of {error}"}
    except Exception as error:  # whatever the trainer raises costs this row only
        return {"variant": variant, "absent": _failed(error)}
    return {"variant": variant, "options": options, "loss": made.item(), "gradient": gradient.tolist()}


def _advantages(each: Advantages, step: Step) -> Options:
    try:
        options = each.words(step)
        values = each.values(step, options).double().tolist()
    except NoCounterpart as error:
        return {"of": each.of, "absent": f"no counterpart of {error}"}
    except Exception as error:
        return {"of": each.of, "absent": _failed(error)}
    return {"of": each.of, "options": options, "values": values}


def _failed(error: Exception) -> str:
    return f"failed: {type(error).__name__}: {error}"[:MOST_SAID]


def _explained(because: Because) -> Options:
    text = {"option": because.option, "why": because.why, "at": place_of_line(because)}
    return text | {"is_defect": because.is_defect}


def main() -> None:
    """Answer until standard input ends."""
    name, fd = sys.argv[-2], int(sys.argv[-1])
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    module = importlib.import_module(f".of_{name}", __package__)
    peer: Peer = module.load()
    about = {
        "package": PACKAGES[name],
        "version": importlib.metadata.version(PACKAGES[name]),
        "entry": "" if peer.entry is None else place_of(peer.entry),
        "because": [_explained(because) for because in peer.because],
    }
    with os.fdopen(fd, "w") as said:
        print(json.dumps(about), file=said, flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            made = answer(peer, module.words, Step(asked["step"]), asked["defaults"])
            with open(f"{asked['answer']}.part", "w") as file:
                json.dump(made, file)
            os.replace(f"{asked['answer']}.part", asked["answer"])
            print("{}", file=said, flush=True)


if __name__ == "__main__":
    main()
