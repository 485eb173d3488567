"""The messages that a newcomer meets first, word by word in tests/messages.txt; every other one has its room's table.

`pytest tests/test_messages.py --update-messages` writes what they are now.
"""

import sys
from pathlib import Path

import pytest

from harness.cli import main

GOLDEN = Path(__file__).with_name("messages.txt")
SCENARIOS = (
    "stepps: 3",
    "steps: 0",
    "steps: six",
    "learning_rate: 1e-4",
    "model: {path: my_model}",
    "loss: {type: grpo}",
    "steps: 3\nsteps: 4",
    "arrivals: {record: true}",
    "a: [1, 2",
    "",
    "group_size: 6",
    "max_lag: 2",
    "loss: {type: no_baseline}\nepochs_per_batch: 2",
    "sampling: {min_tokens: 33}",
    "placement: {learner: {ranks: 2}}",
    "arms: {a: {group_size: 6}, b: {stepz: 3}}",
)
COMMANDS = (
    "validat quickstart",
    "validate quikstart",
    "validate quickstart --set steps",
    "validate quickstart --set stepz=3",
    "compare nowhere",
)


def test_what_a_newcomer_meets_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "argv", ["grpo-harness"])
    said = []
    for text in (*SCENARIOS, *COMMANDS):
        Path("s.yaml").write_text(text)
        try:
            code = main(text.split() if text in COMMANDS else ["validate", "s.yaml"])
        except SystemExit as stop:  # of the parser
            code = stop.code
        assert code == 2, text
        said.append(f"## {text!r}\n{capsys.readouterr().err}".replace(f"{GOLDEN.parents[1]}/", ""))
    if pytestconfig.getoption("--update-messages"):
        GOLDEN.write_text("\n".join(said), encoding="utf-8")
    assert "\n".join(said) == GOLDEN.read_text(encoding="utf-8")
