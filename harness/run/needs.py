"""What a scenario asks of a machine: processors, GPUs, packages, files; what of it is missing here, and what brings it.

One table for a run, ``--dry-run``, ``validate`` and ``list``.
"""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from harness.core.errors import UserError
from harness.core.extras import EXTRA_OF, how_to_install
from harness.core.spawn_pool import usable_cores
from harness.engines.vllm_options import check_vllm_installed
from harness.probes.nvml import list_gpus
from harness.results import lane_kind
from harness.scenario.lanes import lanes_of, rank_lanes
from harness.scenario.schema import Scenario
from harness.settings.placement import PartSettings

_SPELT = {"ray": "Ray", "vllm": "vLLM", "nixl": "NIXL", "sglang": "SGLang", "deepspeed": "DeepSpeed", "cupy": "CuPy"}
_PACKAGE_OF_TRANSPORT = {"nixl": "nixl", "nccl": "cupy"}
_FILES = ("train", "validation")

Find = Callable[[str], object | None]
"""Finds a package by its name."""


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that a scenario needs.

    Attributes:
        name: for a list: ``2 GPUs``, ``vLLM``, ``files``.
        missing: why this machine does not have it; empty where it does.
        fix: what brings it.
        place: the setting that asks for it.
    """

    name: str
    missing: str = ""
    fix: str = ""
    place: str = ""


def needs_of(
    scenario: Scenario,
    find: Find = find_spec,
    gpus: Callable[[], int] = lambda: len(list_gpus()[0] or ()),
    cores: Callable[[], int] = usable_cores,
) -> list[Need]:
    """Return what one run needs beside torch and some CPUs, missing or not.

    Args:
        scenario: one run: no arms, no sweep.
        find: finds a package by its name.
        gpus: counts this machine's, by default as its driver does.
        cores: counts its CPUs.
    """
    if scenario.command:
        return [_program(scenario.command)]
    torch = [Need("torch", "torch is not installed", how_to_install("train"))] if find("torch") is None else []
    few_cpus = [need for need in [cpus_needed(scenario, cores())] if need.missing]
    wants_gpu = scenario.uses_gpu(has_gpu=False)
    with_gpus = [gpus_needed(scenario, gpus())] if wants_gpu else []
    return [*torch, *few_cpus, *with_gpus, *packages_needed(scenario, find), *_files_needed(scenario)]


def check(needs: Iterable[Need]) -> None:
    """Refuse what is missing first.

    Raises:
        UserError: with the setting that asks for it, and what brings it.
    """
    for need in needs:
        if need.missing:
            raise UserError(need.missing, need.place, need.fix)


# ---- processors and GPUs

Resources = dict[str, float]


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    lane: str
    cpus: float
    gpus: float

    @property
    def bundle(self) -> Resources:
        """The form in which Ray takes it; Ray refuses an empty one."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}


@dataclass(frozen=True, slots=True)
class Layout:
    """What is reserved together: bundles, how Ray lays them over nodes, and each lane's bundle by number."""

    bundles: list[Resources]
    strategy: str
    bundle_of: dict[str, int]


def requests_of(scenario: Scenario) -> list[ResourceRequest]:
    placement = scenario.placement
    named: list[tuple[str, PartSettings]] = [(lane, placement.learner) for lane in rank_lanes(scenario)]
    for kind, settings in (("generator", placement.generator), ("scorer", placement.scorer)):
        named += [(lane, settings) for lane in lanes_of(kind, scenario)]
    return [ResourceRequest(lane, settings.cpus, settings.gpus) for lane, settings in named]


