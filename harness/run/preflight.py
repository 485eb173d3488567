"""What can be found wrong before anything is built: memory that is too small, probes and trackers that cannot work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from harness.core.errors import UserError
from harness.engines.vllm_options import check_no_share
from harness.models.config import check_divides
from harness.probes.load import load_profile
from harness.probes.nsight import check_nsight
from harness.probes.nvml import list_gpus
from harness.probes.pyspy import check_pyspy
from harness.probes.windows import check_windows
from harness.results.trackers import check_trackers
from harness.run.devices import check_gpu_is_found, slow_precision
from harness.run.interleaving import interleaving_of
from harness.run.memory.check import check_memory
from harness.run.memory.fit import FreeMemory, free_main_memory
from harness.run.memory.shape import shape_for
from harness.run.needs import check, gpus_needed, needs_of
from harness.run.plugins import check_plugins
from harness.scenario.axes import Variant, identical_arms
from harness.scenario.derived import workers_of
from harness.scenario.lanes import all_lanes
from harness.scenario.schema import Scenario


def check_before_start(
    points: Sequence[Sequence[Variant]],
    say: Callable[[str], None] = lambda line: None,
    free: FreeMemory | None = None,
    nvml: Any = None,
) -> None:
    """Refuse runs that do not fit into memory or would leave a GPU aside, or whose functions or probes cannot work.

    Args:
        points: the arms of each point, block by block.
        say: takes the memory plan of each point, in a line, and one each where arms are identical or bfloat16 is slow.
        free: the memory to fit into; None looks at this machine.

    Raises:
        UserError: too little memory, a GPU that PyTorch does not find, a share of a GPU where there is none, a
            plugin that cannot be used, heads that tensor ranks or an engine's workers cannot share,
            more GPUs than there are, an unknown profile, a window outside of the run, a profiler or tracker that cannot
            work here.
    """
    runs = sum(map(len, points))
    points = [variants for variants in points if not variants[0].block]  # the other blocks are like the first
    for variant in (variant for variants in points for variant in variants if variant.scenario.command):
        check(needs_of(variant.scenario))
    points = [
        each for each in ([item for item in variants if not item.scenario.command] for variants in points) if each
    ]
    scenarios = [variant.scenario for variants in points for variant in variants]
    check_gpu_is_found(scenarios, nvml=nvml)
    free = free or free_memory(nvml)
    for scenario in scenarios:
        placement = scenario.placement
        if scenario.device_of(placement.generator, free.has_gpu) == "cpu":
            check_no_share(getattr(scenario.engine, "gpu_memory_utilization", None))
        check_plugins(scenario)
        if scenario.uses_ray and free.has_gpu and placement.address == "local" and placement.device != "cpu":
            check([gpus_needed(scenario, len(free.gpus))])  # of a machine without any: check_gpu_is_found
        shape = shape_for(scenario)[0] if workers_of(scenario) > 1 or scenario.placement.learner.ranks > 1 else None
        if shape is not None:
            check_divides(shape, workers_of(scenario), "engine.tensor_parallel")
        if scenario.placement.learner.ranks > 1 and shape is not None:
            check_divides(shape, scenario.learner.mesh.tensor)
            if shape.runs_on != "own" and scenario.learner.mesh.tensor > 1:
                what = f"learner.mesh.tensor is {scenario.learner.mesh.tensor}, and transformers runs this model"
                fix = "set it to 1: see docs/learner.md for what is wrong with transformers' own plans"
                raise UserError(what, "learner.mesh.tensor", fix)
        check_trackers(scenario.trackers)
        profile = load_profile(scenario.profile)
        check_windows(profile, all_lanes(scenario), scenario.steps)
        if profile.nsight is not None:
            local, cuda = scenario.placement.address == "local", scenario.uses_gpu(free.has_gpu)
            typed = ["python", "-m", "harness", *sys.argv[1:]]
            check_nsight(profile.nsight, scenario.uses_ray, local, typed, cuda)
            if not scenario.uses_ray and runs > 1:
                what = f"nsys captures one range of a process, and this command makes {runs} runs in it"
                raise UserError(what, f"profile: {profile.name}", "profile one run, or take Ray actors")
    for variants in points:
        _refuse_a_view_of_other_arms(variants)
    if any(load_profile(scenario.profile).pyspy is not None for scenario in scenarios):
        check_pyspy()
    alive = list[list[Scenario]]()  # at the same time
    for variants in points:
        own = [variant.scenario for variant in variants]
        alive += [own] if interleaving_of(variants) == "step" else [[scenario] for scenario in own]
    for line in dict.fromkeys(check_memory(group, free) for group in alive):
        say(line)
    for line in identical_arms([variant for variants in points for variant in variants]):
        say(line)
    if slow := slow_precision(scenarios, free.has_gpu):
        say(slow)


def free_memory(nvml: Any = None) -> FreeMemory:
    """Return what main memory this machine has left, and what is free on each GPU that a run may use.

    Drivers do not tell it of every GPU: parts of a large one, and those that share main memory.
    """
    listed, _ = list_gpus(nvml)
    gpus = tuple(gpu["free_bytes"] for gpu in listed or ())
    sizes = tuple(gpu["memory_gib"] and gpu["memory_gib"] << 30 for gpu in listed or ())
    if not gpus and torch.cuda.is_available():
        gpus = (None,) * torch.cuda.device_count()
    return FreeMemory(free_main_memory(), gpus, sizes)


def _refuse_a_view_of_other_arms(variants: Sequence[Variant]) -> None:
    """In one process, torch.profiler and py-spy would record, and slow down, whichever arm has its turn."""
    if interleaving_of(variants) != "step":
        return
    for variant in variants:
        profile = load_profile(variant.scenario.profile)
        if not variant.scenario.uses_ray and (profile.torch_profiler or profile.pyspy):
            raise UserError(
                f"profile {profile.name} looks at the whole process, in which arms take turns by step",
                f"arm {variant.label}",
                "set interleaving to run, or take a transport other than in_process",
            )
