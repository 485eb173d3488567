"""What stands at the end of a run: example rollouts and paths, safe to print."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from harness.core.terminal_text import plain, plain_ends
from harness.core.types import ExampleRollout
from harness.report.console import shown_path
from harness.report.data import before_and_after
from harness.report.text import print_run_summary
from harness.results import RolloutRow, RunFolder


def _row(version: int, prompt: str, reward: float, purpose: str = "evaluate") -> RolloutRow:
    return RolloutRow(purpose, version, prompt, f"{prompt} {version}", "truth", reward, 3, "stop")


def test_rollouts_of_the_first_and_last_version_are_paired_by_prompt() -> None:
    rows = [
        _row(0, "a", 0.0),
        _row(0, "b", 0.0),
        _row(0, "c", 1.0),
        _row(0, "only before", 0.0),
        _row(5, "b", 1.0),
        _row(9, "x", 1.0, purpose="train"),
        _row(8, "a", 0.0),
        _row(8, "b", 1.0),
        _row(8, "c", 0.0),
    ]
    pairs = before_and_after(rows, most=3)
    # b and c changed their reward, a did not
    assert [(before.response, after.response) for before, after in pairs] == [
        ("b 0", "b 8"),
        ("c 0", "c 8"),
        ("a 0", "a 8"),
    ]
    assert before_and_after(rows[:3], most=2) == []
    assert before_and_after([], most=2) == []


def test_a_long_prompt_is_shown_with_both_ends() -> None:
    assert plain_ends("a\nb", 4) == r"a\nb"
    assert plain_ends("abcdefgh", 8) == "abcdefgh"
    assert plain_ends("abcdefghi", 8) == "ab ... defghi"  # 8 // 4 of the beginning, the rest of the end
    assert plain_ends("Instructions. " * 50 + "\nWhat is 2 + 2?", 80).endswith(r"\nWhat is 2 + 2?")


def test_the_summary_ends_with_rollouts_and_pictures(
    make_run: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rollouts = [
        ExampleRollout("Use: cat.", "\x1b[31ma [bold]dog[/bold]\n", "cat", 0.0, 5, "stop", 0),
        ExampleRollout("Use: cat.", "a cat sat.", "cat", 1.0, 4, "stop", 4),
    ]
    folder = make_run(scenario="quickstart", evaluations={0: (0.2, 12.0), 4: (0.6, 14.0)}, rollouts=rollouts).folder
    (folder / "pictures").mkdir()
    (folder / "pictures" / "reward.png").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    output = io.StringIO()
    print_run_summary(folder, Console(file=output, width=120, highlight=False))
    text = output.getvalue()
    assert [line.strip() for line in text.splitlines()][-8:] == [
        "Rollouts of quickstart before and after",
        "prompt: Use: cat.",
        r"version 0, reward 0, 5 tokens: \x1b[31ma [bold]dog[/bold]\n",
        "version 4, reward 1, 4 tokens: a cat sat.",
        "",
        "Files",
        "results/quickstart/20261120-111500",
        "results/quickstart/20261120-111500/pictures/reward.png",
    ]
    assert "quickstart: validation reward 0.20 to 0.60 in 4 steps" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        (
            "plain [bold]words[/bold] \u00e9 \u732b \U0001f408",
            None,
            "plain [bold]words[/bold] \u00e9 \u732b \U0001f408",
        ),
        ("a\x1b[2J\r\n\tb\x9bc", None, r"a\x1b[2J\r\n\tb\x9bc"),
        ("\u202eevil\u2066 \u2028 \ud800", None, r"\u202eevil\u2066 \u2028 \ud800"),
        ("abcdefgh", 8, "abcdefgh"),
        ("abcdefghi", 8, "abcde..."),
        ("\x1b" * 9, 8, r"\x1b\..."),
    ],
)
def test_plain_text_has_no_power_over_the_terminal(text: str, limit: int | None, expected: str) -> None:
    assert plain(text, limit) == expected


def test_paths_are_shown_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert shown_path(tmp_path / "work" / "results" / "a.png") == "results/a.png"
    assert shown_path(tmp_path / "a.png") == str(tmp_path / "a.png")