def layouts(
    requests: list[ResourceRequest], colocated: bool, strategy: str, ranks_per_node: Sequence[int] | None = None
) -> list[Layout]:
    """Return what is to be reserved; a part that asks for nothing needs no bundle.

    Args:
        requests: one for each part.
        colocated: Generators and Learner share what the largest of them asks for, since they take turns; the ranks of
            a Learner work together, and count as one. Ranks on GPUs have a bundle each, and the others share those.
        strategy: how Ray lays the bundles over nodes.
        ranks_per_node: of the Learner, in the order of its ranks, each on a node of its own; None leaves it to Ray.
    """
    if colocated:
        return [_shared(requests, strategy)]
    wanting = [request for request in requests if request.cpus or request.gpus]
    apart: list[Layout] = []
    if ranks_per_node is not None:
        ranks = [request for request in wanting if _is_rank(request)]
        node_of = [node for node, count in enumerate(ranks_per_node) for _ in range(count)]
        bundles = [
            _sum(rank for rank, at in zip(ranks, node_of, strict=True) if at == node).bundle
            for node in range(len(ranks_per_node))
        ]
        bundle_of = {rank.lane: node for rank, node in zip(ranks, node_of, strict=True)}
        apart.append(Layout(bundles, "STRICT_SPREAD", bundle_of))
        wanting = [request for request in wanting if not _is_rank(request)]
    if wanting:
        bundle_of = {request.lane: index for index, request in enumerate(wanting)}
        apart.append(Layout([request.bundle for request in wanting], strategy, bundle_of))
    return apart


def _is_rank(request: ResourceRequest) -> bool:
    return request.lane.startswith("learner")


def _sum(requests: Iterable[ResourceRequest]) -> ResourceRequest:
    each = list(requests)
    return ResourceRequest("", sum(request.cpus for request in each), sum(request.gpus for request in each))


def _shared(requests: list[ResourceRequest], strategy: str) -> Layout:
    """One place for all, or one for each rank on a GPU: NCCL takes no two on one. Generators are dealt to these."""
    places = max(1, sum(1 for request in requests if _is_rank(request) and request.gpus))
    numbers, bundle_of = defaultdict[str, Iterator[int]](count), dict[str, int]()
    for request in requests:
        bundle_of[request.lane] = next(numbers[lane_kind(request.lane)]) % places
    bundles = [[request for request in requests if bundle_of[request.lane] == place] for place in range(places)]
    return Layout([_largest(each) for each in bundles], strategy, bundle_of)


def _largest(requests: list[ResourceRequest]) -> Resources:
    each = [_sum(filter(_is_rank, requests)), *requests]
    return ResourceRequest("", max(part.cpus for part in each), max(part.gpus for part in each)).bundle


def reserved(scenario: Scenario, name: str) -> float:
    placement = scenario.placement
    laid = layouts(requests_of(scenario), placement.colocated, placement.strategy, placement.learner.per_node)
    return sum(bundle.get(name, 0.0) for layout in laid for bundle in layout.bundles)


def cpus_reserved(scenario: Scenario) -> float:
    """Return how many CPUs the actors of a run reserve; in one process none."""
    return reserved(scenario, "CPU") if scenario.uses_ray else 0.0


def cpus_needed(scenario: Scenario, have: int) -> Need:
    """Return the CPUs that a run reserves of a machine with so many; a cluster is asked when it is joined."""
    placement, wanted = scenario.placement, cpus_reserved(scenario)
    name = f"{wanted:g} CPUs"
    if wanted <= have or placement.address != "local":
        return Need(name)
    learner, generators, scorers = placement.learner, placement.generator, placement.scorer
    return Need(
        name,
        f"the parts ask for {wanted:g} CPUs (learner {learner.ranks * learner.cpus:g}, {generators.count} x generator "
        f"{generators.cpus:g}, {scorers.count} x scorer {scorers.cpus:g}), and this machine has {have}",
        "lower placement.*.cpus (fractions share a CPU), use fewer parts, or set placement.address to a cluster",
        "placement",
    )


def gpus_needed(scenario: Scenario, have: int) -> Need:
    """Return the GPUs that a run computes on; less than 1 is a share of one."""
    wanted = reserved(scenario, "GPU") or 1.0
    name = "GPU" if wanted <= 1 else f"{wanted:g} GPUs"
    if wanted <= have or scenario.placement.address != "local":
        return Need(name)
    learner, generator = scenario.placement.learner, scenario.placement.generator
    parts = f" (learner {learner.ranks} x {learner.gpus:g}, generator {generator.count} x {generator.gpus:g})"
    fix = (
        "lower placement.*.gpus (fractions share a GPU), use fewer ranks, Generators or workers "
        "(engine.tensor_parallel), or set placement.address to a cluster"
        if have
        else "run it on a machine that has them; most scenarios run on CPUs with placement.device=cpu"
    )
    what = f"the parts ask for {wanted:g} GPUs{parts if wanted > 1 else ''}, and this machine has {have}"
    return Need(name, what, fix, "placement")


