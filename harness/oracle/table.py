"""The table of one step: our own row, the recorded one, and those of each implementation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from harness.oracle.ask import About, Answer, Implementation
from harness.oracle.ours import Own, ours
from harness.oracle.step import Step
from harness.report.document import Table


@dataclass(frozen=True)
class Asked:
    """What an implementation says of itself and of a step."""

    about: About
    answer: Answer


def asked(implementation: Implementation, step: Step) -> Asked | str:
    """Ask an implementation for a step, with its defaults too; in words why there is no answer."""
    about = implementation.about()
    if isinstance(about, str):
        return about
    answer = implementation.ask(step, with_defaults=True)
    return answer if isinstance(answer, str) else Asked(about, answer)


def off(values: Sequence[float] | Tensor | None, reference: Tensor | None) -> tuple[float, float] | None:
    """Return the largest and the mean absolute difference of numbers; None where there are none."""
    if values is None or reference is None or not len(reference):
        return None
    gaps = (torch.as_tensor(values, dtype=torch.float64) - reference).abs()
    return float(gaps.max()), float(gaps.mean())


def table(
    step: Step, recorded: float | None, answers: Mapping[str, Asked | str], missing: Sequence[str] = ()
) -> tuple[Table, list[str]]:
    """Return the table, and what each row was computed with, or why there is no number.

    Args:
        step: that was asked.
        recorded: its loss in the run; None where no run is asked.
        answers: of each implementation, or why there is none.
        missing: implementations that no environment has.
    """
    own = ours(step)
    rows: list[tuple[str, ...]] = []
    details: list[str] = []

    def row(label: str, what: str, loss: float | None, gaps: Sequence[tuple[float, float] | None], said: str) -> None:
        gradient, advantages = gaps
        said_of_gradient = ("-", "-") if gradient is None else (f"{gradient[0]:.1e}", f"{gradient[1]:.1e}")
        said_of_advantages = "-" if advantages is None else f"{advantages[0]:.1e}"
        rows.append((label, what, "-" if loss is None else f"{loss:.8f}", *said_of_gradient, said_of_advantages))
        if said:
            details.append(f"{label}, {what}: {said}")

    row("this project", "matched", own.loss, (None, None), _words(_plain(step)))
    if recorded is not None:
        row("recorded", "matched", recorded, (None, off(step.tensors["advantages"], own.advantages)), "")
    for name, found in answers.items():
        if isinstance(found, str):
            row(name, "failed", None, (None, None), found)
            continue
        label = f"{name} {found.about.version}"
        matched = next((each.options for each in found.answer.losses if each.variant == "matched"), {})
        for each in found.answer.losses:
            own_only = {key: value for key, value in each.options.items() if matched.get(key, key) != value}
            words = _words(each.options if each.variant == "matched" else own_only) or "the same"
            row(label, each.variant, each.loss, (off(each.gradient, own.gradient), None), each.absent or words)
        with_values = [each for each in found.answer.advantages if each.absent is None]
        for of in with_values or found.answer.advantages[:1]:
            said = of.absent or _words(of.options) or "no options"
            row(label, of.of, None, (None, off(of.values, own.advantages)), said)
    header = ("implementation", "options", "loss", "gradient", "its mean", "advantages")
    return Table("One optimizer step, several implementations", header, tuple(rows), _notes(own, missing), 2), details


def _notes(own: Own, missing: Sequence[str]) -> tuple[str, ...]:
    largest = float(own.gradient.abs().max()) if len(own.gradient) else 0.0
    notes = [
        "Gradient (the largest of all tokens, and the mean) and advantages (the largest of all rollouts) are absolute "
        "differences from this project's row.",
        f"The gradient is that with respect to the {len(own.gradient):,} log-probs in the loss, not to the weights. "
        f"The largest one is {largest:.1e}.",
        "Each loss is given the recorded advantages, in float64; each advantage function the rewards in float32.",
    ]
    if missing:
        names = ", ".join(missing)
        notes.append(f"No environment has {names}: python -m harness oracle --install NAME makes one.")
    return tuple(notes)


def _plain(step: Step) -> dict[str, Any]:
    """Return the step's options, but for what is off."""
    loss, advantage = asdict(step.header.loss), step.header.advantage
    usual = {"type": "grpo_clip", "ratio_level": "token", "constant": None, "entropy_coefficient": 0.0}
    said = {name: value for name, value in loss.items() if name not in usual or value != usual[name]}
    kl, importance = said.pop("kl"), said.pop("importance")
    if kl["coefficient"]:
        said |= {f"kl.{name}": value for name, value in kl.items()}
    if importance["mode"] != "off":
        said |= {f"importance.{name}": value for name, value in importance.items()}
    return said | {"advantage": advantage.delta, "eps": advantage.eps}


def _words(options: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in options.items()
    )
