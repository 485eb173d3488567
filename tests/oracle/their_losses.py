"""Calls the whole loss of TRL or verl with settings of a user, as ``harness/oracle/peers`` calls it.

``python their_losses.py NAME STEP IN OUT`` in that trainer's environment. STEP is a step of the oracle, IN a list of
settings; OUT has for each of them the gradient with respect to the log-probs.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch


def options_of(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings of a user as the options of the trainer's loss."""
    if name == "trl":  # weights are those of vLLM only
        correct = settings.get("use_vllm", False)
        return {key: value for key, value in settings.items() if key != "use_vllm"} | {
            "vllm_importance_sampling_correction": correct
        }
    return {key.removeprefix("actor_rollout_ref.actor.").removeprefix("algorithm."): settings[key] for key in settings}


def main() -> None:
    """Answer for the trainer that is named."""
    name, path, given, out = sys.argv[1:]
    sys.path.append(str(Path(__file__).parents[2] / "harness" / "oracle"))
    from peers.common import Step  # type: ignore[import-not-found]

    peer, step = importlib.import_module(f"peers.of_{name}").load(), Step(path)
    answers = []
    for settings in json.loads(Path(given).read_text()):
        log_probs = step.log_probs.clone().requires_grad_(True)
        loss = peer.loss(step, log_probs, options_of(name, settings))
        answers.append(torch.autograd.grad(loss, log_probs)[0].tolist())
    Path(out).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
