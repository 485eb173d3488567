"""What a shell is told behind TAB: the program is asked as argcomplete's shell functions ask it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def offered(line: str, folder: Path) -> list[str]:
    """Return what follows a line, as bash is told."""
    answer = folder / "answer"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_COMP_WORDBREAKS": " \t\n\"'><=;|&(:",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    subprocess.run([sys.executable, "-m", "harness"], cwd=folder, env=os.environ | asked, check=True)
    return [word.strip() for word in answer.read_text(encoding="utf-8").split("\n")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param("grpo-harness r", ["run", "report", "record"], marks=pytest.mark.slow),
        pytest.param("grpo-harness run quick", ["quickstart", "quickstart_seeds"], marks=pytest.mark.slow),
        ("grpo-harness run mi", ["mine"]),
        ("grpo-harness run quickstart --dr", ["--dry-run"]),
        pytest.param(
            "grpo-harness bench sync_k1 sync_k2 --set replay.sa",
            ["replay.sampling=", "replay.sample_groups="],
            marks=pytest.mark.slow,
        ),
        ("grpo-harness run quickstart --set loss.kl.reference=", ["frozen", "reclone", "polyak"]),
        pytest.param("grpo-harness run quickstart --set loss.kl.monitor=", ["true", "false"], marks=pytest.mark.slow),
        ("grpo-harness run quickstart --set faults.delays=", [""]),
        pytest.param("grpo-harness simulate sync_k1 --machine cpu-2", ["cpu-2-cores"], marks=pytest.mark.slow),
        pytest.param("grpo-harness compare resu", ["results/"], marks=pytest.mark.slow),
        pytest.param("grpo-harness dataset keywords --model x --r", ["--rows"], marks=pytest.mark.slow),
    ],
)
def test_what_is_offered(tmp_path: Path, line: str, words: list[str]) -> None:
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "mine.yaml").write_text("description: mine\n", encoding="utf-8")
    (tmp_path / "results").mkdir()
    assert offered(line, tmp_path) == words
