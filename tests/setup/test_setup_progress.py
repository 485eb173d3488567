import io
import sys
from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.setup.progress import ProgressLine, run_logged, telling


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("Collecting numpy>=2.0 (from seaborn->grpo-harness==0.1.0)", "Collecting numpy>=2.0"),
        ("  Downloading ray-2.60.0-cp311.whl (79.4 MB)", "Downloading ray-2.60.0-cp311.whl (79.4 MB)"),
        ("Installing collected packages: mpmath, sympy, torch", "Installing 3 packages"),
        ("Requirement already satisfied: numpy in ./lib", ""),
        ("WARNING: something", ""),
        ("", ""),
    ],
)
def test_what_a_line_of_pip_tells(line: str, told: str) -> None:
    assert telling(line) == told


def test_everything_goes_into_the_log_and_the_news_to_the_person(tmp_path: Path) -> None:
    shown: list[str] = []
    program = "print('Collecting a'); print('noise'); print('Installing collected packages: a, b')"
    run_logged(
        [sys.executable, "-c", program], tmp_path / "log", "installing a", lambda seconds, text: shown.append(text)
    )
    assert (tmp_path / "log").read_text() == (
        "\n== installing a\nCollecting a\nnoise\nInstalling collected packages: a, b\n"
    )
    assert list(dict.fromkeys(text for text in shown if text)) == ["Collecting a", "Installing 2 packages"]


def test_a_failure_shows_the_lines_from_the_first_error_on(tmp_path: Path) -> None:
    program = "import sys; print('Collecting a'); print('ERROR: no a'); print('more'); sys.exit(3)"
    with pytest.raises(UserError) as caught:
        run_logged([sys.executable, "-c", program], tmp_path / "log", "installing a", lambda seconds, text: None)
    assert caught.value.what == "installing a failed with exit code 3:\n    ERROR: no a\n    more"
    assert caught.value.where == str(tmp_path / "log")


def test_a_failure_without_an_error_line_shows_the_last_twelve(tmp_path: Path) -> None:
    program = "import sys; [print(f'line {i}') for i in range(20)]; sys.exit(1)"
    with pytest.raises(UserError) as caught:
        run_logged([sys.executable, "-c", program], tmp_path / "log", "x", lambda seconds, text: None)
    assert caught.value.what.splitlines()[1:] == [f"    line {i}" for i in range(8, 20)]


def test_a_command_gets_no_standard_input(tmp_path: Path) -> None:
    run_logged(
        [sys.executable, "-c", "import sys; print(repr(sys.stdin.read()))"], tmp_path / "log", "x", lambda s, t: None
    )
    assert (tmp_path / "log").read_text() == "\n== x\n''\n"


def test_without_a_terminal_a_line_comes_only_every_few_seconds() -> None:
    stream = io.StringIO()
    line = ProgressLine(stream, every_s=5.0)
    for seconds in (1.0, 4.9, 5.0, 6.0, 10.5):
        line.show(seconds, f"at {seconds}")
    assert stream.getvalue() == "     5 s  at 5.0\n    10 s  at 10.5\n"


def test_on_a_terminal_the_line_is_written_again_in_place() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    line = ProgressLine(stream)
    line.show(1.0, "a")
    line.show(2.0, "b")
    line.clear()
    assert stream.getvalue() == "\r\x1b[K     1 s  a\r\x1b[K     2 s  b\r\x1b[K"
