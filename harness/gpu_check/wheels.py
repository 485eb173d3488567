"""Which packages a bare machine lacks, with their pins. Standard library only: it runs before anything is installed."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_LZMA, ZipFile

ROOT = Path(__file__).parents[2]
EXTRAS = ("train", "ray", "nixl")
THERE = ("torch",)
"""Must be there with its CUDA libraries; they are gigabytes."""
OPTIONAL = ("ray", "nixl", "nvidia-ml-py", "nvtx", "py-spy", "math-verify")
"""Requirements without which the check runs, with something left out."""
UNUSED_IN_RAY = (
    *(f"ray/{part}/" for part in ("jars", "rllib", "data", "train", "tune", "serve", "llm", "air/examples")),
    "ray/dashboard/client/",
)
RAY_PROGRAMS = ("ray/_raylet.so", "ray/core/src/ray/gcs/gcs_server", "ray/core/src/ray/raylet/raylet")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def requirements(root: Path = ROOT) -> list[str]:
    """Return what the harness and its extras ask for, by name: of a checkout, or of the package that is installed."""
    if (root / "pyproject.toml").is_file():
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = project["optional-dependencies"]
        lines = [*project["dependencies"], *(line for part in EXTRAS for line in extras[part])]
    else:
        asked = importlib.metadata.requires("grpo-harness") or []
        lines = [line for line in asked if line.partition("extra == ")[2].strip("'\"") in ("", *EXTRAS)]
    return [name for name in map(_canonical, lines) if name != "grpo-harness"]


def missing_packages() -> list[str]:
    """Return what this Python lacks and the check cannot run without."""
    return [name for name in requirements() if name not in OPTIONAL and not _is_installed(name)]


def wheel_lines(freeze: Path) -> list[str]:
    """Return lines for ``pip download --no-deps -r``: pins of what a machine lacks of all that the project needs.

    The needs of a package are read where it is installed. So this Python should be that of the project's own
    environment, and ``freeze`` say what the other machine has.

    Args:
        freeze: what ``pip freeze`` printed on that machine; the empty path takes this Python.
    """
    if freeze == Path():
        there = {name for name in _closure(requirements()) if _is_installed(name)}
    else:
        there = {_canonical(line) for line in freeze.read_text(encoding="utf-8").splitlines() if _NAME.match(line)}
    pinned = (ROOT / "harness" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {_canonical(line): line for line in pinned if "==" in line and not line.startswith("#")}
    base = _closure((name for name in requirements() if name not in OPTIONAL), there)
    lines = [pins.get(name, name) for name in sorted(base - there)]
    for part in OPTIONAL:
        wanted = sorted(_closure([part], there) - base - there)
        lines += [f"# {part}", *(pins.get(name, name) for name in wanted)] if wanted else []
    return lines


def strip_ray(wheel: Path, folder: Path) -> Path:
    """Write Ray's wheel again without what a run does not use: 79 MB become 26, so that it can be carried.

    Java, the libraries on top of Ray and its dashboard's pages go, and the symbols of its programs. It is packed by
    LZMA, which pip reads where Python has it.

    Args:
        wheel: as it was downloaded.
        folder: where the small one goes, under the same name; made if need be.

    Raises:
        FileNotFoundError: there is no program ``strip``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    small = folder / wheel.name
    with ZipFile(wheel) as whole, ZipFile(small, "w", ZIP_LZMA) as packed, TemporaryDirectory() as scratch:
        for entry in whole.infolist():
            if entry.filename.startswith(UNUSED_IN_RAY):
                continue
            contents = whole.read(entry)
            if entry.filename in RAY_PROGRAMS:
                program = Path(scratch) / "program"
                program.write_bytes(contents)
                subprocess.run(["strip", "--strip-unneeded", program], check=True)
                contents = program.read_bytes()
            packed.writestr(entry, contents, ZIP_LZMA)
    return small


def _closure(names: Iterable[str], there: Collection[str] = ()) -> set[str]:
    """Return packages and what they need, without what comes with torch.

    Needs are read where a package is installed here. One that the other machine has has its needs there.
    """
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found or name in THERE:
            continue
        found.add(name)
        if name in there:
            continue
        asked = (importlib.metadata.requires(name) or []) if _is_installed(name) else []
        waiting += [_canonical(line) for line in asked if _applies(line)]
    return found


def _applies(requirement: str) -> bool:
    from packaging.requirements import Requirement

    marker = Requirement(requirement).marker
    return marker is None or marker.evaluate({"extra": ""})


def _canonical(line: str) -> str:
    match = _NAME.match(line)
    assert match is not None, line
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
