"""``python -m harness oracle``: one training step through the losses and advantages of several implementations."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.arguments import from_0, set_argument
from harness.core.errors import UserError
from harness.oracle.ask import GIB, PEERS, Answer, Limits, ask, command_of, interpreter

if TYPE_CHECKING:
    from harness.oracle.step import Recorded, Step
    from harness.report.document import Table

DESCRIPTION = """Give one training step to the loss and advantage code that other trainers ship, each in an environment
of its own, and compare loss, gradient and advantages with this project's."""
EXAMPLES = """examples:
  python -m harness run quickstart --set checkpoint.keep_steps=[3] --set steps=5
  python -m harness oracle results/quickstart/20260101-120000 --step 3
  python -m harness oracle step.safetensors --against trl,verl

Exit codes: 0 the table was made, whatever it says; 2 bad input.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("run", metavar="RUN", type=Path, help="a run's folder, or a step as a safetensors file")
    parser.add_argument("--step", type=from_0, metavar="N", help="the kept training step, counted from 0")
    parser.add_argument(
        "--optimizer-step", type=from_0, metavar="N", help="of that training step, from 0 (default: its last one)"
    )
    parser.add_argument(
        "--against", metavar="NAMES", help=f"some of {', '.join(PEERS)}, with commas (default: all that are found)"
    )
    parser.add_argument(
        "--environments", type=Path, default=Path(), metavar="DIR", help="folder of .venv-NAME (default: this one)"
    )
    parser.add_argument(
        "--time-limit", type=float, default=300.0, metavar="SECONDS", help="of each implementation (default: 300)"
    )
    parser.add_argument(
        "--memory-limit", type=float, default=8.0, metavar="GIB", help="of each implementation (default: 8)"
    )
    parser.add_argument(
        "--scenario", metavar="SCENARIO", help="the run's scenario, if the saved one lacks the folders of its files"
    )
    set_argument(parser)
    translated = "trl, verl, open-instruct or prime-rl"
    parser.add_argument(
        "--settings", metavar="TRAINER", help=f"print the scenario that RUN, a file of settings of {translated}, means"
    )
    parser.add_argument(
        "--settings-for", metavar="TRAINER", help="print the settings of this trainer that RUN, a scenario, means"
    )


def run(options: argparse.Namespace) -> int:
    """Ask every implementation and print the table.

    Raises:
        UserError: the step cannot be had, or an implementation is not known.
    """
    if options.settings or options.settings_for:
        from harness.oracle.settings.command import translate

        return translate(options)
    from harness.report.console import Output
    from harness.report.terminal import print_list, print_table

    wanted = list(PEERS) if options.against is None else [name for name in options.against.split(",") if name]
    unknown = [name for name in wanted if name not in PEERS]
    if unknown:
        raise UserError(f"{unknown[0]!r} is not known", "--against", f"name some of {', '.join(PEERS)}")
    if not options.time_limit > 0 or not options.memory_limit > 0:
        raise UserError("a limit of time or memory must be above 0", "--time-limit, --memory-limit")
    step, recorded = _step(options)
    pythons = {name: interpreter(name, options.environments) for name in wanted}
    commands = {name: command_of(name, python) for name, python in pythons.items() if python is not None}
    limits = Limits(options.time_limit, int(options.memory_limit * GIB))
    answers = asked(step, commands, limits)
    missing = [name for name in wanted if name not in commands]
    output, (made, details) = Output(), table(step, recorded, answers, missing)
    print_table(output, made)
    print_list(output, "Options", details)
    return 0


def _step(options: argparse.Namespace) -> tuple[Step, Recorded | None]:
    from harness.oracle.step import read_step, step_of_run
    from harness.run.commands.arguments import scenario_of_run

    if not options.run.is_dir():
        return read_step(options.run), None
    if options.step is None:
        raise UserError("a run's folder was named, and no step of it", str(options.run), "add --step N")
    naming = f"oracle {options.run} --step {options.step} --scenario SCENARIO"
    scenario = scenario_of_run(options.run, options.scenario, options.set, naming)
    return step_of_run(options.run, options.step, scenario, options.optimizer_step)


def asked(step: Step, commands: Mapping[str, Sequence[str]], limits: Limits) -> dict[str, Answer | str]:
    """Return what each command answers, one after the other, or why there is no answer."""
    sizes = int(step.tensors["mask"].bool().sum()), len(step.tensors["rewards"])
    with tempfile.TemporaryDirectory(prefix="oracle-") as folder:
        path = Path(folder, "step.safetensors")
        step.write(path)
        return {name: ask(command, path, sizes, limits) for name, command in commands.items()}


def table(
    step: Step, recorded: Recorded | None, answers: Mapping[str, Answer | str], missing: Sequence[str] = ()
) -> tuple[Table, list[str]]:
    """Return the table (our own row, the recorded one, those of each implementation) and what each row was computed
    with, or why there is no number.

    Differences are the largest ones of all tokens in the loss, or of all rollouts, and absolute.
    """
    import torch

    from harness.oracle.step import ours
    from harness.report.document import Table

    own = ours(step)
    gradient, advantages = own["gradient"], own["advantages"]
    rows: list[tuple[str, ...]] = []
    details: list[str] = []

    def off(values: Sequence[float] | torch.Tensor | None, reference: torch.Tensor | None) -> str:
        if values is None or reference is None:
            return "-"
        return f"{float((torch.as_tensor(values, dtype=torch.float64) - reference).abs().max()):.1e}"

    def row(label: str, what: str, loss: float | None, gradient: str, advantages: str, said: str = "") -> None:
        rows.append((label, what, "-" if loss is None else f"{loss:.8f}", gradient, advantages))
        if said:
            details.append(f"{label}, {what}: {said}")

    row("this project", "matched", own["loss"], "0", "-" if advantages is None else "0", _words(_plain(step)))
    if recorded is not None:
        if recorded.left_out and recorded.again is not None:
            row("this project", "whole loss", recorded.again, "-", "-", f"with {', '.join(recorded.left_out)}")
        what = "whole loss" if recorded.left_out else "matched"
        row("recorded", what, recorded.loss, "-", off(step.tensors["advantages"], advantages))
    for name, answer in answers.items():
        if isinstance(answer, str):
            row(name, "failed", None, "-", "-", answer)
            continue
        label = f"{name} {answer.version}"
        matched = next((each.options for each in answer.losses if each.variant == "matched"), {})
        for each in answer.losses:
            own_only = {key: value for key, value in each.options.items() if matched.get(key, key) != value}
            words = _words(each.options if each.variant == "matched" else own_only) or "the same"
            row(label, each.variant, each.loss, off(each.gradient, gradient), "-", each.absent or words)
        for of in answer.advantages:
            row(label, of.of, None, "-", off(of.values, advantages), of.absent or _words(of.options) or "no options")
    header = ("implementation", "options", "loss", "gradient", "advantages")
    notes = tuple(_notes(gradient, recorded, missing))
    return Table("One optimizer step, several implementations", header, tuple(rows), notes, 2), details


def _notes(gradient: Any, recorded: Recorded | None, missing: Sequence[str]) -> list[str]:
    largest = float(gradient.abs().max()) if len(gradient) else 0.0
    notes = [
        "The columns of gradient and advantages are differences from this project's row, the largest one of all tokens "
        "or rollouts.",
        f"The gradient is that with respect to the {len(gradient):,} log-probs in the loss, not to the weights. "
        f"The largest one is {largest:.1e}.",
        "Each loss is given the recorded advantages, in float64; each advantage function the rewards in float32.",
    ]
    if recorded is not None and recorded.left_out:
        notes.append(f"Only the policy gradient is compared; {', '.join(recorded.left_out)} is left out of it.")
    if missing:
        notes.append(f"No environment has {', '.join(missing)}: none of .venv-NAME, nor this one.")
    return notes


def _plain(step: Step) -> dict[str, Any]:
    from dataclasses import asdict

    loss, advantage = asdict(step.header.loss), step.header.advantage
    said = {name: value for name, value in loss.items() if name != "constant" or value is not None}
    return said | {"advantage": advantage.scale, "eps": advantage.eps}


def _words(options: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in options.items()
    )
