"""``python -m harness list``: show the available scenarios, by the question that they answer."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.core.arguments import json_argument
from harness.core.errors import UserError
from harness.core.terminal_text import plain, plain_lines

EXAMPLES = """examples:
  python -m harness list
  python -m harness list replay

Minutes are those of all runs on two CPU cores, as the simulator has them, with the start of each; a warm start comes on
top, once.
"""
QUESTIONS: dict[str, tuple[tuple[str, int | None, str], ...]] = {
    "First steps": (
        ("quickstart", 1, ""),
        ("quickstart_seeds", 1, ""),
        ("arithmetic", 1, ""),
        ("arithmetic_seeds", 1, ""),
        ("course", 2, ""),
        ("sorting", None, ""),
        ("keywords_from_files", 1, "files"),
        ("hf_folder", None, "model"),
    ),
    "How often to train on a rollout batch?": (
        ("sync_k", 6, ""),
        ("sync_k1", 1, ""),
        ("sync_k2", 1, ""),
        ("sync_k4", 1, ""),
        ("sync_k8", 1, ""),
        ("off_policy", 3, ""),
    ),
    "What does lag gain, and what does it cost?": (
        ("async_lag1", 7, "Ray"),
        ("async_lag_sweep", 1, "Ray"),
        ("inflight", 2, "Ray"),
        ("generators", 6, "Ray"),
        ("streaming", 15, "Ray"),
        ("overlapped_publish", 3, "Ray"),
        ("paced_overlap", 1, "Ray, NIXL"),
        ("async_replay_k4", 1, "Ray, NIXL"),
    ),
    "Does replay pay?": (
        ("replay_vs_baseline", 13, ""),
        ("replay_small", 1, "Ray"),
        ("replay_large", 1, "Ray"),
    ),
    "How should weights move?": (
        ("rdt_nixl", 3, "Ray, NIXL"),
        ("rdt_gloo", 1, "Ray, NIXL"),
        ("rdt_gpu", None, "GPU, Ray, NIXL"),
        ("rdt_nccl", None, "2 GPUs, Ray, CuPy, NIXL"),
        ("shared_memory", 1, "Ray"),
        ("sharded_publish", None, "Ray"),
        ("nixl_polling", 1, "Ray, NIXL"),
        ("transport_sweep", None, "Ray, NIXL"),
        ("transport_sweep_gpu", None, "GPU, Ray, NIXL"),
    ),
    "Which loss, which advantage?": (
        ("loss_types", 1, ""),
        ("loss_options", 1, ""),
        ("advantages", 1, ""),
        ("baselines", 1, ""),
        ("std_normalisation", 1, ""),
        ("length_normalisation", 1, ""),
        ("clip_ranges", 4, ""),
        ("tis", 1, ""),
        ("dynamic_sampling", None, ""),
        ("sorting_grid", None, ""),
        ("sorting_clip", None, ""),
        ("sorting_kl", None, ""),
    ),
    "How far may the policy drift, and how fast may it learn?": (
        ("kl_monitoring", 1, ""),
        ("polyak", 1, ""),
        ("learning_rates", 3, ""),
        ("schedules", 1, ""),
        ("precision", 1, ""),
        ("prompts", None, "files, model"),
    ),
    "What does a Learner of several ranks bring?": (
        ("learner_ddp2", None, "Ray"),
        ("learner_fsdp2", None, "Ray"),
        ("learner_hsdp", None, "Ray"),
        ("learner_tp2", None, "Ray"),
        ("learner_zero", None, "Ray, DeepSpeed"),
        ("learner_scaling", None, "Ray"),
        ("learner_seeds", None, "Ray"),
        ("balance", None, "Ray"),
        ("slow_rank", None, "Ray"),
        ("offload", None, "Ray"),
    ),
    "Maths with a Hugging Face model": (
        ("maths", None, "files, model"),
        ("maths_ablations", None, "files, model"),
        ("maths_learning_rates", None, "files, model"),
        ("maths_off_policy", None, "files, model"),
        ("maths_two_gpus", None, "2 GPUs, Ray, vLLM, files, model"),
        ("qwen_1_5b", None, "GPU, model"),
    ),
    "vLLM as the engine": (
        ("vllm_sync", None, "Ray, vLLM"),
        ("vllm_async_lag1", None, "Ray, vLLM"),
        ("vllm_in_flight", None, "Ray, vLLM"),
        ("vllm_replay", None, "Ray, vLLM"),
        ("vllm_transports", None, "Ray, vLLM, NIXL"),
    ),
    "How large a machine? (for `simulate`)": (
        ("sizing_1_5b", None, "2 GPUs, Ray, NIXL, model"),
        ("sizing_ranks", None, "2 GPUs, Ray, NIXL, model"),
    ),
}
"""The scenarios that come with the project by the question they answer: minutes on two CPU cores, and what they need.

