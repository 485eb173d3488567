"""Where parts compute, with how many threads, and what of that this machine cannot give."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, Literal

import torch

from harness.core.errors import UserError
from harness.core.spawn_pool import usable_cores
from harness.probes.nvml import list_gpus, open_gpu_probe
from harness.scenario.derived import no_gpu_error, threads_on
from harness.scenario.schema import Scenario
from harness.settings.placement import PartSettings


def threads_of(scenario: Scenario, part: PartSettings) -> int:
    """Return the CPU threads of a part: as asked for, else the CPUs of its actor, else its share of the cores."""
    return threads_on(usable_cores(), scenario, part)


def resolve_device(
    scenario: Scenario, part: PartSettings, torch_finds_gpu: Callable[[], bool] = torch.cuda.is_available
) -> Literal["cpu", "cuda"]:
    """Return where the part computes in this process; see ``Scenario.device_of``.

    Raises:
        UserError: a GPU is asked for and there is none.
    """
    has_gpu = torch_finds_gpu()
    device = scenario.device_of(part, has_gpu)
    if device == "cuda" and not has_gpu:
        raise no_gpu_error()
    return device


def slow_precision(
    scenarios: Sequence[Scenario],
    has_gpu: bool,
    has_bfloat16: Callable[[], bool] = torch.cpu._is_avx512_bf16_supported,
) -> str:
    """Return a line where a part would compute in 16 bits on an x86-64 CPU without instructions for it, else nothing.

    An x86-64 CPU multiplies float16 fast with AMX only, which torch does not tell; bfloat16 also with AVX-512 BF16.
    """
    slow = {"float16"} if has_bfloat16() else {"float16", "bfloat16"}
    asked = {
        f"{name}.precision": precision
        for scenario in scenarios
        for name, part in (("model", scenario.placement.learner), ("engine", scenario.placement.generator))
        if (precision := getattr(getattr(scenario, name), "precision", None)) in slow
        if scenario.device_of(part, has_gpu) == "cpu"
    }
    if not asked or platform.machine() != "x86_64":
        return ""
    fix = " ".join(f"--set {key}=float32" for key in sorted(asked))
    names = " and ".join(sorted(set(asked.values())))
    return f"{names}: many times as slow on this CPU, which has no instructions for it; {fix}"


def check_gpu_is_found(
    scenarios: Sequence[Scenario],
    *,
    nvml: Any = None,
    environment: Mapping[str, str] = os.environ,
    torch_finds_gpu: Callable[[], bool] = torch.cuda.is_available,
    torch_cuda: str | None = torch.version.cuda,
) -> None:
    """Refuse what would compute on the CPU in silence: the driver lists a GPU, and PyTorch finds none.

    PyTorch finds none where the driver is older than the CUDA version it was built for, where it was built without, and
    where CUDA cannot be initialised.

    CUDA_VISIBLE_DEVICES may hide every GPU on purpose.

    Args:
        torch_cuda: that PyTorch was built for; None: for the CPU alone.

    Raises:
        UserError: with the versions of both.
    """
    listed, _ = list_gpus(nvml, environment)
    wanting = [
        each
        for each in scenarios
        if each.placement.address == "local" and each.uses_gpu(has_gpu=True) and each.engine.type != "paced"
    ]
    if not listed or not wanting or torch_finds_gpu():
        return
    with closing(open_gpu_probe(nvml, environment)) as probe:
        driver = probe.driver()
    if torch_cuda is not None and _runs_on(torch_cuda, driver.cuda):
        ways = (
            "see what torch.cuda.init() says: libcuda may be missing (a container needs the driver capability "
            "`compute`), or MIG is on and has no instance"
        )
    else:
        newer_driver = f"a driver for CUDA {torch_cuda} or newer, or " if torch_cuda else ""
        ways = f"install {newer_driver}a PyTorch for CUDA {driver.cuda} or older"
    raise UserError(
        f"the driver lists {listed[0]['name']}, and PyTorch finds no GPU: driver {driver.version} runs CUDA up to "
        f"{driver.cuda}, and PyTorch {torch.__version__} is built for {f'CUDA {torch_cuda}' if torch_cuda else 'CPUs'}",
        f"placement.device: {wanting[0].placement.device}",
        f"{ways}; to run on the CPU on purpose, set placement.device (or --device) to cpu",
    )


def _runs_on(torch_cuda: str, driver_cuda: str) -> bool:
    if driver_cuda == "unknown":
        return False
    asked, runs = (tuple(map(int, version.split("."))) for version in (torch_cuda, driver_cuda))
    return asked <= runs
