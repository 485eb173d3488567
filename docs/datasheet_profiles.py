"""Machine profiles of GPUs that nobody here has measured, derived from their data sheets as rooflines.

``python docs/datasheet_profiles.py`` writes them into ``profiles/machines``; a test compares them with
what stands there. Decoding reads weights and keys and values at a share of the memory's bandwidth, prompts and updates
compute at a share of the peak, weights travel at a share of the link (Williams et al. 2009, Comm. ACM 52:65). Bounds
are added up instead of taking the larger one, which is pessimistic by a factor of 2 at most. One GPU holds each part,
or each rank of a Learner.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.simulate.machine import FOLDER, Device, MachineProfile, StageCost, profile_yaml, rounded, save_machine
from harness.simulate.ranks import COLLECTIVES

MADE = "2026-11-26"

TRAINING_SHARE = 0.4
"""Of the peak. Llama 3's pre-training reached 38-43% on H100 (arXiv:2407.21783, table 4): assumed for updates, and for
passes without gradients."""
PREFILL_SHARE = 0.5
"""Of the peak. PaLM 540B reached 76% in prefill at large batches (Pope et al. 2022, arXiv:2211.05102); prompts of
reinforcement learning are shorter: assumed."""
MEMORY_SHARE = 0.6
"""Of the memory's bandwidth, in decoding and for the optimizer: of the size that LLM servers report
(https://www.databricks.com/blog/llm-inference-performance-engineering-best-practices): assumed."""
LINK_SHARE = 0.7
"""Of one direction of the link, and of the network between machines: assumed."""
COLLECTIVE_S, HOP_S = 6.6e-6, {"NVLink": 0.6e-6, "PCIe": 1.0e-6, "network": 2.7e-6}
"""Latency of a collective in a ring, and of each hop in it: NCCL's own table for short messages, as
torch/_inductor/comm_analysis.py has it."""
SHOWN_SHARE = 0.25
"""Of the collectives that have computing beside them, what a stage is longer by all the same: assumed."""
MODES = ("ddp", "fsdp2", "hybrid", "tensor")
ADAMW_STREAMS = 7
"""Times the size of the weights in float32 that AdamW reads (weights, gradients, two moments) or writes (three)."""
BACKWARD = 3
"""Operations of a pass with gradients over those of one without: see ``harness.models.flops``."""
NARROW_CACHE = 0.5
"""``context_gb`` counts keys and values in float32; engines for GPUs keep them in bfloat16."""
STEP_S, CALL_S, RESPONSE_S, DISK_GB_S, HOST_GB_S = 1e-3, 2e-3, 1e-4, 1.0, 20.0
"""A decode step's scheduling and sampling; one way of a call to an actor, as on the measured CPU machine; scoring one
response; writing to a disk; copying from a GPU to pinned main memory. Assumed."""
NATIVE_LAYER_S = 0.27e-3
"""A layer of a decode step of the native engine, whose kernels the host launches one by one: 7.5 ms for 28 layers,
whatever the rows, on the host of one H100 (docs/measured/h100.md). It depends on the host more than on the GPU."""
LOG_SD = 0.35
"""Spread of the truth around these costs. Shares of the peak from 0.25 to 0.6 are reported for training; that range, as
90% of a normal distribution of logarithms, has a standard deviation of ln(0.6 / 0.25) / 3.29 = 0.27. Another 0.2 is for
what is left out: attention's own products, launches, padding."""
NOISE_LOG_SD = 0.05


@dataclass(frozen=True, slots=True)
class DataSheet:
    """What a maker says of a GPU.

    Attributes:
        name: of the profile.
        gpu: model.
        tflops: dense bfloat16 on tensor cores with float32 accumulation; sheets name twice that, with sparsity.
        memory_gb_s: of its memory.
        memory_gib: as the sheet has it.
        link_gb_s: in one direction; sheets name both together.
        link: its name.
        source: web address of the sheet.
        gpus: of one machine.
        network_gb_s: of one GPU to other machines, in one direction; None where no usual machine has such a network.
        machine: web address of the machine's sheet, which says both.
    """

    name: str
    gpu: str
    tflops: float
    memory_gb_s: float
    memory_gib: float
    link_gb_s: float
    link: str
    source: str
    gpus: int = 8
    network_gb_s: float | None = None
    machine: str | None = None


DGX = (
    "https://docs.nvidia.com/dgx-basepod/reference-architecture-infrastructure-foundation-enterprise-ai/latest/"
    "core-components.html"
)
"""DGX B200, H200 and H100: eight GPUs, and a ConnectX-7 adapter of 400 Gbit/s for each."""
DGX_A100 = "https://images.nvidia.com/aem-dam/Solutions/Data-Center/nvidia-dgx-a100-datasheet.pdf"
"""Eight GPUs, and a ConnectX-6 adapter of 200 Gbit/s for each."""
NCCL_LATENCIES = "https://github.com/pytorch/pytorch/blob/main/torch/_inductor/comm_analysis.py"
DATA_SHEETS = (
    DataSheet(
        "a100-80gb",
        "A100 80GB SXM",
        312,
        2039,
        80,
        300,
        "NVLink 3",
        "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/"
        "nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf",
        network_gb_s=25,
        machine=DGX_A100,
    ),
    DataSheet(
        "h100-sxm",
        "H100 SXM",
        989,
        3350,
        80,
        450,
        "NVLink 4",
        "https://www.nvidia.com/en-us/data-center/h100/",
        network_gb_s=50,
        machine=DGX,
    ),
    DataSheet(
        "h200-sxm",
        "H200 SXM",
        989,
        4800,
        141,
        450,
        "NVLink 4",
        "https://www.nvidia.com/en-us/data-center/h200/",
        network_gb_s=50,
        machine=DGX,
    ),
    DataSheet(
        "b200-sxm",
        "B200 SXM",
        2250,
        8000,
        180,
        900,
        "NVLink 5",
        "https://nvdam.widen.net/s/wwnsxrhm2w/blackwell-datasheet-3384703",
        network_gb_s=50,
        machine=DGX,
    ),
    DataSheet("l40s", "L40S", 362, 864, 48, 32, "PCIe 4.0 x16", "https://www.nvidia.com/en-us/data-center/l40s/"),
    DataSheet(
        "rtx-4090",
        "GeForce RTX 4090",
        165.2,
        1008,
        24,
        32,
        "PCIe 4.0 x16",
        "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf",
    ),
)
EFFICIENCY_SOURCES = (
    "https://arxiv.org/abs/2407.21783",
    "https://arxiv.org/abs/2211.05102",
    "https://www.databricks.com/blog/llm-inference-performance-engineering-best-practices",
)


def datasheet_profile(sheet: DataSheet) -> MachineProfile:
    """Return the profile that is derived from a data sheet."""
    return MachineProfile(
        name=sheet.name,
        description=f"{sheet.gpu}, not measured: a roofline from its data sheet and assumed efficiencies",
        origin="datasheet",
        made=MADE,
        device=Device(
            name=sheet.gpu,
            gpus=sheet.gpus,
            flops=sheet.tflops * 1e12,
            memory_gb_s=sheet.memory_gb_s,
            memory_gib=sheet.memory_gib,
            link_gb_s=sheet.link_gb_s,
            network_gb_s=sheet.network_gb_s,
        ),
        sources=(sheet.source, *([sheet.machine] if sheet.machine else []), *EFFICIENCY_SOURCES, NCCL_LATENCIES),
        notes=tuple(_notes(sheet)),
        stages=tuple(_stages(sheet)),
    )


def _notes(sheet: DataSheet) -> Iterator[str]:
    yield (
        f"{sheet.tflops:g} TFLOP/s dense bfloat16, {sheet.memory_gb_s:g} GB/s of memory, {sheet.link_gb_s:g} GB/s one "
        f"way over {sheet.link}: {sheet.source}"
    )
    if sheet.network_gb_s:
        yield f"{sheet.gpus} GPUs in a machine, {sheet.network_gb_s:g} GB/s of network one way each: {sheet.machine}"
    else:
        yield f"assumed: {sheet.gpus} GPUs in a machine, and no network between machines"
    yield (
        f"collectives of ranks, not measured: {1e6 * COLLECTIVE_S:g} us each and {1e6 * _hop_s(sheet.link):g} us a hop "
        f"({1e6 * HOP_S['network']:g} us between machines), as NCCL has it for rings ({NCCL_LATENCIES}); assumed: "
        f"{SHOWN_SHARE:.0%} of what has computing beside it shows"
    )
    yield (
        f"assumed: {TRAINING_SHARE:.0%} of the peak in passes and updates (38-43% reported, {EFFICIENCY_SOURCES[0]}), "
        f"{PREFILL_SHARE:.0%} for prompts (up to 76% reported, {EFFICIENCY_SOURCES[1]})"
    )
    yield (
        f"assumed: {MEMORY_SHARE:.0%} of the memory's bandwidth (see {EFFICIENCY_SOURCES[2]}), {LINK_SHARE:.0%} of the "
        "link"
    )
    yield (
        f"assumed: {1e3 * STEP_S:g} ms for a decode step's scheduling, {1e3 * CALL_S:g} ms for each way of a call, "
        f"{1e3 * RESPONSE_S:g} ms to score a response, {DISK_GB_S:g} GB/s to disk"
    )
    yield (
        f"engine native: {1e3 * NATIVE_LAYER_S:g} ms a layer of a decode step more, for launches, as measured on the "
        "host of one H100 (docs/measured/h100.md), and a cache in float32"
    )


def _stages(sheet: DataSheet) -> Iterator[StageCost]:
    gflop_s = 1 / (1e3 * sheet.tflops)
    memory_s = 1 / (MEMORY_SHARE * sheet.memory_gb_s)
    link_s = 1 / (LINK_SHARE * sheet.link_gb_s)
    decode = {"decode_step": STEP_S, "weight_gb": memory_s, "context_gb": NARROW_CACHE * memory_s}
    products = {"prompt_gflop": gflop_s / PREFILL_SHARE, "row_gflop": gflop_s / PREFILL_SHARE}
    one_pass = gflop_s / TRAINING_SHARE
    yield _cost("generate", decode | products)
    yield _cost(
        "generate", decode | products | {"decode_layer": NATIVE_LAYER_S, "context_gb": memory_s}, engine="native"
    )
    yield _cost("score", {"call": CALL_S, "response": RESPONSE_S})
    yield _cost("prepare_batch", {"call": CALL_S})
    yield _cost("old_logprobs", {"call": CALL_S, "position_gflop": one_pass})
    yield _cost("reference_logprobs", {"call": CALL_S, "position_gflop": one_pass})
    yield _cost(
        "update", {"call": CALL_S, "position_gflop": BACKWARD * one_pass, "parameter_gb": ADAMW_STREAMS * memory_s}
    )
    yield _cost("weight_publish", {"call": CALL_S, "gb": 2 * memory_s})
    yield _cost("weight_transfer", {"call": CALL_S, "gb": link_s, "further_gb": link_s})
    yield _cost("weight_load", {"call": CALL_S, "gb": 2 * memory_s})
    yield _cost("weight_verify", {"call": CALL_S, "gb": memory_s})
    for stage in ("save_policy", "checkpoint_write"):
        yield _cost(stage, {"call": CALL_S, "gb": 1 / DISK_GB_S})
    yield _cost("checkpoint", {"call": CALL_S, "gb": 1 / DISK_GB_S}, asynchronous="false")
    yield _cost("checkpoint", {"call": CALL_S, "gb": 1 / HOST_GB_S}, asynchronous="true")
    yield _cost("call", {"call": CALL_S})
    yield _cost("record", {"call": CALL_S})
    links = {"machine": (_hop_s(sheet.link), sheet.link_gb_s)}
    if sheet.network_gb_s:
        links["network"] = (HOP_S["network"], sheet.network_gb_s)
    for name in COLLECTIVES:
        for link, (hop_s, gb_s) in links.items():
            seconds = {"call": COLLECTIVE_S, "hop": hop_s, "gb": 1 / (LINK_SHARE * gb_s)}
            yield _cost(name, seconds, link=link)
    for mode in MODES:
        yield _cost("exchange", {"exposed_s": 1.0, "hidden_s": SHOWN_SHARE}, mode=mode)


def _hop_s(link: str) -> float:
    return HOP_S[link.split()[0]]


def _cost(stage: str, seconds: dict[str, float], **where: str) -> StageCost:
    return StageCost(
        stage=stage,
        where=where,
        seconds={feature: rounded(value) for feature, value in seconds.items()},
        unseen_log_sd=LOG_SD,
        step_log_sd=NOISE_LOG_SD,
        run_log_sd=NOISE_LOG_SD,
    )


def main(folder: Path = Path(FOLDER)) -> int:
    """Write every profile into a folder; those that stand there as they should are left alone."""
    for sheet in DATA_SHEETS:
        profile, path = datasheet_profile(sheet), folder / f"{sheet.name}.yaml"
        if not path.is_file() or path.read_text(encoding="utf-8") != profile_yaml(profile):
            save_machine(profile, path)
            print(f"wrote {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
