"""What a scenario asks of a machine beside a CPU: packages, GPUs, files; and what of it is missing here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from harness.core.extras import EXTRA_OF, how_to_install
from harness.probes.nvml import list_gpus
from harness.scenario.derived import places_of_colocated
from harness.scenario.schema import Scenario

_PACKAGE_OF_TRANSPORT = {"nixl": "nixl", "nccl": "cupy"}
_SPELT = {"ray": "Ray", "vllm": "vLLM", "nixl": "NIXL", "sglang": "SGLang", "deepspeed": "DeepSpeed", "cupy": "CuPy"}
_FILES = ("train", "validation")


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that a scenario needs.

    Attributes:
        name: for a list: ``2 GPUs``, ``vLLM``, ``files``.
        missing: why this machine does not have it; empty where it does.
        fix: what brings it.
    """

    name: str
    missing: str = ""
    fix: str = ""


def needs_of(
    scenario: Scenario, find: Callable[[str], object | None] = find_spec, gpus: Callable[[], int] | None = None
) -> list[Need]:
    """Return what one run needs beside torch and a CPU, missing or not.

    Args:
        scenario: one run: no arms, no sweep.
        find: finds a package by its name.
        gpus: counts this machine's; None asks its driver.
    """
    needs = [_package("torch", find)] if find("torch") is None else []
    found = _gpus_wanted(scenario)
    if found:
        have = gpus() if gpus is not None else len(list_gpus()[0] or ())
        lacking = f"it asks for {found:g} GPUs, and this machine has {have}" if have < found else ""
        name = "GPU" if found <= 1 else f"{found:g} GPUs"
        needs.append(
            Need(
                name, lacking, "run it on a machine that has them; most scenarios run on CPUs with placement.device=cpu"
            )
        )
    names = [package for package, wanted in _packages(scenario).items() if wanted]
    return needs + [_package(name, find) for name in names] + _files(scenario)


def _packages(scenario: Scenario) -> dict[str, bool]:
    sweep = scenario.transport_sweep
    transports = {scenario.transport.type} if sweep is None else set(sweep.transports)
    return {
        "ray": scenario.uses_ray or scenario.placement.learner.ranks > 1 or sweep is not None,
        **{package: name in transports for name, package in _PACKAGE_OF_TRANSPORT.items()},
        "vllm": scenario.engine.type == "vllm",
        "sglang": scenario.engine.type == "sglang",
        "deepspeed": scenario.learner.sharding == "deepspeed",
        **{name: name in scenario.trackers for name in ("wandb", "mlflow")},
    }


def _package(name: str, find: Callable[[str], object | None]) -> Need:
    part = EXTRA_OF.get(name)
    fix = f"install {name} by hand: docs/sglang.md" if part is None else how_to_install(part)
    spelt = _SPELT.get(name, name)
    return Need(spelt, f"{spelt} is not installed" if find(name) is None else "", fix)


def _gpus_wanted(scenario: Scenario) -> float:
    """Return how many GPUs a run asks for; less than 1 is a share of one, and 0 none."""
    if not scenario.uses_gpu(has_gpu=False):
        return 0.0
    return gpus_reserved(scenario) or 1.0


def gpus_reserved(scenario: Scenario) -> float:
    """Return how many GPUs the parts of a run with Ray reserve; colocated ones share what the largest asks for."""
    placement = scenario.placement
    learner, generator = placement.learner.ranks * placement.learner.gpus, placement.generator.gpus
    if placement.colocated:
        return max(learner, places_of_colocated(scenario) * generator)
    return learner + placement.generator.count * generator


def _files(scenario: Scenario) -> list[Need]:
    paths = {f"task.{key}": path for key in _FILES if (path := getattr(scenario.task, key, None))}
    missing = {key: path for key, path in paths.items() if not Path(path).is_file()}
    needs = [
        Need("files", f"there is no file {path}", f"put it there, or name another: --set {key}=FILE")
        for key, path in missing.items()
    ]
    needs += [Need("files")] if paths and not missing else []
    model = getattr(scenario.model, "path", None)
    if model is not None:
        is_folder = model.startswith((".", "/", "~"))
        lacking = f"there is no folder {model}" if is_folder and not Path(model).expanduser().is_dir() else ""
        fix = "put a Hugging Face model there, or name another: --set model.path=FOLDER_OR_HUB_NAME"
        needs.append(Need("model", lacking, fix))
    return needs