# ---- packages and files


def packages_needed(scenario: Scenario, find: Find = find_spec) -> list[Need]:
    """Return the packages beside torch that a run needs, and the compiler that one of them calls."""
    sweep, learner, trackers = scenario.transport_sweep, scenario.learner, scenario.trackers
    by_transports = {scenario.transport.type} if sweep is None else set(sweep.transports)
    needs = []
    if scenario.uses_ray or scenario.placement.learner.ranks > 1 or sweep is not None:
        needs.append(_package("ray", "transport.type", scenario.transport.type, "in_process", find))
    for transport, package in _PACKAGE_OF_TRANSPORT.items():
        if transport in by_transports:
            needs.append(_package(package, "transport.type", transport, "object_store_numpy", find))
    if scenario.engine.type == "vllm":
        needs.append(_vllm(find))
    if scenario.engine.type == "sglang":
        needs.append(_package("sglang", "engine.type", "sglang", "native", find))
    if learner.sharding == "deepspeed" and scenario.placement.learner.ranks > 1:
        needs.append(_package("deepspeed", "learner.sharding", "deepspeed", "fsdp2", find))
        needs += compiler_needed(scenario)
    needs += [_package(name, "trackers", name, "", find) for name in ("wandb", "mlflow") if name in trackers]
    return needs


def _program(command: Sequence[str]) -> Need:
    name, script = command[0], next((word for word in command[1:2] if word.endswith(".py")), None)
    missing = "" if shutil.which(name) is not None else f"there is no program {name}"
    if not missing and script is not None and not Path(script).is_file():
        missing = f"there is no file {script}"
    return Need(f"program {name}", missing, "install it, or name another in command", "command")


def _package(name: str, place: str, value: str, instead: str, find: Find) -> Need:
    spelt, extra = _SPELT.get(name, name), EXTRA_OF.get(name)
    if find(name) is not None:
        return Need(spelt)
    fix = f"install {name} by hand: docs/sglang.md" if extra is None else how_to_install(extra)
    fix += f", or set {place} to {instead}" if instead else ""
    return Need(spelt, f"{place} is {value}, and the package {name} is not installed", fix, place)


def _vllm(find: Find) -> Need:
    try:
        check_vllm_installed(find)
    except UserError as error:
        return Need("vLLM", error.what, error.fix or "", error.where or "")
    return Need("vLLM")


def compiler_needed(scenario: Scenario) -> list[Need]:
    """Return the compiler that DeepSpeed calls at its first start on a CPU, where there is none."""
    compiler = os.environ.get("CXX", "c++")
    if scenario.device_of(scenario.placement.learner, has_gpu=True) == "cuda" or shutil.which(compiler) is not None:
        return []
    what = (
        "learner.sharding is deepspeed, which compiles an operator at its first start on a CPU, and there is no C++ "
        f"compiler {compiler}"
    )
    fix = "install one (Debian and Ubuntu: the package g++), or set learner.sharding to fsdp2"
    return [Need("C++ compiler", what, fix, "learner.sharding")]


def _files_needed(scenario: Scenario) -> list[Need]:
    paths = {f"task.{key}": path for key in _FILES if (path := getattr(scenario.task, key, None))}
    missing = {key: path for key, path in paths.items() if not Path(path).is_file()}
    needs = [
        Need("files", f"there is no file {path}", f"put it there, or name another: --set {key}=FILE", key)
        for key, path in missing.items()
    ]
    needs += [Need("files")] if paths and not missing else []
    model = getattr(scenario.model, "path", None)
    if model is not None:
        is_folder = model.startswith((".", "/", "~"))
        lacking = f"there is no folder {model}" if is_folder and not Path(model).expanduser().is_dir() else ""
        fix = "put a Hugging Face model there, or name another: --set model.path=FOLDER_OR_HUB_NAME"
        needs.append(Need("model", lacking, fix, "model.path"))
    return needs
