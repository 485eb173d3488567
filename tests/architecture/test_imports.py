"""Who imports what, seen from fresh interpreters. The layers themselves are import-linter's, in `make check`."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "ray", "transformers", "vllm"}
PICTURES = {"pandas", "seaborn", "matplotlib"}
LIGHT = (
    "harness",
    "harness.cli",
    "harness.compare",
    "harness.core.errors",
    "harness.loop",
    "harness.run.memory",
    "harness.core.protocols",
    "harness.results.recorder",
    "harness.results",
    "harness.scenario.load",
    "harness.simulate.calibrate.command",
    "harness.simulate.calibrate.quality",
    "harness.simulate.clock",
    "harness.simulate.machine",
    "harness.simulate.parts",
    "harness.simulate.whatif.command",
    "harness.simulate.whatif.report",
    "harness.tasks.jsonl",
    "harness.tasks.keywords",
    "harness.tasks.maths",
    "harness.core.trace",
    "harness.core.types",
)


@cache
def loaded_by(statement: str) -> set[str]:
    """Return the names in ``sys.modules`` after the statement, in an interpreter of its own."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@cache
def imports_of(path: Path) -> set[str]:
    """Return the top-level names of every import statement in a file, wherever in it they stand."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def files_importing(name: str) -> list[str]:
    """Return the files of the package with an import statement for ``name``."""
    files = sorted((ROOT / "harness").rglob("*.py"))
    return [path.relative_to(ROOT).as_posix() for path in files if name in imports_of(path)]


def test_light_modules_load_neither_heavy_libraries_nor_those_for_pictures() -> None:
    assert loaded_by(f"import {', '.join(LIGHT)}") & (HEAVY | PICTURES) == set()


NEVER = HEAVY | PICTURES | {"jinja2", "pydantic", "scipy.stats", "scipy.optimize"}
RUN = "results/reference/sync_k/20261125-210813/k1"


def test_the_package_and_comparing_load_what_they_need_alone() -> None:
    assert loaded_by("import harness") & {"numpy", "pandas", "pydantic", "msgspec"} == set()
    assert loaded_by("import harness; harness.compare_runs") & (HEAVY | PICTURES | {"pandas", "scipy"}) == set()
    assert loaded_by("import harness.compare.stats, harness.compare") & (NEVER | {"scipy", "rich"}) == set()


@pytest.mark.parametrize(
    ("typed", "never"),
    [
        ("compare results/reference/rdt_nixl", NEVER),
        ("compare results/reference/sync_k", NEVER - {"pydantic"}),  # of one run each, for which a command is proposed
        ("report results/reference/rdt_nixl -o OUT/report.html", HEAVY | {"pydantic"}),
        (f"trace {RUN} -o OUT/trace.json", NEVER | {"scipy"}),
        ("import trl tests/data/importers/trl_vllm.jsonl --out OUT", HEAVY | {"pydantic", "scipy", "tensorboardX"}),
    ],
)
def test_a_command_loads_what_it_needs_alone(typed: str, never: set[str], tmp_path: Path) -> None:
    words = typed.replace("OUT", str(tmp_path)).split()
    command = "import contextlib, io\nfrom harness import cli\nwith contextlib.redirect_stdout(io.StringIO()):"
    assert loaded_by(f"{command}\n    assert cli.main({words}) == 0") & never == set()


def test_the_probe_sees_what_is_imported() -> None:
    assert {"torch", "numpy"} <= loaded_by("import harness.grpo")


def test_the_maths_loads_torch_alone_and_no_tracer() -> None:
    unwanted = {"ray", "transformers", "vllm", "pydantic", "pandas", "harness.core.trace"}
    assert loaded_by("import harness.grpo") & unwanted == set()


def test_the_loop_uses_no_thread_and_no_wall_clock() -> None:
    imported = set().union(*(imports_of(path) for path in (ROOT / "harness/loop").glob("*.py")))
    assert "asyncio" in imported
    assert imported & {"threading", "time", "concurrent", "multiprocessing"} == set()


def test_ray_appears_only_where_actors_and_transports_are_made() -> None:
    allowed = ("harness/run", "harness/transports", "harness/testing/transport.py")
    assert [path for path in files_importing("ray") if not path.startswith(allowed)] == []


@pytest.mark.parametrize(
    ("library", "only"),
    [
        ("pynvml", {"harness/probes/nvml.py"}),
        ("vllm", {"harness/engines/vllm.py", "harness/engines/vllm_worker.py"}),  # the engine's side, and the workers'
    ],
)
def test_a_library_for_one_place_appears_in_no_other(library: str, only: set[str]) -> None:
    assert set(files_importing(library)) <= only


def test_pictures_are_drawn_in_the_report_alone() -> None:
    drawing = {path for library in PICTURES for path in files_importing(library)}
    elsewhere = {path for path in drawing if not path.startswith("harness/report/")}
    frames = (
        "results/frames",
        "results/importers/convert",
        "results/importers/logs",
        "compare/experiment",
        "simulate/calibrate/effects",
        "simulate/sweep",
    )
    assert elsewhere == {f"harness/{name}.py" for name in frames}


LOADING = re.compile(r"\b(LLM|AsyncLLM|pipeline|Engine|from_pretrained|from_config)\b")


def loads_of_models(tree: ast.AST) -> list[ast.Call]:
    """Return the calls that transformers, vLLM or SGLang answer by loading what a model folder names."""

    def is_load(called: ast.expr) -> bool:
        if isinstance(called, ast.Name):
            return called.id in ("LLM", "AsyncLLM", "pipeline")
        if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
            return False
        owner, name = called.value.id, called.attr
        is_auto = owner.startswith("Auto") and name in ("from_pretrained", "from_config")
        return is_auto or (owner, name) == ("sglang", "Engine")

    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and is_load(node.func)]


def test_every_load_of_a_model_refuses_the_folders_own_code() -> None:
    files = [path for name in ("harness", "tests") for path in sorted((ROOT / name).rglob("*.py"))]
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    loads = {path: loads_of_models(ast.parse(text)) for path, text in texts.items() if LOADING.search(text)}
    assert sum(map(len, loads.values())) >= 5
    trusting = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path, calls in loads.items()
        for call in calls
        if not any(
            word.arg == "trust_remote_code" and isinstance(word.value, ast.Constant) and word.value.value is False
            for word in call.keywords
        )
    ]
    assert trusting == []