A test compares the needs with the scenarios. Minutes are ``None`` where the simulator does not know a stage.
"""
EXAMINATIONS = ("calibration", "calibration_checkpoints", "calibration_ranks", "noise", "probe_overhead", "slow_stage")
"""Scenarios that examine the project itself: `calibrate` runs three, and `noise` shows a machine's noise."""
YOURS = "Yours"
_DESCRIPTION = re.compile(r"^description: *(?:[|>][-+]?\s*\n\s*)?(?P<line>\S.*?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Listed:
    """A line of the list: minutes are those of all its runs."""

    question: str
    name: str
    description: str
    minutes: int | None
    needs: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to its parser."""
    parser.add_argument("words", metavar="WORD", nargs="*", help="show those whose name, question or line contains it")
    parser.add_argument("--all", action="store_true", help="also those that test the project itself")
    json_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Print a table of them; return 2 if one does not load."""
    every, broken = scenarios(options.all)
    words = [word.lower() for word in options.words]
    shown = [
        item
        for item in every
        if all(word in " ".join((item.question, item.name, item.description, item.needs)).lower() for word in words)
    ]
    if options.json:
        print(json.dumps([asdict(item) for item in shown], indent=2))
    elif shown:
        _print(shown)
    elif words and not broken:
        raise UserError(f"no scenario has {' and '.join(words)} in its name, question or line", None, "list shows all")
    if broken:
        print(plain_lines("\n".join(broken)), file=sys.stderr, flush=True)
    return 2 if broken else 0


def scenarios(examinations: bool = False) -> tuple[list[Listed], list[str]]:
    """Return the scenarios in the order of the questions, a person's own first; and what is wrong with the others.

    Those that come with the project are not loaded: their facts stand in ``QUESTIONS``.

    Raises:
        UserError: there are none.
    """
    from harness.core.named_files import SCENARIOS

    files = {path.stem: path for path in SCENARIOS.files()}
    shipped = SCENARIOS.shipped
    if not files:
        folders = " and ".join(str(folder) for folder in SCENARIOS.folders())
        raise UserError("there are no scenarios", folders, "write one: scenarios/NAME.yaml")
    facts = {name: (question, minutes, needs) for question, rows in QUESTIONS.items() for name, minutes, needs in rows}
    if examinations:
        facts |= dict.fromkeys(EXAMINATIONS, ("Examinations of the project itself", None, ""))
    ours = {
        name for name, path in files.items() if path.parent.resolve() == shipped and name in {*facts, *EXAMINATIONS}
    }
    listed, broken = list[Listed](), list[str]()
    for name in files.keys() - ours:
        try:
            listed.append(_own(files[name]))
        except UserError as error:
            broken.append(f"error: {files[name]} does not load\n{error}")
    listed.sort(key=lambda item: item.name)
    listed += [
        Listed(question, name, _first_line(files[name]), minutes, needs)
        for name, (question, minutes, needs) in facts.items()
        if name in ours
    ]
    return listed, broken


def _own(path: Path) -> Listed:
    from harness.run.needs import needs_of
    from harness.scenario.axes import expand
    from harness.scenario.load import load_scenario

    scenario = load_scenario(path)
    needs = dict.fromkeys(need.name for variant in expand(scenario) for need in needs_of(variant.scenario))
    return Listed(YOURS, path.stem, scenario.description.strip().split("\n")[0], None, ", ".join(needs))


def _first_line(path: Path) -> str:
    found = _DESCRIPTION.search(path.read_text(encoding="utf-8", errors="replace"))
    return "" if found is None else found["line"].strip("\"'")


def _print(shown: list[Listed]) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from harness.report.console import Output

    console, question = Output(), ""
    width = max(len(item.name) for item in shown)
    is_narrow = console.width < width + 40
    for item in shown:
        if item.question != question:
            console.print(Text(("\n" if question else "") + item.question, style="bold"))
            question = item.question
        line = Table.grid(padding=(0, 2))
        line.add_column(min_width=width + 2, no_wrap=True)
        line.add_column(min_width=6, justify="right", no_wrap=True)
        line.add_column()
        said = Text(plain(item.description))
        if item.needs:
            said.append(f" (needs {item.needs})", style="dim")
        facts = Text(f"  {plain(item.name)}"), Text(_minutes(item.minutes))
        line.add_row(*facts, *(() if is_narrow else (said,)))
        console.print(line)
        if is_narrow:
            console.print(Padding(said, (0, 0, 0, 4)))


def _minutes(minutes: int | None) -> str:
    return "" if minutes is None else f"{minutes} min"
